"""Whether a request may read everything: it presents ``SINGLEJOB["HEALTH_TOKEN"]``."""

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from django_singlejob.conf import options


def has_token(request: HttpRequest) -> bool:
    """Whether the request presents the token as ``Authorization: Bearer TOKEN``. ``False`` if the setting is ``None``,
    or if a setting is invalid."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        wanted = options().health_token
    except ImproperlyConfigured:
        return False
    return wanted is not None and scheme.lower() == "bearer" and constant_time_compare(token.strip(), wanted)
