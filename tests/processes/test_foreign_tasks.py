"""Rows written by hand, for tasks in modules that the project has not chosen, or that cannot be imported: real workers
import none of the former, survive the latter, and run the others."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, OneOffJob
from tests.app.tasks_api import PACKAGE
from tests.children import ROOT
from tests.databases import APPS
from tests.processes.workers import one_off
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, available_apps=APPS)]

MARKED = """
import os
with open(os.environ["RAN"], "a") as file:
    file.write(f"{__name__} ")
"""
TASK = f"""
from {PACKAGE} import task
@task
def send(): ...
"""
PROJECT = {
    "manage.py": """
        import os, sys
        from django.core.management import execute_from_command_line
        os.environ["DJANGO_SETTINGS_MODULE"] = "project_settings"
        if __name__ == "__main__":
            execute_from_command_line(sys.argv)
        """,
    "project_settings.py": """
        from tests.settings import *
        INSTALLED_APPS = [*INSTALLED_APPS, "bakery"]
        """,
    "fix_everything.py": MARKED + TASK,
    "bakery_scripts.py": MARKED + TASK,
    "bakery/__init__.py": "",
    "bakery/__main__.py": MARKED + TASK,
    "bakery/mail.py": TASK,
    "bakery/exits.py": MARKED + "raise SystemExit(3)",
    "bakery/interrupts.py": MARKED + "raise KeyboardInterrupt",
    "bakery/fails.py": MARKED + "1 / 0",
    "bakery/needs.py": MARKED + "import no_such_library",
}
FOREIGN = [
    "unittest.__main__",
    "unittest.__main__.main",
    "antigravity.send",
    "fix_everything.send",
    "bakery_scripts.send",
    "bakery.__main__.send",
    "manage.execute_from_command_line",
    "__main__.send",
]
BROKEN = ["bakery.exits", "bakery.interrupts", "bakery.fails", "bakery.needs"]


@pytest.fixture
def manage(spawn: Spawn, tmp_path: Path) -> Callable[..., Child]:
    """Runs a command of the project's `manage.py`."""
    for name, code in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(code))
    # A browser that leaves a trace, for `antigravity`.
    (tmp_path / "browser").write_text(f"#!/bin/sh\necho antigravity >> {tmp_path / 'ran'}\n")
    (tmp_path / "browser").chmod(0o755)
    env = {"PYTHONPATH": str(ROOT), "RAN": str(tmp_path / "ran"), "BROWSER": str(tmp_path / "browser")}

    def manage(*arguments: str, **more: str) -> Child:
        return spawn(str(tmp_path / "manage.py"), *arguments, **env | more)

    return manage


def ran(folder: Path) -> list[str]:
    """What was executed, once for each time."""
    file = folder / "ran"
    return sorted(file.read_text().split()) if file.exists() else []


def by_hand(*paths: str, priority: int = 0) -> None:
    for path in paths:
        row = one_off("tasks.noted")
        row.task_path, row.priority = path, priority
        row.save()


def all_mail_is_sent() -> bool:
    return not OneOffJob.objects.filter(task_path="bakery.mail.send").exclude(status="done").exists()


def statuses() -> dict[str, str]:
    return dict(OneOffJob.objects.values_list("task_path", "status"))


@pytest.mark.parametrize("option", ["--drain", "--once"])
def test_a_worker_imports_no_foreign_module_and_survives_what_it_may_import(
    manage: Callable[..., Child], option: str, tmp_path: Path
) -> None:
    by_hand(*FOREIGN, *(f"{name}.send" for name in BROKEN), *(f"{name}.mail" for name in BROKEN), priority=10)
    by_hand("bakery.mail.send")
    child = manage("singleton_worker", option)
    assert child.finish() == 0
    assert ran(tmp_path) == sorted(BROKEN)
    assert statuses().pop("bakery.mail.send") == "done"
    assert set(OneOffJob.objects.exclude(task_path="bakery.mail.send").values_list("status", "attempt")) == {
        ("waiting", 0)
    }
    for path in FOREIGN:
        assert child.output.count(f"The task {path!r} is not looked up") == 1
    for name in BROKEN:
        assert child.output.count(f"The module {name!r} cannot be imported") == 1
    assert not JobLock.objects.exists()

    OneOffJob.objects.create(**as_enqueued("bakery.mail.send"))
    assert manage("singleton_worker", option).finish() == 0
    assert all_mail_is_sent()
    assert manage("cancel_one_offs", "--task", "unittest.__main__").finish() == 0
    assert statuses()["unittest.__main__"] == "cancelled"


def as_enqueued(path: str) -> dict[str, object]:
    row = one_off("tasks.noted")
    names = ("backend", "created_at", "run_after", "max_attempts")
    return {"task_path": path} | {name: getattr(row, name) for name in names}


def test_nor_does_one_that_stays(manage: Callable[..., Child], tmp_path: Path) -> None:
    """It looks again and again, and says it once."""
    by_hand(*FOREIGN, *(f"{name}.send" for name in BROKEN), priority=10)
    child = manage("singleton_worker", "--interval", "0.05", "--no-reload", "--max-jobs", "3")
    for _ in range(3):
        by_hand("bakery.mail.send")
        eventually(all_mail_is_sent)
        by_hand("unittest.__main__", "bakery.exits.send")
    assert child.finish() == 0
    assert ran(tmp_path) == sorted(BROKEN)
    assert child.output.count("'unittest.__main__' is not looked up") == 1
    assert child.output.count("The module 'bakery.exits' cannot be imported") == 1
