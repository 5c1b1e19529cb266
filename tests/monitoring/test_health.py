from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import singleton_job
from django_singlejob.jobs import registry
from django_singlejob.locking.endings import ending
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.monitoring.health import (
    Health,
    State,
    next_slots,
    survey,
    worst_gates_first,
    worst_locks_first,
)
from django_singlejob.process.clock import DBNow
from django_singlejob.worker.due import follow_code
from tests.contract.acts import expire, lock, nth_fence, set_the_databases_clock, start_run, take

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def register(name: str = "nightly", **settings: Any) -> None:
    singleton_job(name, **{"schedule": "30 2 * * *"} | settings)(print)


def schedule(name: str = "nightly", **settings: Any) -> None:
    """Register the job, and enter it in the database."""
    register(name, **settings)
    follow_code()


def change(name: str = "nightly", **columns: Any) -> None:
    assert gates().filter(name=name).update(**columns) == 1


def overdue_by(late: timedelta) -> None:
    change(next_slot=DBNow() - late)


def take_long(name: str = "nightly") -> None:
    """The current run has taken ten times as long as the job's mean."""
    change(name, mean_duration=MINUTE, run_count=5)
    locks().update(acquired_at=DBNow() - 10 * MINUTE)


def health(name: str = "nightly") -> Health:
    (found,) = (health for health in survey().healths if health.name == name)
    return found


def state(name: str = "nightly") -> State:
    return health(name).state


# --- one state after the other


def test_the_next_slots_of_a_paused_job_are_those_after_the_pause() -> None:
    schedule()
    until = datetime(2999, 3, 1, 2, 30, tzinfo=UTC)
    for paused, expected in {None: [], until: [until, until + timedelta(days=1)]}.items():
        gates().update(paused=True, paused_until=paused)
        assert next_slots(gates().survey()["nightly"], 2) == expected
    gates().update(paused=True, paused_until=datetime(9990, 1, 1, tzinfo=UTC))
    assert len(next_slots(gates().survey()["nightly"], 2)) == 2
    gates().update(paused=False)
    assert len(next_slots(gates().survey()["nightly"], 2)) == 2


def test_a_job_that_has_no_schedule_is_idle_though_nobody_has_called_it() -> None:
    register(schedule=None)
    assert health() == Health(name="nightly", state=State.IDLE, status=None, lock=None)


def test_a_schedule_that_no_pass_has_seen_is_unseen() -> None:
    register()
    assert state() == State.UNSEEN
    start_run().release()  # by hand
    assert state() == State.UNSEEN
    follow_code()
    assert state() == State.IDLE


def test_a_run_is_overrunning_past_a_multiple_of_its_mean(settings: Settings) -> None:
    schedule()
    start_run()
    take_long()
    assert state() == State.OVERRUNNING
    settings.SINGLEJOB = {"OVERRUN_FACTOR": 11}
    assert state() == State.RUNNING


def test_a_slot_that_is_overdue_while_the_lock_is_held_is_delayed() -> None:
    schedule()
    start_run()
    overdue_by(4 * MINUTE)
    assert state() == State.RUNNING
    overdue_by(6 * MINUTE)
    assert state() == State.DELAYED
    take_long()
    assert state() == State.OVERRUNNING


def test_a_lock_that_expires_later_than_any_lease_can_is_impossible_and_does_not_stay() -> None:
    start_run()
    locks().update(expires_at=datetime(9000, 1, 1, tzinfo=UTC))
    assert state() == State.IMPOSSIBLE
    assert lock("nightly").lease == MINUTE
    locks().update(sent_at=DBNow() - HOUR, heartbeat_at=DBNow() - HOUR)
    assert start_run().fence == nth_fence(2)


@pytest.mark.parametrize(
    "mean",
    [{"mean_duration": None}, {"mean_duration": timedelta()}, {"mean_duration": -MINUTE}, {"run_count": 4}],
    ids=str,
)
def test_but_not_if_the_mean_is_meaningless(mean: dict[str, Any]) -> None:
    schedule()
    start_run()
    take_long()
    change(**mean)
    assert state() == State.RUNNING


def test_a_slot_that_nobody_ran_is_overdue_after_five_minutes() -> None:
    schedule()
    overdue_by(4 * MINUTE)
    assert state() == State.IDLE
    overdue_by(6 * MINUTE)
    assert state() == State.OVERDUE


