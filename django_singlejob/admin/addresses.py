"""The URLs of our pages, on the admin site that shows them: a project may have sites of its own, and several."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

_site: ContextVar[str] = ContextVar("django_singlejob_admin_site", default="admin")


def shown_by(site: str, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The view, whose page has addresses on the site with this name. Templates know it without this, by the request."""

    @wraps(view)
    def shown(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        # Not reset afterwards, since pages are rendered after the view has returned. The next view sets its own.
        _site.set(site)
        return view(request, *args, **kwargs)

    return shown


def address(page: str, *args: str) -> str:
    """The URL of a page, such as ``jobrun_changelist``. Raises ``NoReverseMatch`` if the site does not have it."""
    return reverse(f"admin:django_singlejob_{page}", args=args, current_app=_site.get())
