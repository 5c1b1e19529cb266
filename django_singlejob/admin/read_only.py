"""Read-only pages, which ask the database for nothing but what their own links and forms ask for."""

from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList, ChangeListSearchForm
from django.core.exceptions import BadRequest, ValidationError
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.forms import Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext, gettext_lazy as _

from django_singlejob.admin.addresses import address, shown_by
from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.jobs.names import is_storable
from django_singlejob.process.clock import DBNow
from django_singlejob.process.escaping import printable, shown
from django_singlejob.process.holder import USER_LENGTH

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
    BasePaginator = Paginator[Any]
else:
    BaseAdmin = admin.ModelAdmin
    BasePaginator = Paginator

# No user pages further than this, and counting a million rows takes longer than everything else on the page.
MOST_COUNTED = 10_000
# What a page calls "now" is the time by the database's clock.
NOW: dict[str, Any] = {"now": DBNow()}
# Our links are shorter. A page repeats the query in each of its links, so a longer one would make it huge.
LONGEST_QUERY = 8_000
LONGEST_SEARCH = 200
# A filter has links to this many values.
MOST_LINKS = 20
# Each word is compared with each of the columns that are searched.
MOST_WORDS = 10
# What a page sends that asked before it did something.
CONFIRMED = "confirmed"
# Keeps a page up to date that is open. Django's stubs know only the names of scripts.
LIVE: Any = Script("django_singlejob/live.js", defer=True)
# In Django's own catalogs.
_MISSING = "%(name)s with ID “%(key)s” doesn’t exist. Perhaps it was deleted?"  # noqa: RUF001
# What all databases can compare in all time zones.
YEARS = range(1900, 9000)


class BoundedPaginator(BasePaginator):
    """A paginator that counts no further than users page."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())

    @property
    def is_cut(self) -> bool:
        """Whether there may be more rows than are counted."""
        return self.count >= MOST_COUNTED


class WorstPaginator(BasePaginator):
    """A paginator of the worst rows. ``is_cut`` tells whether there are more."""

    def __init__(self, rows: Sequence[Any], per_page: int, *, is_cut: bool = False) -> None:
        super().__init__(rows, per_page)
        self.is_cut = is_cut


class SearchForm(ChangeListSearchForm):
    """Tells the user that a search is too long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields[SEARCH_VAR].validators.append(_validate_search)


def _validate_search(text: str) -> None:
    if is_storable(text) and not is_searchable(text):  # of other text, the field itself complains
        limits = {"length": LONGEST_SEARCH, "words": MOST_WORDS}
        raise ValidationError(_("Search for at most %(words)d words of %(length)d characters in total.") % limits)


class Page(ChangeList):
    """A list that looks up, for all its rows at once, what else to show."""

    search_form_class = SearchForm
    has_impossible_date = False

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """The rows. There are none for a parameter with a NUL, which PostgreSQL refuses even in a comparison, nor for
        a year that no row has, nor for a search that is too long."""
        found: QuerySet[Any] = super().get_queryset(request, *args, **kwargs)
        # In place of the date hierarchy's lookups, Django's own link has others, which are refused.
        filters = [name for spec in self.filter_specs for name in spec.expected_parameters() if name]
        self.clear_all_filters_qs = self.get_query_string(remove=filters)
        is_answered = all(map(is_storable, _texts(request.GET))) and is_searchable(request.GET.get(SEARCH_VAR, ""))
        return found if is_answered and not self.has_impossible_date else found.none()

    def get_filters(self, request: HttpRequest) -> Any:
        parts = [name for name in _parts_of_date(self.date_hierarchy) if name in self.filter_params]
        self.has_impossible_date = bool(parts) and not self._is_date()
        if self.has_impossible_date:
            # The links on the page, and the years above the list, are made of these.
            for name in parts:
                del self.filter_params[name], self.params[name]
        return super().get_filters(request)

    def _is_date(self) -> bool:
        """Whether the parameters may be a year, and a month and a day in it. Django itself finds out if there is no
        such month or day."""
        year, *rest = (list(self.filter_params.get(name, ())) for name in _parts_of_date(self.date_hierarchy))
        are_short = all(text.isdecimal() and len(text) <= 4 for text in sum(rest, year))
        return are_short and bool(year) and int(year[-1]) in YEARS

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        # If there are no rows, the paginator knows it. Another query might read the whole history to find that out.
        self.result_list = list(self.paginator.get_page(self.page_num))
        cast("ReadOnlyAdmin", self.model_admin).furnish(self.result_list)
        self.is_cut = self.paginator.is_cut