def test_a_slot_whose_run_a_signal_ended_is_overdue_if_it_is_not_run_again_within_five_minutes() -> None:
    schedule()
    change(last_slot=DBNow() - HOUR, abandoned=True, last_status="interrupted", last_finished_at=DBNow() - 4 * MINUTE)
    assert state() == State.IDLE
    change(last_finished_at=DBNow() - 6 * MINUTE)
    assert state() == State.OVERDUE
    change(abandoned=False)
    assert state() == State.IDLE


def test_a_slot_is_overdue_five_minutes_after_a_pause_has_ended_by_itself() -> None:
    schedule()
    overdue_by(HOUR)
    change(paused=True, paused_until=DBNow() + MINUTE)
    assert state() == State.PAUSED
    change(paused_until=DBNow() - 4 * MINUTE)
    assert state() == State.IDLE
    change(paused_until=DBNow() - 6 * MINUTE)
    assert state() == State.OVERDUE


# --- what is hidden


def hide(name: str = "nightly") -> None:
    """Hide a job that no release has."""
    start_run(name).release()
    change(name, consecutive_failures=1)
    assert gates().hide(name)


def seen(**terms: Any) -> list[str]:
    return [health.name for health in survey(**terms).healths]


def test_a_job_that_is_hidden_is_left_out_unless_it_is_asked_for() -> None:
    hide()
    start_run("hourly").release()
    assert seen() == ["hourly"]
    assert seen(part="night") == []
    for terms in {"names": ["nightly"]}, {"hidden": True}:
        (found,) = survey(**terms).healths
        assert (found.name, found.state) == ("nightly", State.HIDDEN)


def test_its_lock_is_shown_while_it_is_held() -> None:
    lease = start_run()
    change(hidden=True)
    assert state() == State.RUNNING
    expire()
    assert state() == State.STALE
    lease.release()
    assert seen() == []


def test_a_job_of_this_release_is_never_hidden() -> None:
    hide()
    register()
    assert state() == State.FAILING


@pytest.mark.parametrize("change_of_code", [{"schedule": "@hourly"}, {"schedule": None}, {"time_zone": "Europe/Rome"}])
def test_a_job_whose_schedule_a_worker_moves_is_shown_by_all_releases(change_of_code: dict[str, Any]) -> None:
    schedule()
    change(hidden=True)
    registry._jobs.clear()
    assert seen() == []
    schedule(**change_of_code)
    assert not gates().get().hidden


# --- the first of several


def test_the_worst_state_of_a_dead_job_is_shown() -> None:
    schedule()
    start_run()
    expire()
    change(paused=True, consecutive_failures=1)
    overdue_by(HOUR)
    assert state() == State.PAUSED
    change(paused=False)
    assert state() == State.STALE
    locks()._raw_delete("default")
    assert state() == State.OVERDUE
    overdue_by(-HOUR)
    assert state() == State.FAILING
    change(consecutive_failures=0)
    assert state() == State.IDLE


def test_so_is_the_worst_state_of_a_live_job() -> None:
    register()
    start_run()
    take_long()
    change(paused=True, consecutive_failures=1)
    assert state() == State.PAUSED
    change(paused=False)
    assert state() == State.FAILING
    change(consecutive_failures=0)
    assert state() == State.OVERRUNNING
    change(mean_duration=None)
    assert state() == State.UNSEEN
    follow_code()
    assert state() == State.RUNNING


# --- which jobs and which locks


def test_they_are_ordered_by_name() -> None:
    register("weekly")
    start_run("nightly").release()
    take("block")
    register("hourly")
    assert [health.name for health in survey().healths] == ["block", "hourly", "nightly", "weekly"]


def test_a_lock_of_another_name_is_shown_with_the_job_that_holds_it() -> None:
    register("nightly", lock="sales")
    register("hourly", lock="sales")
    follow_code()
    start_run("nightly", name="sales")
    assert [(health.name, health.state) for health in survey().healths] == [
        ("hourly", State.IDLE),
        ("nightly", State.RUNNING),
    ]
    held = health("nightly").lock
    assert held
    assert held.name == "sales"


def test_a_lock_that_belongs_to_no_job_is_shown_while_it_is_held() -> None:
    lease = take("block")
    assert state("block") == State.RUNNING
    expire("block")
    assert state("block") == State.STALE
    lease.release()
    assert survey().healths == []


def test_a_shell_command_is_shown_since_its_first_run() -> None:
    lease = start_run("backup")
    assert state("backup") == State.RUNNING
    lease.finish(ending(ZeroDivisionError(), duration=MINUTE, acquire_duration=MINUTE))
    assert state("backup") == State.FAILING
    assert health("backup").schedule == ""


