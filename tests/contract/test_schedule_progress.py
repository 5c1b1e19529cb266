"""The schedule's progress is stored in the job's row, and survives deployments, restarts and pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from django_singlejob import Reason, singleton_job
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from django_singlejob.signals import slot_misfired
from django_singlejob.worker.due import follow_code
from tests.contract.acts import (
    HOUR,
    MINUTE,
    about_hourly,
    all_at_once,
    ask_for_slot,
    coming_slot,
    everything,
    fall_behind,
    gate,
    newest_slot,
    run_slot,
    scheduled,
    slots_run,
    start_run,
    take,
    ticked,
)
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.contract.conftest import Ahead

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

ANOTHER_SCHEDULE = {"schedule": "30 2 1 * *"}
ANOTHER_ZONE = {"time_zone": "Asia/Kathmandu"}  # a quarter of an hour off the other zones
AN_INTERVAL = {"schedule": timedelta(days=9_999)}  # no slot is close

on_any_edit = pytest.mark.parametrize(
    "edit", [ANOTHER_SCHEDULE, ANOTHER_ZONE, AN_INTERVAL], ids=["schedule", "zone", "interval"]
)


def edited(job: Any, edit: dict[str, Any]) -> Any:
    """The job in the next release of the code."""
    return scheduled(job.name, **{"schedule": job.schedule, "lock": job.lock, "catch_up": job.catch_up} | edit)


def is_at(job: Any) -> bool:
    """Whether the row has the job's schedule and continues with the next slot from now."""
    status = gate(job.name)
    schedule = job.policy.schedule
    assert status.next_slot
    assert status.next_slot > datetime.now(UTC)
    return (status.schedule, status.time_zone, status.next_slot) == (
        schedule.text,
        schedule.time_zone,
        coming_slot(job),
    )


# --- new, and restarted


def test_a_new_job_begins_at_its_next_slot() -> None:
    job = scheduled(catch_up="all")
    assert ticked() == []
    assert is_at(job)
    assert gate().misfire_count == 0


@pytest.mark.parametrize("slots", [0, 1, 50])
def test_a_restart_moves_nothing(slots: int) -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, slots)
    before = everything()
    follow_code()
    edited(job, {})
    follow_code()
    assert everything() == before


@pytest.mark.parametrize(
    ("schedule", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("0 * * * *", "  0  *  * * *"),
        (timedelta(minutes=90), "P0DT01H30M00S"),
        (timedelta(minutes=90), timedelta(hours=1.5)),
    ],
    ids=str,
)
def test_nor_does_another_spelling(schedule: Any, same: Any) -> None:
    scheduled(schedule=schedule)
    ticked()
    before = everything()
    edited(scheduled(schedule=same), {})
    ticked()
    assert everything() == before


@pytest.mark.slow
def test_nor_do_many_servers_that_start_at_once() -> None:
    jobs = [scheduled(f"job-{number}") for number in range(20)]
    assert all_at_once([ticked] * 4) == [[]] * 4
    assert all(is_at(job) for job in jobs)
    before = everything()
    assert all_at_once([ticked] * 4) == [[]] * 4
    assert everything() == before


def test_the_rows_of_locks_and_of_jobs_without_a_schedule_are_left_alone() -> None:
    singleton_job("plain")(lambda: None)()
    start_run("plain", name="shop").release()
    before = everything()
    ticked()
    assert everything() == before


# --- edited


@on_any_edit
def test_an_edited_job_goes_on_at_its_next_slot_from_now(edit: dict[str, Any]) -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, 0)
    changed = edited(job, edit)
    assert ticked() == []
    assert is_at(changed)
    assert gate().misfire_count == 0


@on_any_edit
@pytest.mark.parametrize("early", [timedelta(), timedelta(minutes=1)], ids=["the worker", "cron"])
def test_so_it_does_when_its_cron_daemon_is_the_first_to_know(edit: dict[str, Any], early: timedelta) -> None:
    job = scheduled(catch_up="all")
    run_slot(job)
    changed = edited(job, edit)
    assert run_slot(changed, early=early).reason == Reason.NOT_DUE
    assert is_at(changed)


@on_any_edit
@pytest.mark.parametrize(("catch_up", "expected"), [("all", 3), ("latest", 1)])
def test_edited_while_due_each_slot_runs_first(edit: dict[str, Any], catch_up: str, expected: int) -> None:
    job = scheduled(catch_up=catch_up)
    fall_behind(job, 3)
    slots = [newest_slot(job, back=number) for number in reversed(range(expected))]
    changed = edited(job, edit)
    ticked()
    assert ticked() == []
    assert slots_run() == [(slot, 1, "successful") for slot in slots]
    assert is_at(changed)


