"""The position of a schedule when it moves without a run. Each move is one conditional write, and the first process
wins."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import Job
from django_singlejob.jobs.schedule import parse
from django_singlejob.jobs.slots import Claim, MisfireOutcome, Misfires
from django_singlejob.locking.position import follow, is_followed, leave, moved, pass_by, report_misfires
from django_singlejob.models.jobs import gates
from django_singlejob.signals import slot_misfired
from tests.contract.acts import everything, gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob.models import JobStatus

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
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


def test_a_row_follows_the_schedule_that_it_is_at() -> None:
    assert is_followed(on(HOURLY, next_slot=TEN), HOURLY)


@pytest.mark.parametrize(
    "values", [{"schedule": "5 * * * *"}, {"time_zone": "Europe/Rome"}, {"next_slot": None}], ids=str
)
def test_and_no_other(values: dict[str, Any]) -> None:
    on(HOURLY, next_slot=TEN)
    assert not is_followed(status(**values), HOURLY)


def test_it_begins_with_the_next_slot_from_now() -> None:
    follow(status(), HOURLY, NOW)
    assert (gate().schedule, gate().time_zone, gate().next_slot) == ("0 * * * *", "UTC", ELEVEN)
    assert is_followed(gate(), HOURLY)


def test_a_slot_that_is_now_is_the_next_one() -> None:
    follow(status(), HOURLY, TEN)
    assert gate().next_slot == TEN


@pytest.mark.parametrize(("early", "begins_at"), [(19 * MINUTE, ELEVEN), (21 * MINUTE, TEN)], ids=str)
def test_for_a_cron_daemon_it_may_be_the_one_just_gone_by(early: timedelta, begins_at: datetime) -> None:
    follow(status(), HOURLY, NOW, early)
    assert gate().next_slot == begins_at


def test_but_never_one_that_was_run() -> None:
    follow(status(schedule="@daily", last_slot=TEN, last_started_at=TEN), HOURLY, NOW, 21 * MINUTE)
    assert gate().next_slot == ELEVEN


def test_nor_one_that_a_call_may_have_been_for() -> None:
    follow(status(last_started_at=NOW - MINUTE), HOURLY, NOW, 21 * MINUTE)
    assert gate().next_slot > NOW  # type: ignore[operator]


def test_a_row_that_changed_since_it_was_seen_is_left(heard: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen = on(parse("@daily"), next_slot=TEN)
    for changes in {"next_slot": ELEVEN}, {"next_slot": TEN, "schedule": "1 * * * *"}, {"next_slot": None}:
        status(**changes)
        before = everything()
        follow(seen, HOURLY, NOW)
        leave(seen)
        assert not pass_by(seen, Claim(None, ELEVEN, [Misfires(TEN, TEN, 1, MisfireOutcome.DROPPED)]))
        assert everything() == before
    assert heard == []
    assert not caplog.records


# --- one write each


def test_each_is_one_conditional_write() -> None:
    claim = Claim(None, ELEVEN, [])
    acts = [
        lambda: follow(status(), HOURLY, NOW),
        lambda: leave(status()),
        lambda: pass_by(on(HOURLY, next_slot=TEN), claim),
    ]
    for act in acts:
        *_, last = written(act)
        where = last.partition("WHERE")[2]
        assert last.startswith("UPDATE")
        assert all(column in where for column in ("name", "schedule", "time_zone", "next_slot"))


# --- what is lost


def test_a_slot_that_was_due_when_the_schedule_changed_is_dropped(heard: list[Any]) -> None:
    follow(on(parse("@daily"), next_slot=TEN), HOURLY, NOW)
    assert gate().misfire_count == 1
    assert heard == [
        {"sender": Job, "name": "nightly", "slot": TEN, "reason": MisfireOutcome.DROPPED, "first": TEN, "count": 1}
    ]


def test_one_that_was_not_is_none(heard: list[Any]) -> None:
    follow(on(parse("@daily"), next_slot=ELEVEN), HOURLY, NOW)
    assert gate().misfire_count == 0
    assert heard == []


def test_a_schedule_that_is_no_more_is_forgotten() -> None:
    leave(on(HOURLY, next_slot=TEN, misfire_count=3, paused=True, fence=7))
    seen = gate()
    assert (seen.schedule, seen.time_zone, seen.next_slot) == ("", "", None)
    assert (seen.misfire_count, seen.paused, seen.fence) == (3, True, 8)


def test_slots_that_are_passed_by_are_counted_and_told(heard: list[Any]) -> None:
    seen = on(HOURLY, next_slot=TEN - 4 * HOUR, misfire_count=2)
    assert pass_by(seen, Claim(None, ELEVEN, [Misfires(TEN - 4 * HOUR, TEN, 5, MisfireOutcome.DROPPED)]))
    assert (gate().next_slot, gate().misfire_count) == (ELEVEN, 7)
    assert heard == [
        {
            "sender": Job,
            "name": "nightly",
            "slot": TEN,
            "reason": MisfireOutcome.DROPPED,
            "first": TEN - 4 * HOUR,
            "count": 5,
        },
    ]


def test_what_a_claim_changes() -> None:
    assert moved(Claim(TEN, ELEVEN, [])) == {"next_slot": ELEVEN}
    late = [Misfires(TEN - HOUR, TEN - HOUR, 1, MisfireOutcome.COALESCED), Misfires(TEN, TEN, 1, MisfireOutcome.LATE)]
    gates().remember("nightly")
    gates().update(misfire_count=40, next_slot=TEN)
    gates().update(**moved(Claim(TEN, ELEVEN, late)))
    assert (gate().misfire_count, gate().next_slot) == (42, ELEVEN)


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
