"""The kernel works alone: with the rooms around it deleted, jobs, slots, shell commands, calls, one-offs and a worker
run."""

from __future__ import annotations

import tomllib
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_singlejob.models import JobLock, OneOffJob
from tests.children import ROOT
from tests.databases import APPS
from tests.mutants.copies import Edit, copied
from tests.mutants.trials import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.children import Spawn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, available_apps=APPS)]

#: What a lock, a slot, a one-off and a worker are.
CONTRACT = [
    *(f"tests/contract/test_{name}.py" for name in ("lock", "claims", "one_offs")),
    "tests/worker/test_tick.py",
]
APP = """
from django.apps import AppConfig


class SingleJobConfig(AppConfig):
    name = "django_singlejob"
    default_auto_field = "django.db.models.BigAutoField"
"""


def rooms() -> Iterator[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (fence,) = (contract for contract in contracts if contract["name"].startswith("The kernel works alone"))
    return (name.replace(".", "/") for name in fence["forbidden_modules"])


def delete(path: Path) -> None:
    if path.is_dir():
        rmtree(path)
    else:
        path.with_suffix(".py").unlink()


@pytest.mark.parametrize(
    "contract",
    [
        pytest.param(CONTRACT, marks=pytest.mark.on_database("sqlite")),
        pytest.param(
            [*CONTRACT, "tests/contract/test_takeover.py"],
            marks=[pytest.mark.on_database("postgresql"), pytest.mark.long],
        ),
    ],
    ids=["in short", "in full"],
)
@pytest.mark.timeout(600)
def test_without_the_rooms_around_it_all_that_a_lock_a_slot_and_a_one_off_are_holds(contract: list[str]) -> None:
    no_backend = Edit("tests/settings.py", '\nTASKS = {"default"', '\nBEFORE = {"default"')
    with copied([no_backend]) as folder:
        for room in rooms():
            delete(folder / room)
        (folder / "django_singlejob" / "apps.py").write_text(APP)
        quiet = ["-p", "no:cacheprovider", "-p", "no:singlejob"]  # the plugin is in a room
        options = ["-m", "pytest", "-q", *quiet, "--database", connection.vendor]
        for tests in [[*contract, "-m", "not slow"], ["tests/test_kernel.py", "-k", "not without_the_rooms"]]:
            status, output = run(folder, [*options, *tests])
            assert (status, "skipped" in output) == (0, False), output


def test_a_job_a_shell_command_a_call_and_a_worker_run(spawn: Spawn) -> None:
    assert spawn.command("run_singleton", "quick").finish() == 0
    assert spawn.command("run_singleton", "a-lock", "--", "sh", "-c", "exit 3").finish() == 3
    called = spawn.code("from tests.app.jobs import quick; print(quick.run().status); quick.enqueue()")
    assert (called.finish(), called.output.split()[-1:]) == (0, ["successful"])
    drained = spawn.command("singleton_worker", "--drain")
    assert (drained.finish(), [row.status for row in OneOffJob.objects.all()]) == (0, ["done"])
    assert not JobLock.objects.exists()
