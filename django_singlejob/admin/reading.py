"""Read-only pages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext

from django_singlejob import registry
from django_singlejob.clock import DBNow
from django_singlejob.holder import printable
from django_singlejob.names import USER_LENGTH

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


class BoundedPaginator(BasePaginator):
    """A paginator that counts no further than users page."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())


class Page(ChangeList):
    """A list that looks up, for all its rows at once, what else to show."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        # If there are no rows, the paginator knows it. Another query might read the whole history to find that out.
        self.result_list = list(self.paginator.get_page(self.page_num))
        cast("ReadOnlyAdmin", self.model_admin).furnish(self.result_list)
        self.is_cut = self.result_count >= MOST_COUNTED


class ReadOnlyAdmin(BaseAdmin):
    """These rows cannot be added, changed or deleted: a ``save()`` would bring back a released lock."""

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
        return super().response_action(request, *args, **kwargs)

    def may(self, request: HttpRequest, permission: str) -> bool:
        """Whether the user has this permission of our app, such as ``run_jobstatus``."""
        return request.user.has_perm(f"{self.opts.app_label}.{permission}")


def outside_transactions(view: Any) -> Any:
    """The view, whose changes are short transactions of their own, and must not wait for the end of the request."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def user_name(request: HttpRequest) -> str:
    """The user, as our rows record them."""
    return printable(request.user.get_username(), USER_LENGTH)


def register_jobs(request: HttpRequest, *, is_refresh: bool = False) -> None:
    """Import the jobs. These pages are needed most when something is broken, so an error only adds a message."""
    try:
        registry.autodiscover()
    except Exception as error:
        if request.method != "GET" or is_refresh:
            return
        message = gettext(
            "Some jobs are missing here, because a module of SINGLEJOB['AUTODISCOVER'] cannot be imported: %s"
        )
        messages.error(request, message % f"{type(error).__name__}: {error}")


def back(request: HttpRequest, model: str) -> HttpResponse | None:
    """A redirect to the row's page if an action was chosen there, or ``None`` to return to the list."""
    key = request.POST.get("back")
    return HttpResponseRedirect(reverse(f"admin:django_singlejob_{model}_change", args=[quote(key)])) if key else None
