from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import registry, singleton_job
from django_singlejob.clock import DBNow
from django_singlejob.exceptions import DuplicateJob
from django_singlejob.locking.clear import clear
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.results import ending
from django_singlejob.worker.due import keep_up
from tests.contract.acts import everything, expire, gate, lock, start_run, take

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

SUCCESS = ending(None, duration=MINUTE, acquire_duration=SECOND)

TITLES = ["JOB", "STATE", "HOLDER", "LAST RUN", "NEXT SLOT"]


def told(*arguments: str, status: int = 0) -> str:
    """What the command says on its standard output when it exits with that status."""
    output = StringIO()
    with pytest.raises(SystemExit) if status else nullcontext() as ended:
        call_command("singleton_status", *arguments, stdout=output, no_color=True)
    assert ended is None or ended.value.code == status
    return output.getvalue()


def facts(*arguments: str, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told("--format", "json", *arguments, status=status))
    return found


def schedule(name: str = "nightly", **settings: Any) -> None:
    """The job is registered, and somebody has asked for it."""
    singleton_job(name, **{"schedule": "30 2 * * *"} | settings)(print)
    keep_up()


def change(name: str = "nightly", **columns: Any) -> None:
    assert gates().filter(name=name).update(**columns) == 1


@pytest.fixture
def trouble(fresh_process: None, db: None) -> None:
    """One job of each kind."""
    for name in "failing", "idle", "overdue", "overrunning", "paused", "stale":
        schedule(name)
        change(name, next_slot=DBNow() + HOUR + 30 * SECOND)
    singleton_job("unseen", schedule="@daily")(print)
    take("block")
    change("failing", consecutive_failures=3)
    change("overdue", next_slot=DBNow() - 2 * DAY - 90 * MINUTE)
    start_run("overrunning")
    locks().filter(name="overrunning").update(acquired_at=DBNow() - 2 * HOUR - 30 * SECOND)
    change("overrunning", mean_duration=MINUTE, run_count=5)
    change("paused", paused=True)
    start_run("stale")
    expire("stale")


# --- the table


def rows(text: str) -> list[list[str]]:
    """The cells of the table: each begins where its title does."""
    titles, *lines = text.splitlines()[2:]
    begins = [titles.index(title) for title in TITLES]
    ends = [*begins[1:], None]
    for line in lines:
        assert all(line[begin - 2 : begin].isspace() for begin in begins[1:] if begin <= len(line)), line
        assert line == line.rstrip()
    return [[line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)] for line in lines]


def row(name: str = "nightly") -> dict[str, str]:
    (cells,) = (cells for cells in rows(told()) if cells[0] == name)
    return dict(zip(TITLES, cells, strict=True))


def test_where_there_is_nothing_it_is_well() -> None:
    assert told("--check") == "OK: all is well. Jobs and locks: 0.\n"


@pytest.mark.usefixtures("trouble")
def test_the_first_line_says_what_is_wrong_the_worst_first() -> None:
    assert told().startswith(
        "CRITICAL: 1 stale (stale), 1 overdue (overdue), 1 failing (failing), 1 overrunning (overrunning), "
        "1 never asked for (unseen). Jobs and locks: 8.\n\n"
    )


def test_several_of_a_kind_are_told_together() -> None:
    for name in "hourly", "nightly":
        singleton_job(name, schedule="@daily")(print)
    assert told().startswith("WARNING: 2 never asked for (hourly, nightly). Jobs and locks: 2.\n")


@pytest.mark.usefixtures("trouble")
def test_each_job_has_a_line_of_its_own() -> None:
    assert [cells[:2] for cells in rows(told())] == [
        ["block", "running"],
        ["failing", "failing"],
        ["idle", "idle"],
        ["overdue", "overdue"],
        ["overrunning", "overrunning"],
        ["paused", "paused"],
        ["stale", "stale"],
        ["unseen", "never asked for"],
    ]


