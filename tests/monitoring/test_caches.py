"""What caches our tables is found by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core.checks import run_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings


pytestmark = pytest.mark.django_db  # another check asks the database


def found() -> list[Any]:
    return [message for message in run_checks() if message.id == "singlejob.E012"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has Django think that this app is installed."""
    usual = apps.is_installed

    def install(name: str) -> None:
        monkeypatch.setattr(apps, "is_installed", lambda asked: asked == name or usual(asked))

    return install


LOCKS = "django_singlejob_joblock"


@pytest.mark.parametrize(
    ("given", "is_cached"),
    [
        ({}, True),
        ({"CACHALOT_ENABLED": False}, False),
        ({"CACHALOT_UNCACHABLE_APPS": ["django_singlejob"]}, False),
        ({"CACHALOT_UNCACHABLE_TABLES": [LOCKS]}, True),  # there are more
        ({"CACHALOT_UNCACHABLE_APPS": ["not_installed"]}, True),
        ({"CACHALOT_DATABASES": ["other"]}, False),
        ({"CACHALOT_DATABASES": ["default"]}, True),
        ({"CACHALOT_ONLY_CACHABLE_APPS": ["contenttypes"]}, False),
        ({"CACHALOT_ONLY_CACHABLE_TABLES": [LOCKS]}, True),
    ],
    ids=str,
)
def test_e012_cachalot(
    settings: Settings, installed: Callable[[str], None], given: dict[str, Any], is_cached: bool
) -> None:
    for name, value in given.items():
        setattr(settings, name, value)
    assert found() == []
    installed("cachalot")
    messages = found()
    assert [message.id for message in messages] == ["singlejob.E012"] * is_cached
    assert all(message.hint == "Add 'django_singlejob' to CACHALOT_UNCACHABLE_APPS." for message in messages)


@pytest.mark.parametrize(
    ("profiles", "is_cached"),
    [
        ({}, False),
        ({"auth.*": {"ops": "all"}}, False),
        ({"*.*": {"ops": "all"}}, True),
        ({"*.*": {"ops": ()}}, False),
        ({"*.*": {"ops": "all"}, "django_singlejob.*": None}, False),
        ({"django_singlejob.JobLock": {"ops": {"get"}}}, True),
    ],
    ids=str,
)
def test_e012_cacheops(
    settings: Settings, installed: Callable[[str], None], profiles: dict[str, Any], is_cached: bool
) -> None:
    settings.CACHEOPS = profiles
    assert found() == []
    installed("cacheops")
    assert [message.id for message in found()] == ["singlejob.E012"] * is_cached