@on_any_edit
def test_so_they_do_on_a_line_of_cron(edit: dict[str, Any]) -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, 2)
    changed = edited(job, edit)
    assert run_slot(changed, early=MINUTE).slot == newest_slot(job, back=1)
    assert gate().schedule == job.policy.schedule.text
    assert run_slot(changed, early=MINUTE).slot == newest_slot(job)
    assert is_at(changed)
    assert run_slot(changed, early=MINUTE).refusal == Reason.NOT_DUE


def test_edited_while_slots_are_due_that_are_too_late_it_goes_on() -> None:
    reported = []

    def listen(name: str, reason: str, slot: datetime, count: int, **_: Any) -> None:
        reported.append((name, reason, slot, count))

    job = scheduled(catch_up="none")
    fall_behind(job, 3)
    due = newest_slot(job)
    changed = edited(job, ANOTHER_SCHEDULE)
    slot_misfired.connect(listen)
    try:
        ticked()
        assert ticked() == []
    finally:
        slot_misfired.disconnect(listen)
    assert is_at(changed)
    assert reported == [("nightly", "dropped", due, 3)]
    assert not runs().exists()


@pytest.mark.parametrize("lock", ["nightly", "shop"])
@on_any_edit
def test_edited_while_running_the_run_ends_well(lock: str, edit: dict[str, Any]) -> None:
    job = scheduled(lock=lock, catch_up="all")
    fall_behind(job)
    lease: Any = ask_for_slot(job)
    changed = edited(job, edit)
    ticked()
    assert is_at(changed)
    assert lease.release()
    assert is_at(changed)
    assert run_slot(changed).reason == Reason.NOT_DUE


@pytest.mark.parametrize("due", [0, 2])
@on_any_edit
def test_edited_while_paused_it_stays_paused(edit: dict[str, Any], due: int) -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, due)
    gates().update(paused=True)
    changed = edited(job, edit)
    assert ticked() == []
    assert run_slot(changed).reason == Reason.PAUSED
    assert due or is_at(changed)
    gates().update(paused=False)
    assert len(ticked()) == due
    assert is_at(changed)


@pytest.mark.slow
def test_edited_in_the_moment_of_a_claim_one_of_them_comes_first(ahead: Ahead) -> None:
    """A server claims the slot just as another release moves the schedule. The schedule must not be moved back."""
    job = scheduled(catch_up="all")
    fall_behind(job, 3)
    second = newest_slot(job, back=1)
    claiming = ahead(lambda: gates().update(next_slot=second))
    changed = edited(job, ANOTHER_SCHEDULE)
    ticked()
    claiming.result(PATIENCE)
    assert gate().next_slot in (second, coming_slot(changed))
    ticked()
    assert is_at(changed)


def test_the_projects_zone_is_that_of_a_job_without_one(settings: Settings) -> None:
    job = scheduled(schedule="@daily")
    ticked()
    assert gate().time_zone == "UTC"
    settings.TIME_ZONE = "Asia/Kathmandu"
    ticked()
    assert gate().time_zone == "Asia/Kathmandu"
    assert is_at(job)
    assert gate().next_slot.astimezone(ZoneInfo("Asia/Kathmandu")).hour == 0  # type: ignore[union-attr]


def test_but_not_of_one_with_its_own_nor_of_an_interval(settings: Settings) -> None:
    scheduled("daily", schedule="@daily", time_zone="Europe/Rome")
    scheduled("often", schedule=timedelta(minutes=7))
    ticked()
    before = everything()
    settings.TIME_ZONE = "Asia/Kathmandu"
    ticked()
    assert everything() == before


# --- the hour of the day, where the job lives


def minutes_ago(zone: str) -> datetime:
    """The minute that began some ten minutes ago, in that zone."""
    return (datetime.now(ZoneInfo(zone)) - 10 * MINUTE).replace(second=0, microsecond=0)


def daily(at: datetime) -> str:
    return f"{at:%-M %-H} * * *"


