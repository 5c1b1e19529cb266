from __future__ import annotations

from typing import TYPE_CHECKING

import django
import pytest

from django_singlejob.models import OneOffJob
from tests.children import ROOT
from tests.databases import APPS
from tests.processes.workers import enqueue, one_off

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

has_tasks = pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has no tasks of its own before 6.0")
has_none = pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has tasks of its own")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a child finds a package django_tasks that has nothing of what we need, as older ones."""
    (tmp_path / "django_tasks").mkdir()
    (tmp_path / "django_tasks" / "__init__.py").touch()
    return f"{tmp_path}:{ROOT}"


@has_tasks
def test_where_django_has_tasks_the_package_is_not_imported(spawn: Spawn, path: str) -> None:
    child = spawn.code(
        """
        import sys
        from django.core.management import call_command
        from tests.app.django_tasks import plain, stock
        plain.enqueue()
        stock.enqueue()
        call_command("check")
        call_command("singleton_worker", "--drain")
        print("django_tasks" in sys.modules)
        """,
        PYTHONPATH=path,
    )
    assert child.finish() == 0
    assert child.output.splitlines()[-1] == "False"
    assert {row.status for row in OneOffJob.objects.all()} == {"done"}


@has_none
def test_where_there_are_no_tasks_they_wait_and_jobs_run(spawn: Spawn, path: str) -> None:
    enqueue("quick")
    for path_of_task in "tests.app.django_tasks.plain", "gone":
        row = one_off("tasks.noted")
        row.task_path = path_of_task
        row.save()
    child = spawn.command("singleton_worker", "--drain", PYTHONPATH=path)
    assert child.finish() == 0
    assert [(row.status, row.attempt) for row in OneOffJob.objects.order_by("pk")] == [
        ("done", 1),
        ("waiting", 0),
        ("waiting", 0),
    ]


@has_none
@pytest.mark.parametrize("module", ["admin", "monitoring.checks", "integrations.sentry", "tasks.django_tasks"])
def test_all_but_the_backend_is_there_without_tasks(spawn: Spawn, path: str, module: str) -> None:
    assert spawn.code(f"import django_singlejob.{module}", PYTHONPATH=path).finish() == 0
