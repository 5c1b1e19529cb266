"""The position of a schedule when it moves without a run. Each move is one conditional write, and the first process
wins."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob.jobs.schedule import parse
from django_singlejob.jobs.slots import Claim, MisfireOutcome, Misfires
from django_singlejob.locking.position import follow, leave, pass_by, report_misfires
from django_singlejob.models.jobs import gates
from django_singlejob.signals import slot_misfired
from tests.contract.acts import everything, gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob.models import JobStatus

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
NOW = datetime(2026, 11, 21, 10, 20, tzinfo=UTC)
TEN, ELEVEN = NOW.replace(minute=0), NOW.replace(hour=11, minute=0)
HOURLY = parse("0 * * * *")


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    """What listeners receive about slots that no server ran in time."""
    heard: list[dict[str, Any]] = []

    def listen(signal: object, **facts: Any) -> None:
        heard.append(facts)

    slot_misfired.connect(listen)
    yield heard
    slot_misfired.disconnect(listen)


def status(**values: Any) -> JobStatus:
    """A gate as it was read."""
    gates().remember("nightly")
    gates().filter(name="nightly").update(**values)
    return gates().look_up({"nightly"}, timedelta())["nightly"]


def on(schedule: Any, **values: Any) -> JobStatus:
    """A gate whose row follows this schedule."""
    return status(schedule=schedule.text, time_zone=schedule.time_zone, **values)


def written(act: Any) -> list[str]:
    """The statements that write. Reads, and the beginning and end of a transaction, are left out."""
    with CaptureQueriesContext(connection) as queries:
        act()
    return [query["sql"] for query in queries if query["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]


# --- which schedule the row follows


def test_a_row_that_changed_since_it_was_seen_is_left(heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen = on(parse("@daily"), next_slot=TEN)
    for changes in {"next_slot": ELEVEN}, {"next_slot": TEN, "schedule": "1 * * * *"}, {"next_slot": None}:
        status(**changes)
        before = everything()
        follow(seen, HOURLY)
        leave(seen)
        assert not pass_by(seen, Claim(None, ELEVEN, [Misfires(TEN, TEN, 1, MisfireOutcome.DROPPED)]))
        assert everything() == before
    assert heard == []
    assert not caplog.records


# --- one write each


def test_each_is_one_conditional_write() -> None:
    claim = Claim(None, ELEVEN, [])
    acts = [
        lambda: follow(status(), HOURLY),
        lambda: leave(status()),
        lambda: pass_by(on(HOURLY, next_slot=TEN), claim),
    ]
    for act in acts:
        *_, last = [statement for statement in written(act) if "jobnote" not in statement]
        where = last.partition("WHERE")[2]
        assert last.startswith("UPDATE")
        assert all(column in where for column in ("name", "schedule", "time_zone", "next_slot"))


# --- what is lost


def test_a_schedule_that_is_no_more_is_forgotten() -> None:
    leave(on(HOURLY, next_slot=TEN, misfire_count=3, paused=True, fence=7))
    seen = gate()
    assert (seen.schedule, seen.time_zone, seen.next_slot) == ("", "", None)
    assert (seen.misfire_count, seen.paused, seen.fence) == (3, True, 8)


@pytest.mark.parametrize(
    ("misfire", "message"),
    [
        (
            Misfires(TEN, TEN, 1, MisfireOutcome.LATE),
            "The job 'nightly' misfired: the slot 2026-11-21 10:00:00 UTC, run late.",
        ),
        (
            Misfires(TEN - 2 * HOUR, TEN, 3, MisfireOutcome.COALESCED),
            (
                "The job 'nightly' misfired: 3 slots from 2026-11-21 08:00:00 UTC to 2026-11-21 10:00:00 UTC, "
                "a later slot was run in its place."
            ),
        ),
        (
            Misfires(TEN - HOUR, TEN, 2, MisfireOutcome.DROPPED),
            "The job 'nightly' misfired: 2 slots from 2026-11-21 09:00:00 UTC to 2026-11-21 10:00:00 UTC, not run.",
        ),
    ],
    ids=["one", "coalesced", "dropped"],
)
def test_the_log_is_told_too(caplog: pytest.LogCaptureFixture, misfire: Misfires, message: str) -> None:
    caplog.set_level(logging.INFO, "django_singlejob")
    report_misfires("nightly", [misfire])
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("INFO", message)


def test_several_are_told_one_by_one(heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    misfires = [
        Misfires(TEN - HOUR, TEN - HOUR, 1, MisfireOutcome.COALESCED),
        Misfires(TEN, TEN, 1, MisfireOutcome.LATE),
    ]
    caplog.set_level(logging.INFO, "django_singlejob")
    report_misfires("nightly", misfires)
    assert [facts["reason"] for facts in heard] == [MisfireOutcome.COALESCED, MisfireOutcome.LATE]
    assert len(caplog.records) == 2
    report_misfires("nightly", [])
    assert len(heard) == 2
