"""The users of the admin: a plugin that its tests name in `pytest_plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from tests.admin.pages import OPERATE, VIEW

if TYPE_CHECKING:
    from collections.abc import Callable

    LogIn = Callable[..., Client]


@pytest.fixture
def log_in(django_user_model: Any) -> LogIn:
    """A client for a staff user with these permissions. It has no password, since hashing one takes longer than a
    test."""

    def client(name: str, *permissions: str, **facts: Any) -> Client:
        user = django_user_model.objects.create(username=name, is_staff=True, **facts)
        found = Permission.objects.filter(content_type__app_label="django_singlejob", codename__in=permissions)
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        visitor = Client()
        visitor.force_login(user)
        return visitor

    return client


@pytest.fixture
def admin_client(log_in: LogIn) -> Client:
    return log_in("admin", is_superuser=True)


@pytest.fixture
def viewer(log_in: LogIn) -> Client:
    return log_in("viewer", *VIEW)


@pytest.fixture
def operator(log_in: LogIn) -> Client:
    return log_in("operator", *OPERATE)
