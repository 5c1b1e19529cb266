"""The URLs of the admin's pages."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.urls import reverse

from django_singlejob.models.locks import locks

OVERVIEW = "/admin/django_singlejob/overview/"


def list_of(model: str) -> str:
    return reverse(f"admin:django_singlejob_{model}_changelist")


def page_of(model: str, key: int | str) -> str:
    return reverse(f"admin:django_singlejob_{model}_change", args=[quote(key)])


def log_of(model: str, key: int | str) -> str:
    return reverse(f"admin:django_singlejob_{model}_history", args=[quote(key)])


def clearing(*names: str) -> str:
    """The page that asks whether to clear the named locks."""
    return f"{reverse('admin:django_singlejob_joblock_clear')}?{'&'.join(f'name={name}' for name in names)}"


def stopping(*names: str) -> str:
    """The page that asks whether to stop the holders of the named locks."""
    wanted = [
        ("run", f"{token.hex}:{name}") for name, token in locks().filter(name__in=names).values_list("name", "token")
    ]
    return f"{reverse('admin:django_singlejob_joblock_stop')}?{urlencode(wanted)}"
