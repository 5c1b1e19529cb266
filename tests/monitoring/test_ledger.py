"""What became of each slot: nights in the past, staged by their runs and notes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob.jobs.schedule import latest_slot, parse, slots_between
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.notes import notes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring import ledger
from django_singlejob.monitoring.causes import Cause
from django_singlejob.monitoring.ledger import Ledger, SlotOutcome, ledger_of, scheduled_jobs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Order, place
from django_singlejob.worker.due import follow_code
from tests.contract.acts import HOUR, MINUTE, SECOND, hourly, scheduled

if TYPE_CHECKING:
    from collections.abc import Iterable

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

NIGHT = datetime(2025, 10, 20, tzinfo=UTC)
DAY = timedelta(days=1)


def of(begin: datetime = NIGHT, length: timedelta = DAY) -> Ledger:
    return ledger_of("nightly", begin, begin + length)


def counts(found: Ledger) -> dict[str, int]:
    return {outcome.value: count for outcome, count in found.counts.items()}


def told(found: Ledger) -> list[tuple[str, int]]:
    """The outcome of each stretch, and how many slots it has."""
    return [(stretch.outcome.value, len(stretch.slots)) for stretch in found.stretches]


def causes(found: Ledger) -> list[Cause | None]:
    return [stretch.answer and stretch.answer.cause for stretch in found.stretches]


def ran(slot: datetime | None, **facts: Any) -> None:
    """The slot has a run, which began a second after it and took as long."""
    columns: dict[str, Any] = {"job_name": "nightly", "fence": 1, "token": uuid4(), "hostname": "web-1", "pid": 1}
    columns |= {"lock": "nightly", "trigger": "schedule", "status": "successful", "slot": slot}
    started = facts.get("started_at") or (slot or NIGHT) + SECOND
    runs().create(**{**columns, "started_at": started, "finished_at": started + SECOND, **facts})


def all_ran(slots: Iterable[datetime], *missed: datetime, **facts: Any) -> None:
    for slot in slots:
        if slot not in missed:
            ran(slot, **facts)


def night(schedule: Any = "@hourly", zone: str = "UTC", begin: datetime = NIGHT, until: datetime = NIGHT + DAY) -> Any:
    """The slots of a night, and the first one after it, so that it is known that the schedule has moved on."""
    return slots_between(parse(schedule, zone), begin - MINUTE / 60, until)


def noted(kind: str, at: datetime, **facts: Any) -> None:
    notes().create(job_name="nightly", kind=kind, at=at, **facts)


def changed(at: datetime, before: str, after: str, first: datetime | None = None) -> None:
    details = json.dumps({"before": [before, before and "UTC"], "after": [after, after and "UTC"]})
    noted("schedule_changed", at, first_slot=first, details=details)


# --- slots with runs


def test_each_slot_ran_once() -> None:
    scheduled(schedule="@hourly")
    all_ran(night())
    found = of()
    assert (counts(found), told(found), found.left_out) == ({"ran": 24}, [], 0)
    assert (found.since, found.is_cut) == (NIGHT, False)


def test_two_successful_runs_of_one_slot_are_one_too_many() -> None:
    scheduled(schedule="@hourly")
    all_ran(night())
    ran(NIGHT + 3 * HOUR, hostname="web-2")
    found = of()
    assert counts(found) == {"ran": 23, "twice": 1}
    (stretch,) = found.stretches
    assert stretch.slots == [NIGHT + 3 * HOUR]
    assert stretch.answer
    assert [word in " ".join(stretch.answer.evidence) for word in ("web-1", "web-2")] == [True, True]


@pytest.mark.parametrize(
    ("attempts", "outcome"),
    [
        ([{"status": "abandoned"}, {"attempt": 2}], "ran"),
        ([{"status": "interrupted"}, {"attempt": 2, "status": "failed"}], "failed"),
        ([{"status": "failed"}, {"trigger": "manual"}], "ran"),
        ([{"status": "failed"}, {"status": "failed"}], "twice"),
        ([{}, {"attempt": 2, "status": "failed"}], "twice"),
        ([{"status": "skipped"}], "skipped"),
        ([{"status": "running", "finished_at": None}], "running"),
        ([{"status": "abandoned", "attempt": number} for number in (1, 2, 3)], "cut_off"),
    ],
)
def test_the_attempts_at_a_slot_are_one_run(attempts: list[dict[str, Any]], outcome: str) -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + HOUR)
    for number, attempt in enumerate(attempts):
        ran(NIGHT + HOUR, started_at=NIGHT + HOUR + number * MINUTE, **attempt)
    assert of().counts[SlotOutcome(outcome)] == (24 if outcome == "ran" else 1)


def test_what_somebody_stopped_was_not_missed() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + HOUR)
    ran(NIGHT + HOUR, status="interrupted")
    stopped = runs().get(status="interrupted")
    noted("stopped", NIGHT + HOUR + SECOND, by="anna", details=str(stopped.token))
    assert told(of()) == [("stopped", 1)]


def newest_of(job: Any) -> datetime:
    """The newest slot of a job that some server asks for, and has for long."""
    follow_code()
    notes().delete()
    return latest_slot(job.policy.schedule, database_now())


def test_a_slot_that_was_cut_off_is_due_while_it_may_be_run_again() -> None:
    slot = newest_of(scheduled(schedule=timedelta(hours=1)))
    ran(slot, status="abandoned", finished_at=database_now())
    gates().update(abandoned=True, last_slot=slot)
    assert counts(ledger_of("nightly", slot, slot + HOUR)) == {"due": 1}
    runs().update(finished_at=DBNow() - HOUR)
    assert counts(ledger_of("nightly", slot, slot + HOUR)) == {"cut_off": 1}


def test_slots_that_failed_with_the_same_error_are_told_once() -> None:
    scheduled(schedule="@hourly")
    failed = [NIGHT + number * HOUR for number in (3, 4, 5, 6)]
    all_ran(night(), *failed)
    for slot, error in zip(failed, ["KeyError", "KeyError", "KeyError", "ValueError"], strict=True):
        ran(slot, status="failed", error=error)
    found = of()
    assert told(found) == [("failed", 3), ("failed", 1)]
    assert causes(found) == [Cause.FAILED, Cause.FAILED]


# --- slots without


def test_a_slot_without_a_run_was_missed() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + 3 * HOUR, NIGHT + 4 * HOUR)
    found = of()
    assert (counts(found), told(found)) == ({"ran": 22, "missed": 2}, [("missed", 2)])
    assert causes(found) == [Cause.NOT_KNOWN]  # what ran later was too late, although no note says so


def test_why_it_was_missed_may_not_be_known() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(until=NIGHT + 6 * HOUR))
    found = of(length=8 * HOUR)
    assert (told(found), causes(found)) == ([("missed", 1)], [Cause.NOT_KNOWN])


@pytest.mark.parametrize(
    ("catch_up", "outcome"), [("latest", "taken_together"), ("none", "taken_together"), ("all", "missed")]
)
def test_slots_in_whose_place_a_later_one_ran_in_time_are_an_outcome_of_their_own(catch_up: str, outcome: str) -> None:
    scheduled(schedule="* * * * *", catch_up=catch_up)
    all_ran(night("* * * * *", until=NIGHT + HOUR), *(NIGHT + number * MINUTE for number in (5, 6, 7)))
    assert told(of(length=HOUR)) == [(outcome, 3)]


def test_those_that_were_too_late_were_missed() -> None:
    scheduled(schedule="* * * * *")
    gone = [NIGHT + number * MINUTE for number in range(10, 30)]
    all_ran(night("* * * * *", until=NIGHT + HOUR), *gone)
    noted("missed", gone[-1], first_slot=gone[0], last_slot=gone[15], number=16, details="coalesced")
    found = of(length=HOUR)
    assert told(found) == [("missed", 16), ("taken_together", 4)]
    assert causes(found) == [Cause.GIVEN_UP, None]


def test_what_began_after_a_slot_was_passed_over_has_not_held_it() -> None:
    scheduled(schedule=SECOND, catch_up="all")
    for number in (0, 1, 2, 3, 5, 6, 7):
        slot = NIGHT + number * SECOND
        ran(slot, started_at=slot + SECOND / 5, finished_at=slot + SECOND / 2)
    found = of(length=8 * SECOND)
    assert (told(found), causes(found)) == ([("missed", 1)], [Cause.NOT_KNOWN])


def test_what_was_still_running_has() -> None:
    scheduled(schedule=SECOND, catch_up="all")
    ran(NIGHT, finished_at=NIGHT + 5 * SECOND)
    ran(NIGHT + 5 * SECOND)
    found = of(length=6 * SECOND)
    assert (told(found), causes(found)) == ([("missed", 4)], [Cause.HELD_BY_ITSELF])


def test_a_retry_that_was_successful_has_run_its_slot() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + HOUR)
    ran(NIGHT + HOUR, status="failed", attempt=2)
    ran(None, retried_slot=NIGHT + HOUR, attempt=2, trigger="one_off", started_at=NIGHT + HOUR + MINUTE)
    found = of()
    assert (told(found), found.counts[SlotOutcome.RAN]) == ([], 24)


def test_one_that_failed_too_has_failed() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + HOUR)
    ran(NIGHT + HOUR, status="failed")
    ran(None, retried_slot=NIGHT + HOUR, status="failed", trigger="one_off", started_at=NIGHT + HOUR + MINUTE)
    assert told(of()) == [("failed", 1)]


def test_a_pause_is_one_line_and_so_is_the_next() -> None:
    scheduled(schedule="* * * * *")
    gone = [NIGHT + number * MINUTE for number in range(10, 50)]
    all_ran(night("* * * * *", until=NIGHT + HOUR), *gone)
    noted("paused", gone[0] - SECOND, by="anna", reason="supplier down")
    noted("paused", gone[25] - SECOND, by="bob")
    noted("resumed", gone[-1] + SECOND)
    found = of(length=HOUR)
    assert told(found) == [("paused", 25), ("paused", 15)]
    first, second = (stretch.answer for stretch in found.stretches)
    assert first
    assert second
    assert ("anna (supplier down)" in first.sentence, "bob" in second.sentence) == (True, True)


@pytest.mark.parametrize(("ago", "outcome"), [(2 * MINUTE, "due"), (10 * MINUTE, "missed")])
def test_a_slot_that_may_still_run_in_time_is_due(ago: timedelta, outcome: str) -> None:
    slot = newest_of(scheduled(schedule=hourly(ago=ago)))
    gates().update(next_slot=slot)
    assert counts(ledger_of("nightly", slot - DAY, slot + HOUR)) == {outcome: 1}


def test_slots_to_come_are_not_in_it() -> None:
    scheduled(schedule=timedelta(hours=1))
    follow_code()
    found = ledger_of("nightly", database_now() - DAY, database_now() + DAY)
    assert (found.since, counts(found)) == (None, {})


# --- what is known


def test_of_a_job_that_nobody_has_asked_for_there_is_no_record() -> None:
    scheduled(schedule="@hourly")
    assert of().since is None


def test_it_begins_with_the_oldest_run_if_no_note_tells_of_the_schedule() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(begin=NIGHT + 6 * HOUR))
    found = of()
    assert (found.since, counts(found)) == (NIGHT + 6 * HOUR, {"ran": 18})


def test_it_begins_with_the_first_schedule() -> None:
    scheduled(schedule="@hourly")
    changed(NIGHT + 6.5 * HOUR, "", "0 * * * *", first=NIGHT + 7 * HOUR)
    all_ran(night(begin=NIGHT + 8 * HOUR))
    found = of()
    assert (found.since, counts(found)) == (NIGHT + 7 * HOUR, {"missed": 1, "ran": 16})


def test_a_slot_whose_run_may_have_been_pruned_has_no_record() -> None:
    scheduled(schedule="@hourly")
    gates().remember("nightly")
    gates().update(run_count=500)
    changed(NIGHT - DAY, "", "0 * * * *")
    noted("paused", NIGHT + 90 * MINUTE, by="anna")
    noted("resumed", NIGHT + 150 * MINUTE)
    all_ran(night(begin=NIGHT + 6 * HOUR))
    assert told(of()) == [("no_record", 6)]  # after the pause, the slot may have run


def test_a_schedule_that_was_changed_counts_until_then() -> None:
    scheduled(schedule="0 */2 * * *")
    noon = NIGHT + DAY / 2
    changed(noon + MINUTE, "*/30 * * * *", "0 */2 * * *", first=noon + 2 * HOUR)
    all_ran(night("*/30 * * * *", until=noon))
    all_ran(night("0 */2 * * *", begin=noon + HOUR))
    found = of()
    assert (counts(found), told(found)) == ({"ran": 25 + 5}, [])


def test_a_run_of_no_known_schedule_is_not_wrong() -> None:
    scheduled(schedule="@hourly")
    all_ran(night())
    ran(NIGHT + 90 * MINUTE)
    found = of()
    assert (counts(found), told(found)) == ({"ran": 24, "schedule_not_known": 1}, [("schedule_not_known", 1)])


def test_where_a_note_is_missing_no_slot_is_missed() -> None:
    scheduled(schedule="@hourly")
    all_ran(night())
    changed(NIGHT + 12.5 * HOUR, "0 * * * *", "15 3 * * *")
    assert counts(of()) == {"ran": 13, "schedule_not_known": 11}


def test_without_a_schedule_it_still_has_that_of_then() -> None:
    scheduled(schedule=None)
    all_ran(night(until=NIGHT + DAY / 2))
    changed(NIGHT + 12.5 * HOUR, "0 * * * *", "")
    assert counts(of()) == {"ran": 13}


def test_jobs_with_a_schedule_in_the_code_or_in_the_database() -> None:
    scheduled("hourly")
    scheduled("manual", schedule=None)
    gates().remember("gone", "hidden", "lock")
    gates().filter(name__in=["gone", "hidden"]).update(schedule="0 3 * * *", time_zone="UTC")
    gates().filter(name="hidden").update(hidden=True)
    assert scheduled_jobs() == ["gone", "hourly"]


# --- changes of clocks


@pytest.mark.parametrize(
    ("day", "schedule", "expected"),
    [
        ((2025, 3, 30), "*/30 * * * *", 46),
        ((2025, 3, 30), "30 2 * * *", 1),
        ((2025, 3, 30), "30 * * * *", 23),
        ((2025, 10, 26), "*/30 * * * *", 50),
        ((2025, 10, 26), "30 2 * * *", 1),
        ((2025, 10, 26), "30 2-3 * * *", 2),
    ],
)
def test_on_a_day_on_which_clocks_change(day: tuple[int, int, int], schedule: str, expected: int) -> None:
    job = scheduled(schedule=schedule, time_zone="Europe/Berlin")
    zone = job.policy.schedule.zone
    begin = datetime(*day, tzinfo=zone)
    end = (begin + DAY).replace(tzinfo=zone)
    all_ran(night(schedule, "Europe/Berlin", begin.astimezone(UTC) - DAY, end.astimezone(UTC) + DAY))
    assert counts(ledger_of("nightly", begin, end)) == {"ran": expected}
    between = runs().filter(slot__gte=begin, slot__lt=end)
    between.filter(pk=between.order_by("slot")[0].pk).delete()
    assert ledger_of("nightly", begin, end).counts[SlotOutcome.MISSED] == 1


# --- bounds


@pytest.mark.parametrize("schedule", [timedelta(seconds=1), "* * * * *"])
def test_of_very_many_slots_the_newest_are_looked_at(monkeypatch: pytest.MonkeyPatch, schedule: Any) -> None:
    scheduled(schedule=schedule)
    ran(NIGHT)
    monkeypatch.setattr(ledger, "MOST_SLOTS", 100)
    found = of()
    assert (found.is_cut, found.counts.total()) == (True, 100)


def test_of_very_many_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled(schedule="@hourly")
    all_ran(night())
    monkeypatch.setattr(ledger, "MOST_SLOTS", 10)
    found = of()
    assert found.is_cut
    assert {*counts(found)} == {"ran"}


def test_however_many_slots_were_missed_the_queries_are_some_hundreds() -> None:
    scheduled(schedule="* * * * *", catch_up="all")
    all_ran(night("*/2 * * * *"))
    with CaptureQueriesContext(connection) as queries:
        found = of()
    assert (found.counts[SlotOutcome.MISSED], len(found.stretches), found.left_out) == (720, 50, 670)
    assert sum(stretch.answer is not None for stretch in found.stretches) == ledger.MOST_ANSWERS
    assert len(queries) < 300


def test_if_nothing_was_missed_the_queries_are_few() -> None:
    scheduled(schedule="* * * * *")
    all_ran(night("* * * * *", until=NIGHT + 3 * HOUR))
    with CaptureQueriesContext(connection) as queries:
        of(length=3 * HOUR)
    assert len(queries) <= 8


def test_the_worst_are_told_first_if_there_are_too_many() -> None:
    scheduled(schedule="* * * * *")
    all_ran(night("*/2 * * * *", until=NIGHT + 4 * HOUR), NIGHT + 3 * HOUR)
    ran(NIGHT + 3.5 * HOUR)
    found = of(length=4 * HOUR)
    assert ("twice", 1) in told(found)
    assert found.left_out == 120 - 1 - 49 + 2


def test_a_slot_whose_attempts_are_used_up_is_not_due_again() -> None:
    slot = newest_of(scheduled(schedule=timedelta(hours=1), max_attempts=1))
    ran(slot, status="abandoned", finished_at=database_now())
    gates().update(abandoned=True, last_slot=slot, last_attempt=1)
    assert counts(ledger_of("nightly", slot, slot + HOUR)) == {"cut_off": 1}


def test_a_retry_that_was_cut_off_and_waits_is_due() -> None:
    slot = newest_of(scheduled(schedule=timedelta(hours=1), retries=1))
    ran(slot, status="failed")
    times = {"started_at": slot + MINUTE, "finished_at": slot + 2 * MINUTE}
    ran(None, retried_slot=slot, attempt=2, status="interrupted", trigger="one_off", **times)
    place(Order(job_name="nightly", max_attempts=3), [], {}, retried_slot=slot, attempt=1)
    assert counts(ledger_of("nightly", slot, slot + HOUR)) == {"due": 1}


def test_a_slot_whose_grant_was_given_back_is_due() -> None:
    job = scheduled(schedule=MINUTE)
    slot = newest_of(job) - MINUTE
    ran(slot - 2 * MINUTE)
    gates().update(abandoned=True, last_slot=slot, last_attempt=0, next_slot=slot + MINUTE)
    assert counts(ledger_of("nightly", slot - 2 * MINUTE, slot + MINUTE / 2)) == {"ran": 1, "due": 2}


def test_a_schedule_that_replaces_another_before_its_first_slot_is_known_from_its_own_first_slot() -> None:
    scheduled(schedule="@hourly")
    changed(NIGHT + 10 * MINUTE, "", "0 12 * * *", NIGHT + 12 * HOUR)
    changed(NIGHT + 20 * MINUTE, "0 12 * * *", "0 * * * *", NIGHT + HOUR)
    noted("missed", NIGHT + 2 * HOUR, first_slot=NIGHT + HOUR, last_slot=NIGHT + HOUR, number=1, details="dropped")
    all_ran(night(begin=NIGHT + 2 * HOUR))
    found = of()
    assert (counts(found), found.since) == ({"missed": 1, "ran": 22}, NIGHT + HOUR)


def test_a_grace_without_end_is_added_to_no_instant() -> None:
    scheduled(schedule="@hourly", misfire_grace=timedelta.max)
    all_ran(night(), NIGHT + 3 * HOUR)
    assert counts(of()) == {"ran": 23, "taken_together": 1}