@pytest.mark.parametrize("projects", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_a_job_runs_by_the_clock_of_its_zone(settings: Settings, projects: str) -> None:
    settings.TIME_ZONE = projects
    then = minutes_ago("Asia/Tokyo")
    here = scheduled("here", schedule=daily(then), time_zone="Asia/Tokyo")
    there = scheduled("there", schedule=daily(then), time_zone="Asia/Karachi")
    for job in here, there:
        assert run_slot(job, early=20 * MINUTE).reason == (None if job is here else Reason.NOT_DUE)
    assert [slot for slot, *_ in slots_run("here")] == [then]
    assert gate("here").next_slot == then + 24 * HOUR
    assert gate("there").next_slot == then + 4 * HOUR


def test_a_job_without_a_zone_runs_by_the_projects(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kathmandu"
    job = scheduled(schedule=daily(minutes_ago("Asia/Kathmandu")))
    assert run_slot(job, early=20 * MINUTE).status == "successful"


# --- removed, unknown, and back again


def test_a_schedule_that_was_taken_away_is_forgotten() -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, 3)
    without = edited(job, {"schedule": None})
    assert ticked() == []
    status = gate()
    assert (status.schedule, status.time_zone, status.next_slot) == ("", "", None)
    before = everything()
    assert ticked() == []
    assert everything() == before
    assert without() is not None
    again = edited(job, {})
    assert ticked() == []
    assert is_at(again)


# --- paused


@pytest.mark.parametrize("lock", ["nightly", "shop"])
def test_a_paused_job_keeps_its_slot(lock: str) -> None:
    job = scheduled(lock=lock)
    fall_behind(job, 3)
    gates().remember(lock)
    gates().filter(name="nightly").update(paused=True)
    before = everything()
    assert ticked() == []
    assert run_slot(job).reason == Reason.PAUSED
    assert everything() == before


@pytest.mark.parametrize(
    ("settings", "backs"),
    [
        ({"catch_up": "none"}, []),
        ({"catch_up": "none", "misfire_grace": HOUR}, [0]),
        ({"catch_up": "latest"}, [0]),
        ({"catch_up": "all"}, [2, 1, 0]),
    ],
    ids=["none", "none, in time", "latest", "all"],
)
@pytest.mark.parametrize(
    "end", [{"paused": False}, {"paused_until": datetime(2001, 1, 1, tzinfo=UTC)}], ids=["by hand", "by itself"]
)
def test_a_resumed_job_replays_what_is_to_be_caught_up_and_no_more(
    settings: dict[str, Any], backs: list[int], end: dict[str, Any]
) -> None:
    job = scheduled(**settings)
    fall_behind(job, 3)
    gates().update(paused=True, paused_until=datetime(2999, 1, 1, tzinfo=UTC))
    ticked()
    assert slots_run() == []
    gates().update(**end)
    ticked()
    ticked()
    assert [slot for slot, *_ in slots_run()] == [newest_slot(job, back=back) for back in backs]
    assert is_at(job)


def test_a_job_that_is_paused_before_anybody_knew_it_is_paused() -> None:
    job = scheduled(schedule=about_hourly(due_in=timedelta(seconds=10)))
    gates().remember("nightly")
    gates().update(paused=True)
    assert run_slot(job, early=MINUTE).reason == Reason.PAUSED
    assert is_at(job)


# --- two changes at once


def test_nor_do_two_releases_that_edit_two_jobs_at_once() -> None:
    jobs = [scheduled(name) for name in ("orders", "stock")]
    for job in jobs:
        fall_behind(job, 0)
    changed = [edited(job, ANOTHER_SCHEDULE) for job in jobs]
    outcomes = all_at_once([partial(run_slot, job) for job in changed for _ in range(2)])
    assert {outcome.reason for outcome in outcomes} == {Reason.NOT_DUE}
    assert all(is_at(job) for job in changed)


@pytest.mark.slow
def test_a_pause_while_the_slot_is_run_stays_and_so_does_the_claim(ahead: Ahead) -> None:
    job = scheduled()
    fall_behind(job)
    lease: Any = ask_for_slot(job)
    pausing = ahead(lambda: gates().update(paused=True))
    assert lease.release()
    pausing.result(PATIENCE)
    assert gate().paused
    assert is_at(job)


def test_a_held_lock_does_not_keep_the_schedule_from_moving_on() -> None:
    """While the lock is held, only a tick gets as far as the schedule."""
    job = scheduled(lock="shop")
    fall_behind(job, 0)
    take("shop")
    changed = edited(job, AN_INTERVAL)
    ticked()
    assert is_at(changed)


def test_a_slot_that_is_due_waits_for_the_lock_and_so_does_the_schedule() -> None:
    job = scheduled(lock="shop")
    fall_behind(job, 2)
    lease = take("shop")
    changed = edited(job, AN_INTERVAL)
    assert run_slot(changed).reason == Reason.HELD
    ticked()
    assert gate().schedule == job.policy.schedule.text
    lease.release()
    assert run_slot(changed).slot == newest_slot(job)
    assert is_at(changed)