class RowsFilter(admin.SimpleListFilter):
    """A filter with links to some of the values that the rows have, and a note if they have more."""

    template = "admin/django_singlejob/filter.html"
    note: Any = _("There are more. Search for the others.")
    is_cut = False

    def some(self, most: int) -> Iterable[str]:
        """This many of the values, or all if there are fewer; each may come several times."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        # One of them may be empty.
        found = [value for value in dict.fromkeys(self.some(MOST_LINKS + 2)) if value]
        self.is_cut = len(found) > MOST_LINKS
        offered = {*found[:MOST_LINKS]}
        if (value := self.value()) and is_storable(value):
            # The address says so. Only a row makes it a value.
            rows: Any = self.queryset(request, model_admin.get_queryset(request))
            offered |= {value} if rows.exists() else set()
        return [(value, shown(value)) for value in sorted(offered)]

    def has_output(self) -> bool:
        # Otherwise, Django leaves the filter out.
        return super().has_output() or self.value() is not None


class ReadOnlyAdmin(BaseAdmin):
    """These rows cannot be added, changed or deleted: a ``save()`` would bring back a released lock.

    ``linked_lookups`` are the lookups that other pages' links to the list have, besides those of its own filters.
    """

    linked_lookups: Sequence[str] = ()
    actions: Any = None
    change_list_template = "admin/django_singlejob/change_list.html"
    # COUNT(*) over the history takes longer than everything else on the page.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    list_max_show_all = 0

    class Media:
        css = {"all": ["django_singlejob/admin.css"]}

    @property
    def urls(self) -> Any:
        patterns = super().urls
        for pattern in patterns:
            pattern.callback = shown_by(self.admin_site.name, _refusing(pattern.callback))
        return patterns

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Page

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Whether the list has a link with this lookup. Django admits any lookup on the model's own columns, such as a
        regular expression that takes the database minutes."""
        return lookup in self._lookups()

    def _lookups(self) -> Iterator[str]:
        yield from self.linked_lookups
        yield from _parts_of_date(self.date_hierarchy)
        for entry in self.list_filter:
            if isinstance(entry, str):
                yield from (f"{entry}__exact", f"{entry}__isnull")
            else:
                yield cast("Any", entry).parameter_name

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The rows that contain the term. The list asks for this, and so does a form that completes our names."""
        if not is_searchable(search_term):
            return queryset.none(), False
        return self.search(request, queryset if queryset.ordered else queryset.order_by("pk"), search_term)

    def search(self, request: HttpRequest, queryset: QuerySet[Any], term: str) -> tuple[QuerySet[Any], bool]:
        """The same for a term that is searchable, or empty."""
        return super().get_search_results(request, queryset, term)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return super().get_object(request, object_id, from_field) if is_storable(object_id) else None

    def report_missing(self, request: HttpRequest, names: Iterable[str]) -> None:
        """Say what Django says of an object that an address names, and that does not exist."""
        for name in list(names)[:MOST_LINKS]:
            words = gettext(_MISSING) % {"name": self.opts.verbose_name, "key": shown(name)}
            self.message_user(request, words, messages.WARNING)

    def furnish(self, rows: Sequence[Any]) -> None:
        """Look up what else to show for the rows of a page. The number of queries must not depend on that of rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def response_action(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse | None:
        """Refuse actions on rows that the user has not seen. The page offers none, but a request may contain one."""
        if request.POST.get("select_across", "0") != "0":
            self.message_user(request, gettext("Nothing was done. Select the rows page by page."), messages.WARNING)
            return None
        if not all(map(self._is_key, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            self.message_user(request, gettext("Nothing was done. Select the rows again."), messages.WARNING)
            return None
        return super().response_action(request, *args, **kwargs)

    def _is_key(self, text: str) -> bool:
        """Whether a row may have this key. The databases do not even compare with others."""
        try:
            self.opts.pk.clean(text, None)
        except ValidationError:
            return False
        return is_storable(text)

    def ask(self, request: HttpRequest, context: dict[str, Any], template: str = "asking.html") -> HttpResponse:
        """The page that asks before something is done: see the templates."""
        usual = {
            **self.admin_site.each_context(request),
            "has_view_permission": True,
            "opts": self.opts,
            "media": self.media,
            "way_back": address(f"{self.opts.model_name}_changelist"),
        }
        return TemplateResponse(request, f"admin/django_singlejob/{template}", usual | context)

    def may(self, request: HttpRequest, permission: str) -> bool:
        """Whether the user has this permission of our app, such as ``run_jobstatus``."""
        return request.user.has_perm(f"{self.opts.app_label}.{permission}")


def is_searchable(term: str) -> bool:
    """Whether a search for this takes no longer than it should."""
    return is_storable(term) and len(term) <= LONGEST_SEARCH and len(term.split()) <= MOST_WORDS


def _is_utf8(text: str) -> bool:
    # The encoding in a request's header may leave half a surrogate pair, which no page can show.
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _texts(query: QueryDict) -> Iterator[str]:
    """The names and the values of the parameters."""
    for name, values in query.lists():
        yield name
        yield from values


def _parts_of_date(name: str | None) -> list[str]:
    """The lookups of a date hierarchy."""
    return [f"{name}__{part}" for part in ("year", "month", "day")] if name else []


def _refusing(view: Any) -> Any:
    """The view, without queries that none of our links has."""

    @wraps(view)
    def refusing(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if len(request.META.get("QUERY_STRING", "")) > LONGEST_QUERY:
            raise BadRequest("The query string is too long.")
        if not all(map(_is_utf8, [*_texts(request.GET), *_texts(request.POST)])):
            raise BadRequest("A parameter cannot be encoded in UTF-8.")
        response: HttpResponse = view(request, *args, **kwargs)
        return response

    return refusing


def user_name(request: HttpRequest) -> str:
    """The user, as our rows record them."""
    return printable(request.user.get_username(), USER_LENGTH)


def register_jobs(request: HttpRequest, *, is_refresh: bool = False) -> list[Exception]:
    """Import the jobs. These pages are needed most when something is broken, so an error only adds a message, and is
    returned."""
    broken = autodiscover()
    if request.method == "GET" and not is_refresh:
        message = gettext(
            "Some jobs are missing here, because a module of SINGLEJOB['AUTODISCOVER'] cannot be imported: %s"
        )
        for error in broken:
            messages.error(request, message % f"{type(error).__name__}: {error}")
    return broken


def is_refreshing(request: HttpRequest) -> bool:
    """Whether a page that is open asks for its part that changes. That must not render messages, which would take them
    away from the page that they are for."""
    return "Singlejob-Refresh" in request.headers


def back(request: HttpRequest, model: str) -> HttpResponse | None:
    """A redirect to the row's page if an action was chosen there, or ``None`` to return to the list."""
    key = request.POST.get("back")
    return HttpResponseRedirect(address(f"{model}_change", quote(key))) if key else None


def busy(name: str) -> str:
    """What to say if a job's gate is busy."""
    return gettext("The job %s was not changed, because another transaction is using it. Try again.") % name