@pytest.mark.usefixtures("trouble")
def test_it_says_who_holds_a_lock_and_for_how_long() -> None:
    assert row("overrunning")["HOLDER"] == f"{lock('overrunning').holder} for 2 hours"
    assert row("idle")["HOLDER"] == ""


@pytest.mark.usefixtures("trouble")
def test_it_says_when_a_slot_is_due_or_was() -> None:
    def instant(name: str) -> str:
        return f"{gate(name).next_slot:%Y-%m-%d %H:%M:%S} UTC"

    assert row("idle")["NEXT SLOT"] == f"{instant('idle')}, in 1 hour"
    assert row("overdue")["NEXT SLOT"] == f"{instant('overdue')}, 2 days 1 hour ago"
    assert row("unseen")["NEXT SLOT"] == ""


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (2 * DAY + 3 * HOUR + 59 * MINUTE, "2 days 3 hours"),
        (DAY + 30 * SECOND, "1 day"),
        (HOUR + 2 * MINUTE + 20 * SECOND, "1 hour 2 minutes"),
        (2 * HOUR + 20 * SECOND, "2 hours"),
    ],
    ids=str,
)
def test_it_says_how_the_last_run_ended_and_how_long_ago(ago: timedelta, words: str) -> None:
    schedule()
    assert row()["LAST RUN"] == ""
    change(last_status="failed", last_finished_at=DBNow() - ago)
    assert row()["LAST RUN"] == f"failed {words} ago"


def test_what_happened_just_now_is_told_in_seconds() -> None:
    schedule()
    change(last_status="successful", last_finished_at=DBNow() - SECOND / 2)
    number, unit = row()["LAST RUN"].removeprefix("successful ").removesuffix(" ago").split()
    assert unit.startswith("second")
    assert number.isdecimal()


def test_when_a_holder_died_nobody_knows() -> None:
    schedule()
    start_run().finish(SUCCESS)
    start_run()
    expire()
    assert clear(lock())
    assert gate().last_finished_at
    assert row()["LAST RUN"] == "abandoned"
    start_run()
    assert row()["LAST RUN"] == ""


# --- JSON


@pytest.mark.usefixtures("trouble")
def test_json_has_the_level_of_all_and_of_each() -> None:
    found = facts()
    assert found["level"] == "critical"
    assert {job["name"]: (job["state"], job["level"]) for job in found["jobs"]} == {
        "block": ("running", "ok"),
        "failing": ("failing", "critical"),
        "idle": ("idle", "ok"),
        "overdue": ("overdue", "critical"),
        "overrunning": ("overrunning", "warning"),
        "paused": ("paused", "ok"),
        "stale": ("stale", "critical"),
        "unseen": ("unseen", "warning"),
    }


def test_json_has_instants_as_text_and_durations_as_seconds() -> None:
    schedule(time_zone="Europe/Rome")
    start_run().finish(SUCCESS)
    start_run()
    change(
        mean_duration=1.5 * MINUTE, consecutive_failures=2, misfire_count=3, coalesced_count=5, last_slot=DBNow() - DAY
    )
    (job,) = facts()["jobs"]
    status, held = gate(), lock()
    assert job == {
        "name": "nightly",
        "state": "failing",
        "level": "critical",
        "schedule": "At 02:30 every day (Europe/Rome)",
        "next_slot": iso(status.next_slot),
        "last_slot": iso(status.last_slot),
        "paused": False,
        "last_started_at": iso(status.last_started_at),
        "last_finished_at": iso(status.last_finished_at),
        "last_status": "successful",
        "consecutive_failures": 2,
        "run_count": 1,
        "mean_duration": 90.0,
        "misfire_count": 3,
        "coalesced_count": 5,
        "holder": {
            "name": "nightly",
            "hostname": held.hostname,
            "pid": held.pid,
            "command": held.command,
            "acquired_at": iso(held.acquired_at),
            "heartbeat_at": iso(held.heartbeat_at),
            "expires_at": iso(held.expires_at),
            "slot": None,
            "attempt": 1,
        },
    }
    assert datetime.fromisoformat(job["next_slot"]).utcoffset() == timedelta()


