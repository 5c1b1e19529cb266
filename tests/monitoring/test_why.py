"""Why a job ran or did not: staged stories, each with the cause that is named."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob import singleton_job
from django_singlejob.control.pausing import pause, resume
from django_singlejob.control.stopping import stop_run
from django_singlejob.exceptions import SkipRun
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import latest_slot
from django_singlejob.locking.clear import clear
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.passes import passes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.causes import Answer, Cause
from django_singlejob.monitoring.marks import DISABLED, Mark, record
from django_singlejob.monitoring.verdict import UnknownName
from django_singlejob.monitoring.why import why
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process
from django_singlejob.worker.due import follow_code
from tests.contract.acts import HOUR, MINUTE, expire, fall_behind, hourly, scheduled, start_run, take, ticked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django.fixtures import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)


def answer(name: str = "nightly", at: datetime | None = None) -> Answer:
    (found,) = why(name, at)
    return found


def newest(job: Any) -> datetime:
    return latest_slot(job.policy.schedule, database_now())


def seen(hostname: str, ago: timedelta = timedelta(), first: timedelta = 2 * DAY) -> None:
    mine = Mark(this_process()._replace(hostname=hostname))
    record(mine)
    passes().filter(key=mine.key).update(seen_at=DBNow() - ago, first_seen_at=DBNow() - first)


def has_run(
    name: str = "nightly", *, ago: timedelta, took: timedelta | None = MINUTE, lock: str = "", **facts: Any
) -> None:
    """A run that began this long ago, and ended; ``took`` is ``None``: it has not."""
    started = database_now() - ago
    columns = {
        "fence": 1,
        "token": uuid4(),
        "trigger": "schedule",
        "hostname": "web-1",
        "pid": 1,
        "status": "successful",
    }
    columns |= {"started_at": started, "finished_at": took and started + took, "lock": lock or name}
    runs().create(job_name=name, **columns | facts)


# --- a slot


def test_it_ran() -> None:
    job = scheduled()
    fall_behind(job)
    ticked()
    found = answer(at=newest(job))
    assert found.cause == Cause.RAN
    assert found.slot == newest(job)
    assert this_process().hostname in found.sentence
    assert len(found.evidence) == 1


def test_it_ran_and_failed() -> None:
    def fail() -> None:
        raise KeyError("customer")

    job: Any = singleton_job("nightly", schedule=hourly(ago=10 * MINUTE))(fail)
    fall_behind(job)
    ticked()
    found = answer(at=newest(job))
    assert found.cause == Cause.FAILED
    assert "KeyError: 'customer'" in found.sentence


def test_one_without_an_error_says_no_more_than_its_status() -> None:
    job = scheduled()
    has_run(ago=20 * MINUTE, slot=newest(job), status="interrupted")
    assert answer(at=newest(job)).sentence.endswith("web-1: interrupted.")


def test_it_skipped_itself() -> None:
    def skip() -> None:
        raise SkipRun("holiday")

    job: Any = singleton_job("nightly", schedule=hourly(ago=10 * MINUTE))(skip)
    fall_behind(job)
    ticked()
    found = answer(at=newest(job))
    assert found.cause == Cause.FAILED
    assert "skipped" in found.sentence
    assert "holiday" in found.sentence


def test_held_by_a_run_of_its_own() -> None:
    job = scheduled()
    has_run(ago=2 * HOUR, slot=newest(job) - 2 * HOUR)
    has_run(ago=HOUR, took=HOUR - MINUTE, slot=newest(job) - HOUR)
    found = answer(at=newest(job))
    assert found.cause == Cause.HELD_BY_ITSELF
    assert "web-1" in found.sentence


def test_held_by_a_job_that_shares_the_lock() -> None:
    job = scheduled(lock="database")
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR, lock="database")
    has_run("import", ago=45 * MINUTE, took=44 * MINUTE, lock="database")
    found = answer(at=newest(job))
    assert found.cause == Cause.HELD_BY_OTHER
    assert "import" in found.sentence
    assert "database" in found.sentence


def test_one_that_ran_late_names_who_held_the_lock_until_then() -> None:
    job = scheduled(lock="database")
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR, lock="database")
    has_run("import", ago=45 * MINUTE, took=43 * MINUTE, lock="database")
    has_run(ago=MINUTE, slot=newest(job), lock="database")
    found = answer(at=newest(job))
    assert found.cause == Cause.RAN
    assert "late, and was successful: import held the lock database from" in found.sentence
    runs().filter(job_name="import").update(finished_at=newest(job) - MINUTE)
    assert "late" not in answer(at=newest(job)).sentence


def paused_over_its_slot(job: Any, until: datetime | None = None) -> None:
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    gates().remember("nightly")
    assert pause("nightly", reason="supplier down", by="anna", until=until)
    notes().update(at=newest(job) - 20 * MINUTE, until=until and DBNow() - MINUTE)


def test_paused() -> None:
    job = scheduled()
    paused_over_its_slot(job)
    assert resume("nightly", by="bob")
    notes().filter(kind="resumed").update(at=DBNow() - MINUTE)
    found = answer(at=newest(job))
    assert found.cause == Cause.PAUSED
    for told in ("anna", "supplier down"):
        assert told in found.sentence
    assert answer(at=newest(job) + HOUR).cause == Cause.TO_COME


def test_paused_until() -> None:
    job = scheduled()
    paused_over_its_slot(job, until=database_now() + HOUR)
    gates().update(paused_until=DBNow() - SECOND)
    assert answer(at=newest(job)).cause == Cause.PAUSED


def test_a_pause_that_ended_before_is_no_cause() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    gates().remember("nightly")
    pause("nightly")
    resume("nightly")
    notes().filter(kind="paused").update(at=newest(job) - 40 * MINUTE)
    notes().filter(kind="resumed").update(at=newest(job) - 20 * MINUTE)
    assert answer(at=newest(job)).cause == Cause.NOT_KNOWN


def test_given_up_because_it_was_too_late() -> None:
    job = scheduled(catch_up="none")
    has_run(ago=3 * HOUR, slot=newest(job) - 2 * HOUR)
    seen("web-1")
    fall_behind(job)
    ticked()
    found = answer(at=newest(job))
    assert found.cause == Cause.GIVEN_UP
    assert found.sentence.endswith(": not run.")


def test_taken_together_with_a_later_slot() -> None:
    job: Any = singleton_job("nightly", schedule="* * * * *")(print)
    fall_behind(job, 3)
    has_run(ago=HOUR, slot=newest(job) - HOUR)
    slot = newest(job) - 2 * MINUTE
    ticked()
    found = answer(at=slot)
    assert found.cause == Cause.TAKEN_TOGETHER
    assert "catch_up" in found.remedy


def test_a_later_slot_that_was_run_by_hand_has_taken_none_with_it() -> None:
    job: Any = singleton_job("nightly", schedule="* * * * *")(print)
    slot = newest(job) - 10 * MINUTE
    has_run(ago=HOUR, slot=slot - 30 * MINUTE)
    has_run(ago=database_now() - slot - 2 * MINUTE, slot=slot + MINUTE, trigger="manual")
    assert answer(at=slot + MINUTE).cause == Cause.RAN
    assert answer(at=slot).cause == Cause.NOT_KNOWN


def test_no_server_asked() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    seen("web-1", ago=2 * HOUR)
    seen("web-2", ago=3 * HOUR)
    seen("web-2")  # it is back
    found = answer(at=newest(job))
    assert found.cause == Cause.NOBODY
    assert "web-1 and web-2" in found.remedy.replace(", ", " and ")
    seen("web-3")
    assert answer(at=newest(job)).cause == Cause.NOT_KNOWN


def test_where_lines_ask_too_it_is_not_known_whether_any_server_asked() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR, trigger="command")
    seen("web-1", ago=2 * HOUR)
    found = answer(at=newest(job))
    assert found.cause == Cause.NOT_KNOWN
    assert "run_singleton" in found.remedy


def test_a_lock_that_was_free_soon_is_no_cause() -> None:
    job = scheduled()
    has_run(ago=2 * HOUR, slot=newest(job) - 2 * HOUR)
    started = database_now() - newest(job) + MINUTE
    has_run("import", ago=started, took=MINUTE + 20 * SECOND, lock="nightly")
    assert answer(at=newest(job)).cause == Cause.NOT_KNOWN


def test_a_run_of_a_later_slot_that_began_early_is_no_cause() -> None:
    job: Any = singleton_job("nightly", schedule="* * * * *")(print)
    slot = newest(job) - 10 * MINUTE
    has_run(ago=HOUR, slot=slot - 30 * MINUTE)
    has_run(ago=database_now() - slot - 20 * SECOND, took=2 * MINUTE, slot=slot + MINUTE)
    assert answer(at=slot).cause == Cause.TAKEN_TOGETHER


def test_no_server_that_it_is_for_asked() -> None:
    job = scheduled(on="web2")
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    seen("web1")
    found = answer(at=newest(job))
    assert found.cause == Cause.NOT_HERE
    assert "web2" in found.sentence


def test_its_attempts_are_used_up() -> None:
    job = scheduled(max_attempts=2)
    for attempt in 1, 2:
        has_run(ago=20 * MINUTE, slot=newest(job), status="abandoned", attempt=attempt)
    assert answer(at=newest(job)).cause == Cause.USED_UP


def test_somebody_stopped_it() -> None:
    job = scheduled()
    lease = start_run(heartbeat_interval=MINUTE / 6)
    (lock,) = locks().survey()
    assert stop_run(lock, "anna") is None
    assert clear(lock, force=True, error="stopped")
    runs().filter(token=lease.token).update(slot=newest(job), status="interrupted", finished_at=DBNow())
    found = answer(at=newest(job))
    assert found.cause == Cause.STOPPED
    assert "anna" in found.sentence


def test_it_is_not_due_then() -> None:
    job = scheduled()
    found = answer(at=newest(job) + 10 * MINUTE)
    assert found.cause == Cause.NOT_DUE
    assert "not due" in found.sentence


def test_there_is_no_record_from_before_the_history() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    assert answer(at=newest(job) - 9 * HOUR).cause == Cause.NO_RECORD


def test_a_pause_that_ended_long_before_the_next_run_is_no_cause() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    gates().remember("nightly")
    pause("nightly")
    resume("nightly")
    notes().filter(kind="paused").update(at=newest(job) - MINUTE)
    notes().filter(kind="resumed").update(at=newest(job) + MINUTE)
    assert answer(at=newest(job)).cause == Cause.NOT_KNOWN


def test_a_dead_holder_is_no_cause_where_no_server_asked() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, took=2.9 * HOUR, slot=newest(job) - 2 * HOUR, status="abandoned")
    seen("web-1", ago=2 * HOUR)
    assert answer(at=newest(job)).cause == Cause.NOBODY


def test_nobody_knows_until_when_a_dead_holder_lived() -> None:
    job = scheduled()
    has_run(ago=2 * HOUR, took=None, slot=newest(job) - HOUR, status="running")
    assert answer(at=newest(job)).cause == Cause.NOT_KNOWN


def test_a_server_that_is_forgotten_may_have_asked() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    has_run("import", ago=40 * MINUTE, lock="import")
    seen("web-1", ago=2 * HOUR)
    assert answer(at=newest(job)).cause == Cause.NOT_KNOWN


def test_of_a_slot_the_runs_of_another_one_in_the_minute_say_nothing() -> None:
    job: Any = singleton_job("nightly", schedule=20 * SECOND)(print)
    slot = newest(job) - HOUR
    slot -= timedelta(seconds=slot.second)
    has_run(ago=database_now() - slot + DAY, slot=slot - DAY)
    has_run(ago=database_now() - slot - 20 * SECOND, slot=slot + 20 * SECOND)
    assert answer(at=slot).cause == Cause.TAKEN_TOGETHER


def test_what_nothing_proves_is_not_known_and_it_says_what_would_show_it() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    found = answer(at=newest(job))
    assert found.cause == Cause.NOT_KNOWN
    assert "singleton_worker --once" in found.remedy
    seen("web-1")
    assert "--verbosity 2" in answer(at=newest(job)).remedy


# --- changes of clocks


def test_an_hour_that_is_lost() -> None:
    singleton_job("nightly", schedule="*/30 * * * *", time_zone="Europe/Berlin")(print)
    found = answer(at=datetime(2027, 3, 28, 2, 30))  # noqa: DTZ001
    assert found.cause == Cause.SKIPPED_HOUR
    assert "2027-03-28 02:30" in found.sentence


def test_an_hour_that_is_doubled_has_two_answers() -> None:
    singleton_job("nightly", schedule="*/30 * * * *", time_zone="Europe/Berlin")(print)
    first, second = why("nightly", datetime(2027, 10, 31, 2, 30))  # noqa: DTZ001
    assert (first.cause, second.cause) == (Cause.TO_COME, Cause.TO_COME)
    assert first.slot == datetime(2027, 10, 31, 0, 30, tzinfo=UTC)
    assert second.slot == datetime(2027, 10, 31, 1, 30, tzinfo=UTC)


def test_an_instant_with_an_offset_is_taken_as_it_is() -> None:
    singleton_job("nightly", schedule="30 2 * * *", time_zone="Europe/Berlin")(print)
    assert answer(at=datetime(2027, 1, 1, 1, 30, tzinfo=UTC)).cause == Cause.TO_COME


# --- now


def due(**settings: Any) -> Any:
    job = scheduled(**settings)
    fall_behind(job)
    return job


def not_due() -> None:
    scheduled()
    follow_code()


def running() -> None:
    scheduled()
    start_run()


def held_by_another() -> None:
    due(lock="database")
    take("database", job_name="import")


def paused_now() -> None:
    due()
    pause("nightly", reason="supplier down", by="anna")


def the_database_was_ahead() -> None:
    scheduled()
    follow_code()
    gates().update(next_slot=DBNow() + 400 * DAY)


def started_a_moment_ago() -> None:
    due(min_interval=HOUR)
    gates().update(last_started_at=DBNow() - MINUTE)


def started_before_the_clock_was_set_back() -> None:
    started_a_moment_ago()
    gates().update(last_started_at=DBNow() + DAY)  # the gate lets it run


def nobody_asks() -> None:
    due()
    seen("web-1", ago=2 * HOUR)


def only_others_ask() -> None:
    due(on="web2")
    seen("web1")


def nothing_marks() -> None:
    due()


def unknown_to_this_release() -> None:
    gates().remember("nightly")
    gates().update(last_started_at=DBNow() - DAY)


def its_module_is_broken() -> None:
    unknown_to_this_release()
    registry.failures["shop.jobs"] = ImportError("No module named 'stripe'")


def no_schedule() -> None:
    singleton_job("nightly")(print)


def never_asked() -> None:
    scheduled()
    seen("web-1", ago=2 * HOUR)


def a_new_job() -> None:
    scheduled()
    seen("web-1")


def a_one_off_for_later() -> None:
    singleton_job("nightly")(print).using(run_after=database_now() + HOUR).enqueue()


def its_holder_is_dead() -> None:
    running()
    expire()


def retries_pending() -> None:
    job: Any = singleton_job("nightly", retries=3)(lambda: 1 / 0)
    with suppress(ZeroDivisionError):
        job()


def no_worker() -> None:
    job: Any = singleton_job("nightly")(print)
    job.enqueue(1)


def busy_workers() -> None:
    due()
    take("django_singlejob.worker.1")
    seen("web-1")
    start_run("import")


def behind_others() -> None:
    singleton_job("import")(print).enqueue()
    singleton_job("nightly")(print).enqueue()
    take("django_singlejob.worker.1")


def one_that_waits(**settings: Any) -> None:
    """A one-off has been due for ten minutes, and a worker is there, which runs something."""
    singleton_job("nightly", **settings)(print).enqueue()
    one_offs().update(run_after=DBNow() - 10 * MINUTE)
    take("django_singlejob.worker.1")
    seen("web1")
    start_run("import")


def a_one_off_for_busy_workers() -> None:
    one_that_waits()


def a_one_off_for_others() -> None:
    one_that_waits(on="web2")


def a_one_off_too_soon() -> None:
    one_that_waits(min_interval=HOUR)
    gates().remember("nightly")
    gates().filter(name="nightly").update(last_started_at=DBNow() - MINUTE)


def a_one_off_behind_others_that_are_run() -> None:
    singleton_job("export")(print).enqueue()
    one_that_waits()


def just_due() -> None:
    job: Any = singleton_job("nightly", schedule="* * * * *")(print)
    fall_behind(job)
    gates().update(next_slot=DBNow() - SECOND)
    take("django_singlejob.worker.1")
    seen("web-1")
    start_run("import")


def only_disabled_servers_ask() -> None:
    due()
    seen("web-1")
    passes().update(trouble=DISABLED)


def used_up() -> None:
    job = scheduled(max_attempts=2)
    follow_code()
    gates().update(abandoned=True, last_slot=newest(job), last_attempt=2)  # as a dead holder leaves it
    has_run(ago=20 * MINUTE, slot=newest(job), status="abandoned", attempt=2)


NOW: list[tuple[Callable[[], None], Cause, str]] = [
    (not_due, Cause.TO_COME, "next due at"),
    (running, Cause.RUNNING, "heartbeat"),
    (held_by_another, Cause.HELD_BY_OTHER, "import"),
    (paused_now, Cause.PAUSED, "supplier down"),
    (the_database_was_ahead, Cause.CLOCK, "set back"),
    (started_a_moment_ago, Cause.STARTED_RECENTLY, "1 hour"),
    (started_before_the_clock_was_set_back, Cause.NOT_KNOWN, "nothing"),
    (nobody_asks, Cause.NOBODY, "no server"),
    (only_others_ask, Cause.NOT_HERE, "web2"),
    (nothing_marks, Cause.NOT_KNOWN, "nothing"),
    (unknown_to_this_release, Cause.UNKNOWN, "This release"),
    (its_module_is_broken, Cause.BROKEN, "stripe"),
    (no_schedule, Cause.NO_SCHEDULE, "no schedule"),
    (never_asked, Cause.NOBODY, "no server"),
    (a_new_job, Cause.TO_COME, "next due at"),
    (a_one_off_for_later, Cause.TO_COME, "next due at"),
    (its_holder_is_dead, Cause.HELD_BY_ITSELF, "has sent no heartbeat for"),
    (retries_pending, Cause.RETRY, "tried again"),
    (no_worker, Cause.NO_WORKER, "no live worker"),
    (busy_workers, Cause.BUSY, "import"),
    (behind_others, Cause.BEHIND, "1 others"),
    (a_one_off_for_busy_workers, Cause.BUSY, "import"),
    (a_one_off_for_others, Cause.NOT_HERE, "web2"),
    (a_one_off_too_soon, Cause.STARTED_RECENTLY, "1 hour"),
    (a_one_off_behind_others_that_are_run, Cause.BEHIND, "1 others"),
    (just_due, Cause.TO_COME, "within seconds"),
    (only_disabled_servers_ask, Cause.DISABLED, "web-1"),
    (used_up, Cause.USED_UP, "begun 2 times"),
]


@pytest.mark.parametrize(("happen", "cause", "told"), NOW, ids=lambda each: getattr(each, "__name__", ""))
def test_why_it_runs_or_does_not_now(happen: Callable[[], None], cause: Cause, told: str) -> None:
    happen()
    found = answer()
    assert (found.cause, told in found.sentence) == (cause, True), found


def test_while_a_worker_is_free_the_others_are_no_cause() -> None:
    busy_workers()
    take("django_singlejob.worker.2")
    locks().filter(name="django_singlejob.worker.2").update(hostname="web-2")
    assert answer().cause == Cause.NOT_KNOWN


def test_where_nothing_is_enabled_it_says_so(settings: Settings) -> None:
    settings.SINGLEJOB = {"ENABLED": False}
    due()
    assert answer().cause == Cause.DISABLED


def test_the_trouble_of_a_server_is_evidence() -> None:
    due()
    seen("web-1")
    passes().update(trouble="The module shop.jobs does not load.")
    assert any("shop.jobs does not load" in line for line in answer().evidence)


def test_a_slot_before_its_first_schedule_has_no_record() -> None:
    scheduled(schedule="* * * * *")
    follow_code()
    (note,) = notes()
    has_run(ago=-2 * MINUTE, slot=note.first_slot)
    assert note.first_slot
    assert answer(at=note.first_slot - MINUTE).cause == Cause.NO_RECORD


def test_a_clock_that_is_wrong_is_named() -> None:
    job = due()
    ticked()
    passes().update(clock_error=timedelta(minutes=-2))
    found = answer(at=newest(job))
    assert any("2 minutes slow" in line for line in found.evidence)


def test_a_job_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownName, match="nonsense"):
        why("nonsense")


def test_rows_that_were_edited_by_hand_fail_nothing() -> None:
    job = scheduled()
    has_run(ago=3 * HOUR, slot=newest(job) - 3 * HOUR)
    for details in (
        "",
        "7",
        "[]",
        '{"before": 7, "after": [1]}',
        "{",
        '{"before": ["nonsense", "UTC"], "after": ["", ""]}',
    ):
        for kind in "schedule_changed", "server_back", "missed":
            notes().create(job_name="nightly", kind=kind, at=DBNow(), details=details)
    assert answer(at=newest(job)).cause
    assert answer().cause
