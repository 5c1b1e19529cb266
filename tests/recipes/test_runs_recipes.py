"""What the page about runs says of settings and of processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from django.core.checks import run_checks

import django_singlejob
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.modules"]
# It does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")


@pytest.mark.django_db
def test_each_run_gets_a_process_of_its_own(settings: Settings, modules: Modules) -> None:
    given = modules("shop.settings", snippet("recipes/runs.md", "What is new for each run"))
    settings.SINGLEJOB = given.SINGLEJOB
    assert run_checks() == []


@pytest.mark.parametrize(
    ("command", "is_executor", "ports"),
    [("singleton_worker", False, [9100]), ("singleton_worker", True, []), ("migrate", False, [])],
    ids=["worker", "executor", "another command"],
)
def test_one_process_serves_the_metrics(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, command: str, *, is_executor: bool, ports: list[int]
) -> None:
    served: list[int] = []
    modules("shop.metrics", serve_metrics=lambda *, port: served.append(port))
    monkeypatch.setattr(sys, "argv", ["manage.py", command])
    monkeypatch.setattr(django_singlejob, "is_executor", lambda: is_executor)
    shop = modules("shop.apps", snippet("recipes/runs.md", "Do something in one process only"))
    shop.ShopConfig.ready(object())
    assert served == ports