def iso(instant: datetime | None) -> str:
    assert instant
    return instant.astimezone(UTC).isoformat()


def test_json_has_null_for_what_nobody_knows() -> None:
    singleton_job("nightly", schedule="@daily")(print)
    (job,) = facts()["jobs"]
    named = {key: job.pop(key) for key in ("name", "state", "level", "schedule")}
    assert named == {
        "name": "nightly",
        "state": "unseen",
        "level": "warning",
        "schedule": "At 00:00 every day (UTC)",
    }
    assert job.pop("run_count") == 0
    assert {*job.values()} == {None}


def test_json_without_jobs_is_json() -> None:
    assert facts("--check") == {"level": "ok", "jobs": []}


# --- the exit status


def test_it_is_0_when_all_is_well() -> None:
    schedule()
    assert told("--check").startswith("OK: all is well. Jobs and locks: 1.\n")


def test_it_is_1_for_a_warning() -> None:
    singleton_job("nightly", schedule="@daily")(print)
    assert told("--check", status=1).startswith("WARNING: 1 never asked for (nightly). ")
    assert facts("--check", status=1)["level"] == "warning"


@pytest.mark.usefixtures("trouble")
def test_it_is_2_when_it_is_critical() -> None:
    assert told("--check", status=2).startswith("CRITICAL: ")
    assert facts("--check", status=2)["level"] == "critical"


@pytest.mark.usefixtures("trouble")
def test_it_is_0_for_whoever_does_not_check() -> None:
    before = everything()
    assert told().startswith("CRITICAL: ")
    assert everything() == before


@committed
def test_it_is_3_when_the_database_is_away(database_away: Away) -> None:
    with database_away():
        assert told("--check", status=3).startswith("UNKNOWN: The database cannot be asked: ")
        found = facts("--check", status=3)
    assert found["level"] == "unknown"
    assert found["error"].startswith("The database cannot be asked: ")


@committed
def test_it_is_69_then_for_whoever_does_not_check(database_away: Away) -> None:
    with database_away(), pytest.raises(CommandError, match=r"The database cannot be asked: .") as refusal:
        told()
    assert refusal.value.returncode == 69


WRONG = [
    ({"MAX_CATCH_UP": 0}, r"SINGLEJOB\['MAX_CATCH_UP'\] is 0, but must be a whole number, 1 or more"),
    ([], r"SINGLEJOB is \[\], but must be a dict"),
]


@pytest.mark.parametrize(("given", "problem"), WRONG, ids=str)
def test_settings_that_cannot_work_are_status_2(settings: Settings, given: object, problem: str) -> None:
    settings.SINGLEJOB = given
    with pytest.raises(CommandError, match=problem) as refusal:
        told()
    assert refusal.value.returncode == 2


@pytest.mark.parametrize("given", [given for given, _ in WRONG], ids=str)
def test_or_3_to_monitoring(settings: Settings, given: object) -> None:
    settings.SINGLEJOB = given
    assert told("--check", status=3).startswith("UNKNOWN: SINGLEJOB")


def broken(error: Exception) -> Any:
    def autodiscover() -> None:
        raise error

    return autodiscover


def test_jobs_that_cannot_be_registered_are_status_2_or_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "autodiscover", broken(DuplicateJob("Two jobs are called 'nightly'.")))
    with pytest.raises(CommandError, match="Two jobs are called 'nightly'") as refusal:
        told()
    assert refusal.value.returncode == 2
    assert told("--check", status=3) == "UNKNOWN: Two jobs are called 'nightly'.\n"


def test_an_error_in_a_jobs_module_is_no_mere_warning_to_monitoring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "autodiscover", broken(ZeroDivisionError("division by zero")))
    with pytest.raises(ZeroDivisionError):
        told()
    assert told("--check", status=3) == "UNKNOWN: ZeroDivisionError: division by zero\n"
