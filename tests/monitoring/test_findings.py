"""What is said of what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_singlejob.models import JobLock, JobStatus
from django_singlejob.monitoring.findings import (
    KINDS,
    Finding,
    Trouble,
    in_figures,
    of_health,
    of_queue,
    of_worker,
    roughly,
)
from django_singlejob.monitoring.health import Health, Level, State
from django_singlejob.monitoring.queues import Queue
from django_singlejob.monitoring.workers import SeenWorker

DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NOW = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(), "0 seconds"),
        (-DAY, "0 seconds"),
        (1.9 * SECOND, "1 second"),
        (59 * SECOND, "59 seconds"),
        (MINUTE, "1 minute"),
        (2 * MINUTE + 7 * SECOND, "2 minutes 7 seconds"),
        (HOUR + 59 * SECOND, "1 hour"),
        (2 * HOUR + 3 * MINUTE + 4 * SECOND, "2 hours 3 minutes"),
        (DAY + 59 * MINUTE, "1 day"),
        (2 * DAY + 3 * HOUR + 59 * MINUTE, "2 days 3 hours"),
    ],
    ids=str,
)
def test_a_duration_is_told_in_two_units_at_most(duration: timedelta, words: str) -> None:
    assert roughly(duration) == words


def test_a_count_that_was_cut_says_so() -> None:
    assert str(in_figures(3000, is_cut=True)) == "3,000 or more"
    assert str(in_figures(3000, is_cut=False)) == "3000"


# --- jobs and locks


def status(**columns: Any) -> JobStatus:
    found = JobStatus(name="nightly", **columns)
    found.now = NOW
    return found


def lock(**columns: Any) -> JobLock:
    facts: dict[str, Any] = {"name": "sales", "job_name": "nightly", "hostname": "web-1", "pid": 4711}
    times = {"acquired_at": NOW - 2 * HOUR, "heartbeat_at": NOW - HOUR, "expires_at": NOW - HOUR + MINUTE}
    found = JobLock(**facts | times | columns)
    found.now = NOW
    return found


def finding(state: State, failures: int = 1, **rows: Any) -> Finding:
    rows = {"status": None, "lock": None} | rows
    (found,) = of_health(Health(name="nightly", state=state, **rows), failures)
    return found


@pytest.mark.parametrize(
    ("state", "rows", "what_happened"),
    [
        (
            State.IMPOSSIBLE,
            {"lock": lock(heartbeat_at=NOW + HOUR)},
            "The lock 'sales' is held by web-1, pid 4711, whose last heartbeat is 1 hour in the future",
        ),
        (
            State.IMPOSSIBLE,
            {"lock": lock(expires_at=NOW + 900_000 * DAY)},
            "The lock 'sales' is held by web-1, pid 4711 for longer than any lease.",
        ),
        (
            State.STALE,
            {"lock": lock()},
            "The lock 'sales' is held by web-1, pid 4711, which has sent no heartbeat for 1 hour.",
        ),
        (
            State.OVERDUE,
            {"status": status(next_slot=NOW - HOUR)},
            "The job 'nightly' has been due for 1 hour, since 2026-11-21 11:05:00 UTC, and is not being run.",
        ),
        (
            State.OVERDUE,
            {
                "status": status(
                    next_slot=NOW + HOUR, abandoned=True, last_status="interrupted", last_finished_at=NOW - HOUR
                )
            },
            "The job 'nightly' has been due for 1 hour, since 2026-11-21 11:05:00 UTC, and is not being run.",
        ),
        (
            State.AHEAD,
            {"status": status(next_slot=NOW + 400 * DAY)},
            "The job 'nightly' waits for 2027-12-26 12:05:00 UTC, which is too far away",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=1, last_status="failed")},
            "The last run of the job 'nightly' failed.",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=1, last_status="abandoned")},
            "The last run of the job 'nightly' was abandoned, because its holder died.",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=1, last_status="interrupted")},
            "The last run of the job 'nightly' was interrupted.",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=1, last_status="skipped")},
            "The job 'nightly' failed, and its last run skipped itself.",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=3, last_status="skipped")},
            "The job 'nightly' did not succeed 3 times, and its last run skipped itself.",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=3, last_status="failed")},
            "The last 3 runs of the job 'nightly' did not succeed.",
        ),
        (
            State.FAILING,
            {"status": status(consecutive_failures=3, last_status="abandoned")},
            (
                "The last 3 runs of the job 'nightly' did not succeed. The last one was abandoned, because its holder "
                "died."
            ),
        ),
        (
            State.OVERRUNNING,
            {"status": status(mean_duration=MINUTE), "lock": lock()},
            "The job 'nightly' has been running for 2 hours on web-1, pid 4711; its mean duration is 1 minute.",
        ),
        (
            State.DELAYED,
            {"status": status(next_slot=NOW - HOUR), "lock": lock()},
            (
                "The job 'nightly' has been due for 1 hour, since 2026-11-21 11:05:00 UTC, while web-1, pid 4711 has "
                "held its lock for 2 hours."
            ),
        ),
        (State.UNSEEN, {}, "The job 'nightly' has a schedule, but no server has ever requested it."),
    ],
    ids=str,
)
def test_each_bad_state_is_told_in_a_sentence(state: State, rows: dict[str, Any], what_happened: str) -> None:
    found = finding(state, **rows)
    assert str(found.what_happened).removesuffix(": the database's clock was set back.") == what_happened
    assert str(found.what_to_do).endswith(".")
    assert (found.kind, found.level, found.subject) == (state, state.level, "nightly")


def test_everything_that_may_be_wrong_stands_in_the_table() -> None:
    assert KINDS.keys() == {*Trouble, *(state for state in State if state.level)}


def test_after_an_interruption_it_says_where_the_reason_is() -> None:
    found = finding(State.FAILING, status=status(consecutive_failures=1, last_status="interrupted"))
    assert "raise its max_runtime or the worker's --grace" in str(found.what_to_do)


# --- queues


def worker(*queues: str, is_live: bool = True) -> SeenWorker:
    return SeenWorker(holder="web-1, pid 1", queues=queues, seen_at=NOW, is_once=False, is_live=is_live)


@pytest.mark.parametrize(
    ("workers", "kind", "level", "told"),
    [
        ([], "no_worker", Level.CRITICAL, "No worker is alive."),
        ([worker(is_live=False)], "no_worker", Level.CRITICAL, "No worker is alive."),
        ([worker("media"), worker(is_live=False)], "unserved", Level.CRITICAL, "No live worker serves this queue."),
        ([worker("media"), worker("mail")], "late", Level.WARNING, "A worker serves this queue."),
        ([worker()], "late", Level.WARNING, "A worker serves this queue."),
    ],
)
def test_work_that_is_late_is_told_with_the_reason(
    workers: list[SeenWorker], kind: str, level: Level, told: str
) -> None:
    (found,) = of_queue(Queue(name="mail", due=9, oldest=6 * MINUTE), workers, 1)
    assert (found.kind.value, found.level, found.about, found.subject) == (kind, level, "queue", "mail")
    assert str(found.what_happened) == f"9 one-offs are due in the queue 'mail', the oldest for 6 minutes. {told}"


def test_one_is_told_as_one() -> None:
    late, failed = of_queue(Queue(name="mail", due=1, oldest=HOUR, failed=1, finished=1, failed_share=1), [], 1)
    assert str(late.what_happened) == "1 one-off has been due in the queue 'mail' for 1 hour. No worker is alive."
    assert str(failed.what_happened) == "1 of 1 one-off of the queue 'mail' that finished in the last hour failed."


def test_more_than_are_counted_are_told_so() -> None:
    queue = Queue(name="mail", due=3000, is_cut=True, oldest=HOUR, failed=3000, finished=None, failed_share=0.4)
    late, failed = of_queue(queue, [worker()], 1)
    assert str(late.what_happened).startswith("3,000 or more one-offs are due in the queue 'mail', the oldest for 1 h")
    assert str(failed.what_happened) == "3,000 or more one-offs of the queue 'mail' failed in the last hour."
    assert failed.level == Level.WARNING


def test_a_hostile_queue_forges_neither_a_line_nor_a_command() -> None:
    (found,) = of_queue(Queue(name="{name} ;\nreboot", due=2, oldest=HOUR), [worker("mail")], 1)
    assert "'{name} ;\\nreboot'" in str(found.what_happened)
    assert "--queue '{name} ;\nreboot'." in str(found.what_to_do)


# --- workers


@pytest.mark.parametrize(("is_last", "level"), [(True, Level.CRITICAL), (False, Level.WARNING)])
def test_a_dead_worker_is_worse_if_it_was_the_last(is_last: bool, level: Level) -> None:
    health = Health(name="django_singlejob.worker.1", state=State.STALE, status=None, lock=lock())
    (found,) = of_worker(health, is_last=is_last)
    assert (found.kind.value, found.level, found.about) == ("dead", level, "worker")
    assert str(found.what_happened) == "The worker web-1, pid 4711 has died: it has sent no heartbeat for 1 hour."
