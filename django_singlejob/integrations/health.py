"""The page ``health/``: the verdict, for load balancers and monitoring."""

from collections import Counter
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, JsonResponse
from django.utils import translation
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe

import django_singlejob
from django_singlejob.conf import options

VERSION = 1

_PUBLIC = {"Cache-Control": "public, max-age=5", "Vary": "Authorization"}
_PRIVATE = {"Cache-Control": "private, no-store", "Vary": "Authorization"}


@login_not_required
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """200, or 503 if something is critical or if nothing is known. With the token the JSON is the whole status,
    otherwise only the level and the number of findings of each kind. It is in English, because programs read it."""
    is_trusted = has_token(request)
    try:
        with translation.override(None):
            status = django_singlejob.status()
            facts = status.as_dict() if is_trusted else _public(status)
    except Exception as error:  # a status that cannot be read is unknown
        facts = {"version": VERSION, "level": "unknown"}
        facts |= {"error": f"{type(error).__name__}: {error}"} if is_trusted else {}
    is_well = facts["level"] in ("ok", "warning")
    return JsonResponse(facts, status=200 if is_well else 503, headers=_PRIVATE if is_trusted else _PUBLIC)


def _public(status: Any) -> dict[str, Any]:
    kinds = Counter(finding.kind for finding in status.findings)
    return {"version": status.version, "level": status.level, "findings": dict(kinds)}


def has_token(request: HttpRequest) -> bool:
    """Whether the request presents the token as ``Authorization: Bearer TOKEN``. ``False`` if the setting is ``None``,
    or if a setting is invalid."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        wanted = options().health_token
    except ImproperlyConfigured:
        return False
    return wanted is not None and scheme.lower() == "bearer" and constant_time_compare(token.strip(), wanted)
