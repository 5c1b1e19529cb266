"""Pages that only show."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext

from django_singlejob import registry
from django_singlejob.clock import DBNow

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
    BasePaginator = Paginator[Any]
else:
    BaseAdmin = admin.ModelAdmin
    BasePaginator = Paginator

# Beyond these nobody pages, and to count a million rows takes longer than all else on the page.
MOST_COUNTED = 10_000
# What a page calls now: the database's clock.
NOW: dict[str, Any] = {"now": DBNow()}


class BoundedPaginator(BasePaginator):
    """Counts no further than anybody pages."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())


class Page(ChangeList):
    """A list whose rows are told, all at once, what else is to be shown of them."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        # The paginator knows it if there are none: to find that once more might take a look at the whole history.
        self.result_list = list(self.paginator.get_page(self.page_num))
        cast("ReadOnlyAdmin", self.model_admin).furnish(self.result_list)
        self.is_cut = self.result_count >= MOST_COUNTED


class ReadOnlyAdmin(BaseAdmin):
    """Nobody adds, changes or deletes these rows: a save() would bring a released lock back."""

    actions: Any = None
    change_list_template = "admin/django_singlejob/change_list.html"
    # COUNT(*) over the history takes longer than everything else on the page.
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    list_max_show_all = 0

    class Media:
        css = {"all": ["django_singlejob/admin.css"]}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Page

    def furnish(self, rows: Sequence[Any]) -> None:
        """Look up what else is shown of the rows of a page, in as many queries whatever their number."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def response_action(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse | None:
        """Not for rows that nobody has seen: it is not offered, and who asks for it all the same is told."""
        if request.POST.get("select_across", "0") != "0":
            self.message_user(request, gettext("Choose them page by page. Nothing was done."), messages.WARNING)
            return None
        return super().response_action(request, *args, **kwargs)

    def may(self, request: HttpRequest, permission: str) -> bool:
        """Whether the person has that permission of this app: ``run_jobstatus``."""
        return request.user.has_perm(f"{self.opts.app_label}.{permission}")


def register_jobs(request: HttpRequest, *, is_refresh: bool = False) -> None:
    """Make the jobs known. These pages are needed most when something is broken: an error is only told, on each."""
    try:
        registry.autodiscover()
    except Exception as error:
        if request.method != "GET" or is_refresh:
            return
        told = gettext("A jobs.py cannot be imported, so jobs are missing here: %s")
        messages.error(request, told % f"{type(error).__name__}: {error}")


def back(request: HttpRequest, model: str) -> HttpResponse | None:
    """To the page of the row, if an action was chosen there; ``None``: to the list."""
    key = request.POST.get("back")
    return HttpResponseRedirect(reverse(f"admin:django_singlejob_{model}_change", args=[quote(key)])) if key else None
