"""Modules of a project that is not there, with the code of snippets: `shop.jobs`, `shop.tasks` and the like."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from tests.app.tasks_api import PACKAGE


class Modules:
    """Makes modules, which can be imported until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, name: str, code: str = "", **values: Any) -> Any:
        """A new module of this dotted name, with these values, in which the code has run. Its packages are made too.

        Django's tasks are those of `django_tasks` before Django 6.0.
        """
        package, _, last = name.rpartition(".")
        module = ModuleType(name)
        vars(module).update(values)
        self._patch.setitem(sys.modules, name, module)
        if package:
            parent = sys.modules.get(package) or self(package)
            self._patch.setattr(parent, last, module, raising=False)
        exec(compile(code.replace("from django.tasks ", f"from {PACKAGE} "), name, "exec"), vars(module))
        return module


@pytest.fixture
def modules(fresh_process: None, monkeypatch: pytest.MonkeyPatch) -> Modules:
    """Makes modules for this test, whose jobs are the only ones."""
    return Modules(monkeypatch)