def test_of_two_locks_that_a_job_holds_the_stale_one_is_shown() -> None:
    start_run("nightly", name="before")
    start_run("nightly", name="since")
    for name in "before", "since":
        expire(name)
        held = health().lock
        assert held
        assert (held.name, state()) == (name, State.STALE)
        locks().update(heartbeat_at=DBNow(), expires_at=DBNow() + HOUR)


# --- schedules


def test_a_schedule_is_described_in_words() -> None:
    register(time_zone="Europe/Rome")
    assert health().schedule == "At 02:30 every day (Europe/Rome)"
    follow_code()
    assert health().schedule == "At 02:30 every day (Europe/Rome)"


def test_it_is_the_one_that_the_database_has() -> None:
    schedule()
    registry._jobs.clear()
    register(schedule=timedelta(minutes=90))
    assert health().schedule == "At 02:30 every day (UTC)"
    follow_code()
    assert health().schedule == "Every 1 hour 30 minutes"


def test_a_job_of_another_release_is_shown_with_its_schedule() -> None:
    schedule()
    registry._jobs.clear()
    assert (health().state, health().schedule) == (State.IDLE, "At 02:30 every day (UTC)")
    overdue_by(HOUR)
    assert state() == State.OVERDUE


@pytest.mark.parametrize("zone", ["Europe/Rome", "Mars/Olympus"])
def test_also_when_this_one_cannot_read_it(zone: str) -> None:
    gates().remember("nightly")
    change(schedule="at full moon", time_zone=zone, next_slot=DBNow() + HOUR)
    assert (health().state, health().schedule) == (State.IDLE, "at full moon")


# --- the worst first


def test_the_gates_of_jobs_are_those_that_ran_are_scheduled_or_are_paused() -> None:
    gates().remember("ran", "scheduled", "paused", "only a lock")
    gates().filter(name="ran").update(last_started_at=DBNow())
    gates().filter(name="scheduled").update(schedule="@daily")
    gates().filter(name="paused").update(paused=True)
    assert {gate.name for gate in gates().of_jobs()} == {"ran", "scheduled", "paused"}


ILL = ("failing", "late", "late, and resumed earlier", "interrupted")


def test_the_gates_of_ill_jobs_come_first_and_then_those_of_jobs_that_are_to_run() -> None:
    hourly = {"schedule": "@hourly"}
    resumed = {**hourly, "paused": True, "next_slot": DBNow() - 2 * HOUR}
    interrupted = {"abandoned": True, "last_status": "interrupted"}
    columns: dict[str, dict[str, Any]] = {
        "failing": {"consecutive_failures": 1},
        "late": {**hourly, "next_slot": DBNow() - 2 * HOUR},
        "tomorrow": {**hourly, "next_slot": DBNow() + 24 * HOUR},
        "a bit late": {**hourly, "next_slot": DBNow() - MINUTE},
        "failing, but paused": {"paused": True, "consecutive_failures": 1},
        "late, but paused": {**hourly, "paused": True, "next_slot": DBNow() - 2 * HOUR},
        "late, but just resumed": {**resumed, "paused_until": DBNow() - MINUTE / 2},
        "late, and resumed earlier": {**resumed, "paused_until": DBNow() - 2 * HOUR},
        "interrupted": {**hourly, **interrupted, "last_finished_at": DBNow() - 2 * HOUR},
        "just interrupted": {**hourly, **interrupted, "last_finished_at": DBNow() - MINUTE},
        "asleep": {},
    }
    gates().remember(*columns)
    for name, changes in columns.items():
        gates().filter(name=name).update(**changes)
    found = [gate.name for gate in worst_gates_first(gates())]
    assert {gate.name for gate in worst_gates_first(gates()) if gate.is_ill} == {*ILL}
    assert set(found[: len(ILL)]) == {*ILL}
    assert found[-1] == "asleep"
    assert found.index("tomorrow") < found.index("a bit late") < found.index("late, but paused")


def test_those_whose_holders_may_be_dead_come_first() -> None:
    start_run("older")
    start_run("newer")
    for name in "block", "impossible", "stale":
        take(name)
    locks().filter(name="older").update(acquired_at=DBNow() - MINUTE)
    locks().filter(name="block").update(acquired_at=DBNow() - HOUR)
    expire("stale")
    set_the_databases_clock(-HOUR, "impossible")
    assert [lock.name for lock in worst_locks_first(locks())] == ["impossible", "stale", "older", "newer", "block"]
    assert [lock.name for lock in worst_locks_first(locks()).survey(2)] == ["impossible", "stale"]
