"""`prune_singletons`, called in this process; `processes/` covers its signals and exit statuses."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Order, place

if TYPE_CHECKING:
    from pytest_django import Settings


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def told(*command: str) -> str:
    """The command's output."""
    output = StringIO()
    call_command(*command, stdout=output, stderr=output, no_color=True)
    return output.getvalue()


# --- prune_singletons


def has_run(name: str = "nightly", *, ago: timedelta) -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "call", "hostname": "web-1", "pid": 1}
    gates().remember(name)
    runs().create(job_name=name, status="successful", started_at=DBNow() - ago, **facts)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ([], 1),
        (["--days", "1"], 2),
        (["--days", "0"], 3),
        (["--days", "100"], 0),
        (["--days", "100", "--keep", "1"], 2),
        (["--days", "100", "--keep", "0"], 3),
    ],
)
def test_old_runs_are_pruned(options: list[str], count: int) -> None:
    for ago in MINUTE, 2 * DAY, 31 * DAY:
        has_run(ago=ago)
    assert told("prune_singletons", "--dry-run", *options) == (
        f"Runs that would be deleted: {count}.\nOne-offs that would be deleted: 0.\nNotes that would be deleted: 0.\n"
    )
    assert runs().count() == 3
    assert told("prune_singletons", *options) == f"Runs deleted: {count}.\nOne-offs deleted: 0.\nNotes deleted: 0.\n"
    assert runs().count() == 3 - count


@pytest.mark.parametrize("how", [[], ["--dry-run"]], ids=["", "dry"])
def test_there_is_no_statement_for_each_job(how: list[str], django_assert_max_num_queries: Any) -> None:
    for number in range(150):
        for _ in range(2 + number % 2):
            has_run(f"job-{number}", ago=MINUTE)
    with django_assert_max_num_queries(20):
        assert "Runs " in (said := told("prune_singletons", *how, "--keep", "1"))
    assert said.splitlines()[0].endswith("deleted: 225.")


@pytest.mark.parametrize(
    ("options", "count"),
    [([], 1), (["--days", "1"], 2), (["--days", "0"], 3), (["--days", "100"], 0), (["--keep", "0"], 1)],
)
def test_one_offs_that_ended_long_ago_are_pruned(options: list[str], count: int) -> None:
    for ago in MINUTE, 2 * DAY, 31 * DAY:
        place(Order(job_name="nightly"), [], {}, status="done", finished_at=DBNow() - ago)
    place(Order(job_name="nightly"), [], {}, run_after=DBNow() - 31 * DAY)
    assert f"One-offs that would be deleted: {count}.\n" in told("prune_singletons", "--dry-run", *options)
    assert one_offs().count() == 4
    assert f"One-offs deleted: {count}.\n" in told("prune_singletons", *options)
    assert one_offs().ended().count() == 3 - count
    assert one_offs().waiting().count() == 1


def test_json_has_the_counts() -> None:
    has_run(ago=31 * DAY)
    assert json.loads(told("prune_singletons", "--dry-run", "--format=json")) == {
        "runs": 1,
        "one_offs": 0,
        "notes": 0,
        "dry_run": True,
    }
    assert json.loads(told("prune_singletons", "--format=json"))["runs"] == 1
    assert runs().count() == 0


def test_it_can_be_quiet() -> None:
    has_run(ago=31 * DAY)
    assert told("prune_singletons", "-v0") == told("prune_singletons", "-v0", "--format=json") == ""
    assert runs().count() == 0


def test_how_much_history_there_is_is_a_setting(settings: Settings) -> None:
    settings.SINGLEJOB = {"HISTORY_DAYS": 100, "HISTORY_KEEP": 1}
    for _ in range(3):
        has_run(ago=31 * DAY)
    assert told("prune_singletons").startswith("Runs deleted: 2.\n")
    settings.SINGLEJOB = {"HISTORY_DAYS": 0}
    assert told("prune_singletons").startswith("Runs deleted: 1.\n")


@pytest.mark.parametrize("number", ["-1", "1.5", "many", ""])
def test_what_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(CommandError, match=f"'{number}' is not a whole number of 0 or more"):
        told("prune_singletons", f"--days={number}")


def test_longer_than_there_is_time_prunes_nothing() -> None:
    has_run(ago=DAY)
    assert told("prune_singletons", "--days", "2147483647").startswith("Runs deleted: 0.\n")
