"""What can be stopped, what cannot, and that nothing but what was seen is hit."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection

from django_singlejob import JobStopped, current_run, job_lock, raise_if_stopped, singleton_job
from django_singlejob.control.stopping import Obstacle, lock_of, stop_one_off, stop_run
from django_singlejob.locking.clear import clear
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.holder import this_process
from tests.contract.acts import BEAT, expire, last_run, lock, start_run, statements, take, ticked
from tests.databases import APPS

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process"),
]


def start(job_name: str = "nightly", **terms: Any) -> Any:
    """A run on another server, which sends heartbeats, as far as its row says."""
    return start_run(job_name, **{"heartbeat_interval": 100 * BEAT} | terms)


TERMS: dict[str, Any] = {"name": "nightly", "heartbeat_interval": 100 * BEAT}


def stop(name: str = "nightly") -> Obstacle | None:
    return stop_run(lock(name), "ada")


def test_a_run_is_marked_once() -> None:
    start()
    assert stop() is None
    assert lock().stopped_by == "ada"
    assert stop_run(lock(), "bob") is Obstacle.STOPPED
    assert lock().stopped_by == "ada"


def test_one_that_was_marked_after_it_was_seen_stays_as_it_is() -> None:
    start()
    seen = lock()
    assert stop() is None
    assert stop_run(seen, "bob") is Obstacle.STOPPED


def test_neither_what_has_ended_nor_its_successor_is_hit() -> None:
    lease = start()
    seen = lock()
    lease.release()
    assert stop_run(seen, "ada") is Obstacle.OVER
    start()
    assert stop_run(seen, "ada") is Obstacle.OVER
    assert lock().stopped_by == ""


@pytest.mark.parametrize(
    ("terms", "obstacle"),
    [
        ({"name": "django_singlejob.worker.1"}, Obstacle.WORKER),
        ({"heartbeat_interval": None}, Obstacle.DEAF),
    ],
)
def test_what_would_not_find_out_is_left_alone(terms: dict[str, Any], obstacle: Obstacle) -> None:
    name = take(**TERMS | terms).name
    assert stop(name) is obstacle
    assert lock(name).stopped_by == ""


def test_a_silent_holder_is_left_alone() -> None:
    start()
    expire()
    assert stop() is Obstacle.SILENT
    assert lock().stopped_by == ""


def test_the_holder_of_a_block_is_told_and_so_is_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with job_lock("nightly") as lease:
        assert stop() is None
        raise_if_stopped()  # this is not a job
        with caplog.at_level(logging.WARNING, "django_singlejob"):
            lease.renew()
            lease.renew()
        with pytest.raises(JobStopped):
            lease.check()
    assert [record.getMessage() for record in caplog.records] == [
        "The run of 'nightly' has to end: it was stopped by ada."
    ]
    assert vars(caplog.records[0])["singlejob_lock"] == "nightly"


# --- one-offs of a job


def is_stopped(raises: type[Exception] | None = None) -> None:
    """What the body of a job does that is stopped meanwhile. It ends with `raises`, or else with `JobStopped`."""
    run = current_run()
    assert run
    assert stop() is None
    run.lease.renew()
    try:
        raise_if_stopped()
    except JobStopped:
        if raises:
            raise raises from None
        raise


@pytest.mark.parametrize("raises", [None, ValueError])
def test_a_one_off_that_was_stopped_is_neither_retried_nor_started_again(raises: type[Exception] | None) -> None:
    job = singleton_job("nightly", retries=3, retry_delay=timedelta(), max_attempts=3)(lambda: is_stopped(raises))
    job.enqueue()
    ticked()
    row = one_offs().get()
    assert (row.status, row.attempt) == ("failed", 1)
    assert row.error == last_run().error
    assert row.finished_at
    if raises is None:
        assert (last_run().status, row.error) == ("interrupted", "JobStopped: The run was stopped by ada.")
        assert row.error_class == "django_singlejob.exceptions.JobStopped"
    assert ticked() == []


def test_one_that_ends_well_although_it_was_stopped_is_done() -> None:
    def body() -> str:
        with pytest.raises(JobStopped):
            is_stopped()
        return "all the same"

    singleton_job("nightly", retries=3)(body).enqueue()
    ticked()
    assert (one_offs().get().status, one_offs().get().result) == ("done", "all the same")


def test_a_call_that_was_stopped_is_not_retried() -> None:
    job = singleton_job("nightly", retries=3)(lambda: is_stopped(ValueError))
    with pytest.raises(ValueError, match=r"^$"):
        job()
    assert not one_offs().exists()


def test_after_it_was_stopped_a_one_off_can_be_retried_by_hand() -> None:
    def body() -> None:
        run = current_run()
        assert run
        if run.attempt == 1:
            is_stopped()

    singleton_job("nightly")(body).enqueue()
    ticked()
    one_offs().retry("bob")
    ticked()
    assert (one_offs().get().status, one_offs().get().attempt) == ("done", 2)


def test_one_in_progress_is_stopped_by_its_lock() -> None:
    job = singleton_job("nightly", lock="shared")(lambda: None)
    row = job.enqueue()
    assert stop_one_off(row, "ada") is Obstacle.OVER
    lease = start("nightly", name="shared", one_off=row)
    seen = one_offs().get()
    assert stop_one_off(seen, "ada") is None
    assert (lock("shared").stopped_by, one_offs().get().stopped_by) == ("ada", "")
    assert stop_one_off(seen, "bob") is Obstacle.STOPPED
    lease.release()
    start("nightly", name="shared")
    assert stop_one_off(seen, "ada") is Obstacle.OVER
    assert lock("shared").stopped_by == ""


# --- tasks


@pytest.fixture
def tasks(fresh_process: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    tasks = pytest.importorskip("tests.app.django_tasks", reason="Django has tasks from 6.0 on")
    monkeypatch.setattr(tasks, "body", tasks.echo)
    return tasks


def claim(path: str = "tests.app.django_tasks.plain", **columns: Any) -> OneOffJob:
    """A task that another worker has begun. That worker holds its lock."""
    worker = take("django_singlejob.worker.7", heartbeat_interval=100 * BEAT)
    row = one_offs().create(
        task_path=path,
        **{"max_attempts": 3, "created_at": worker.acquired_at, "run_after": worker.acquired_at} | columns,
    )
    assert one_offs().claim(row, worker.token, this_process())
    return one_offs().get()


def test_a_task_is_marked_once_and_by_its_attempt() -> None:
    row = claim()
    assert stop_one_off(row, "ada") is None
    assert stop_one_off(row, "bob") is Obstacle.STOPPED
    assert stop_one_off(one_offs().get(), "bob") is Obstacle.STOPPED
    assert (one_offs().get().stopped_by, one_offs().get().version) == ("ada", row.version)


def test_neither_a_task_that_has_ended_nor_a_later_attempt_is_hit() -> None:
    row = claim()
    one_offs().release(lock("django_singlejob.worker.7").token)
    assert stop_one_off(row, "ada") is Obstacle.OVER
    assert stop_one_off(one_offs().get(), "ada") is Obstacle.OVER
    assert one_offs().claim(one_offs().get(), lock("django_singlejob.worker.7").token, this_process())
    assert stop_one_off(row, "ada") is Obstacle.OVER
    assert one_offs().get().stopped_by == ""


def test_the_task_of_a_dead_worker_is_left_alone() -> None:
    row = claim()
    expire("django_singlejob.worker.7")
    assert stop_one_off(row, "ada") is Obstacle.SILENT
    locks().all().delete()
    assert stop_one_off(row, "ada") is Obstacle.OVER
    assert lock_of(row.token) is lock_of(None) is lock_of(uuid4()) is None


def test_what_was_stopped_does_not_begin_again_after_the_death_of_its_worker() -> None:
    row = claim()
    assert stop_one_off(row, "ada") is None
    expire("django_singlejob.worker.7")
    assert clear(lock("django_singlejob.worker.7"), error="It is dead.")
    assert (one_offs().get().status, one_offs().get().error) == ("failed", "It is dead.")
    assert one_offs().get().finished_at


def test_what_was_stopped_before_a_thread_has_begun_it_is_cancelled() -> None:
    row = claim()
    assert stop_one_off(row, "ada") is None
    assert row.token
    one_offs().release(row.token)
    assert (one_offs().get().status, one_offs().get().attempt) == ("cancelled", 0)
    assert one_offs().get().finished_at


def test_a_later_attempt_has_no_mark() -> None:
    row = claim()
    assert stop_one_off(row, "ada") is None
    assert row.token
    one_offs().release(row.token)
    assert one_offs().retry() == 1
    assert one_offs().get().stopped_by == ""
    one_offs().update(stopped_by="eve")
    assert one_offs().claim(one_offs().get(), row.token, this_process())
    assert one_offs().get().stopped_by == ""


def test_a_task_finds_out_when_it_asks_and_has_failed_for_good(tasks: Any) -> None:
    def body() -> None:
        raise_if_stopped()
        assert stop_one_off(one_offs().get(), "ada") is None
        while True:
            raise_if_stopped()

    tasks.body = body
    tasks.plain.enqueue()
    one_offs().update(max_attempts=5)
    ticked()
    row = one_offs().get()
    assert (row.status, row.attempt, row.error) == ("failed", 1, "JobStopped: The run was stopped by ada.")
    assert ticked() == []


def test_an_asynchronous_task_asks_in_a_thread(tasks: Any) -> None:
    async def body() -> None:
        assert await sync_to_async(lambda: stop_one_off(one_offs().get(), "ada"))() is None
        await sync_to_async(raise_if_stopped)()

    tasks.body = body
    tasks.asynchronous.enqueue()
    ticked()
    assert one_offs().get().error == "JobStopped: The run was stopped by ada."


def test_to_ask_often_costs_a_query_a_second(tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("django_singlejob.tasks.attempt.local_now", lambda: now[0])
    asked: list[int] = []

    def body() -> None:
        with statements("oneoffjob") as sent:
            for second in range(3):
                now[0] += second
                for _ in range(1000):
                    raise_if_stopped()
                asked.append(len(sent))

    tasks.body = body
    tasks.plain.enqueue()
    ticked()
    assert (one_offs().get().error, asked) == ("", [1, 2, 3])


def test_a_task_goes_on_if_the_database_does_not_answer(tasks: Any, caplog: pytest.LogCaptureFixture) -> None:
    def body() -> str:
        with connection.execute_wrapper(refuse):
            raise_if_stopped()
        return "went on"

    tasks.body = body
    tasks.plain.enqueue()
    ticked()
    assert (one_offs().get().status, one_offs().get().result) == ("done", "went on")
    (record,) = [record for record in caplog.records if record.name == "django_singlejob"]
    assert record.getMessage().startswith("Whether a user has stopped the task 'tests.app.django_tasks.plain' is not")


def refuse(*call: Any) -> Any:
    raise OperationalError("It is away.")


def test_nothing_happens_outside_of_jobs_and_tasks() -> None:
    with statements("joblock") as sent:
        raise_if_stopped()
    assert sent == []
