"""Django's own tasks: they run on any server, concurrently, or under a job's lock if the task is a job."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections import Counter as Tally
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.management import call_command
from django.db import connection, transaction

from django_singlejob import Reason, SkipRun, current_run
from django_singlejob.database import transactions
from django_singlejob.exceptions import InvalidOrder, JobInterrupted
from django_singlejob.jobs import registry
from django_singlejob.locking.clear import clear
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.holder import this_process
from django_singlejob.process.received_signals import deferred_signals
from django_singlejob.tasks.batches import Batches, task_rows
from django_singlejob.tasks.django_tasks import _as_enqueued
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.app.models import Counter
from tests.app.tasks_api import PACKAGE, SIGNALS
from tests.contract.acts import HOUR, all_at_once, expire, in_thread, is_free, last_run, lock, take, tick, ticked
from tests.databases import APPS
from tests.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_django import Settings

    from django_singlejob import Lease
    from django_singlejob.models import OneOffJob
    from tests.app.tasks_api import TaskResult

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

BACKEND = "django_singlejob.backends.SingleJobBackend"
FIRST = "django_singlejob.worker.1"
PLAIN = ["plain", "asynchronous"]
JOBS = ["stock", "stock_asynchronous"]


each_kind = pytest.mark.parametrize("name", [*PLAIN, *JOBS])
with_and_without_a_lock = pytest.mark.parametrize("name", ["plain", "stock"])


@pytest.fixture
def tasks(fresh_process: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tests' tasks. `tasks.body` is what they do."""
    tasks = import_module("tests.app.django_tasks")
    for found in vars(tasks).values():
        if isinstance(job := getattr(found, "func", None), registry.Job):
            registry.register(job)
    monkeypatch.setattr(tasks, "body", tasks.echo)
    return tasks


@pytest.fixture
def heard(tasks: Any) -> Iterator[list[tuple[Any, str, TaskResult[..., Any]]]]:
    """Each signal's sender, name and task result."""
    heard: list[tuple[Any, str, TaskResult[..., Any]]] = []
    listeners = []
    for name, task_signal in SIGNALS.items():

        def listen(sender: Any, task_result: TaskResult[..., Any], name: str = name, **_: Any) -> None:
            heard.append((sender, name.removeprefix("task_"), task_result))

        task_signal.connect(listen)
        listeners.append((task_signal, listen))
    yield heard
    for task_signal, listen in listeners:
        task_signal.disconnect(listen)


def the_one_off() -> OneOffJob:
    return one_offs().get()


def statuses() -> list[tuple[str, int]]:
    return list(one_offs().order_by("pk").values_list("status", "attempt"))


def die_performing(most: int = 100) -> Lease:
    """A worker started what was due, and died."""
    lease = perform(most)
    expire(FIRST)
    return lease


def perform(most: int = 100) -> Lease:
    """A worker has started what is due, and is still running it."""
    lease = take(FIRST)
    with transactions.durable(transactions.alias()):
        assert task_rows().claim_locked(task_rows().parallel().lock_due(most), lease.token, this_process())
    return lease


# --- run


@each_kind
def test_it_waits_until_a_tick_runs_it_once(tasks: Any, name: str) -> None:
    result = getattr(tasks, name).enqueue("hello", [1, None], copies=2)
    (report,) = tick()
    assert report.status == "successful"
    result.refresh()
    assert (result.status, result.is_finished, result.errors) == ("SUCCESSFUL", True, [])
    assert result.return_value == [["hello", [1, None]], {"copies": 2}]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert (result.attempts, result.worker_ids) == (1, [f"{socket.gethostname()}:{os.getpid()}"])
    assert result == getattr(tasks, name).get_result(result.id)
    assert ticked() == []
    assert not locks().exists()


@pytest.mark.parametrize("is_committed", [True, False])
def test_inside_a_transaction_it_is_seen_when_that_is_committed(tasks: Any, is_committed: bool) -> None:
    with transaction.atomic():
        assert tasks.plain.enqueue().enqueued_at
        transaction.set_rollback(not is_committed)
    assert len(ticked()) == is_committed


@with_and_without_a_lock
def test_not_before_its_time(tasks: Any, name: str) -> None:
    later = getattr(tasks, name).using(run_after=datetime.now(UTC) + HOUR)
    result = later.enqueue()
    now = getattr(tasks, name).using(run_after=datetime.now(UTC) - HOUR).enqueue()
    ticked()
    assert statuses() == [("waiting", 0), ("done", 1)]
    for enqueued in result, now:
        enqueued.refresh()
    assert (result.status, result.task) == ("READY", later)
    assert now.status == "SUCCESSFUL"


def test_the_highest_priority_goes_first_then_the_one_that_waits_the_longest(tasks: Any) -> None:
    ran: list[str] = []
    tasks.body = ran.append
    for text, priority, ago in [("third", 0, 2), ("fourth", 0, 1), ("last", -100, 9), ("first", 100, 1)]:
        tasks.plain.using(priority=priority, run_after=datetime.now(UTC) - ago * HOUR).enqueue(text)
    tasks.asynchronous.using(priority=50).enqueue("second")
    ticked()
    assert ran == ["first", "second", "third", "fourth", "last"]


@with_and_without_a_lock
def test_a_worker_of_some_queues_leaves_the_others(tasks: Any, name: str) -> None:
    for queue in "slow", "fast", "default":
        getattr(tasks, name).using(queue_name=queue).enqueue()
    list(tick(["fast", "slow"]))
    done = dict(one_offs().values_list("queue_name", "status"))
    assert done == {"slow": "done", "fast": "done", "default": "waiting"}


def test_of_many_servers_each_is_run_by_one(tasks: Any) -> None:
    ran: list[int] = []
    tasks.body = ran.append
    for number in range(40):
        tasks.plain.enqueue(number)
    all_at_once([tick_until_none_waits] * 4)
    assert sorted(ran) == list(range(40))
    assert statuses() == [("done", 1)] * 40
    assert not locks().exists()


def tick_until_none_waits() -> None:
    while one_offs().filter(status__in=["waiting", "in_progress"]).exists():
        list(tick())


def test_they_run_beside_each_other(tasks: Any) -> None:
    """Each task has a tick run the others, and no other task is in the way."""
    tasks.body = lambda depth: [report.name for report in tick()] if depth else []
    for depth in 2, 1, 0:
        tasks.plain.using(priority=depth).enqueue(depth)
    ticked()
    assert statuses() == [("done", 1)] * 3


def test_one_that_enqueues_itself_does_not_keep_a_tick_from_ending(tasks: Any) -> None:
    tasks.body = lambda: tasks.plain.enqueue().id
    tasks.plain.enqueue()
    assert len(list(islice(tick(), 5))) <= 2
    assert one_offs().waiting().count() == 1


# --- bad endings


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@each_kind
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("five"), "ValueError: five"),
        (ValueError(ValueError("inner")), "inner"),
        (SystemExit("five"), "SystemExit: five"),
        (SystemExit(1), "SystemExit: 1"),
        (UnprintableError(), "UnprintableError"),
        (ValueError("\0\nforged"), "ValueError"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=["error", "nested", "exit", "exit status", "unprintable", "odd letters", "cancelled"],
)
def test_an_exception_is_told(
    tasks: Any, name: str, error: BaseException, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(registry._jobs, "stock", once(registry.get("stock")))
    tasks.body = fail
    result = getattr(tasks, name).enqueue()
    (report,) = tick()
    assert report.error is error
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1)
    (failure,) = result.errors
    assert failure.exception_class is type(error)
    assert "in fail" in failure.traceback
    assert message in failure.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert result.started_at <= result.finished_at
    assert ticked() == []


def once(job: registry.Job) -> registry.Job:
    """A job that is not retried."""
    return replace(job, retries=0)


def test_the_class_of_an_exception_may_be_out_of_reach(tasks: Any) -> None:
    class LocalError(Exception): ...

    def fail() -> None:
        raise LocalError("x" * 100_000)

    tasks.body = fail
    result = tasks.plain.enqueue()
    ticked()
    result.refresh()
    (failure,) = result.errors
    assert failure.exception_class_path.endswith(".<locals>.LocalError")
    with pytest.raises(ImportError):
        _ = failure.exception_class


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


each_that_is_no_json = pytest.mark.parametrize(
    "value",
    [object(), {(1, 2): 3}, {1, 2}, float("nan"), b"\xff", "\0", "\ud800", nested(31), "x" * 1_000_000],
    ids=["object", "key", "set", "nan", "bytes", "NUL", "surrogate", "too deep", "too long"],
)


@pytest.mark.parametrize("name", PLAIN)
@each_that_is_no_json
def test_a_result_that_is_no_json_is_a_type_error(tasks: Any, name: str, value: Any) -> None:
    tasks.body = lambda: value
    result = getattr(tasks, name).enqueue()
    ticked()
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].exception_class is TypeError
    assert "the result" in result.errors[0].traceback


@pytest.mark.parametrize("name", JOBS)
@each_that_is_no_json
def test_but_that_of_a_job_is_not_kept_and_no_failure(tasks: Any, name: str, value: Any) -> None:
    tasks.body = lambda: value
    result = getattr(tasks, name).enqueue()
    ticked()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", None)


@each_kind
@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"h\xc3\xa9", "h\u00e9"),
        (range(3), [0, 1, 2]),
        (Tally("aab"), {"a": 2, "b": 1}),
        ({1: (b"b", 2**70)}, {"1": ["b", 2**70]}),
        (10**4000, 10**4000),
    ],
    ids=["bytes", "range", "counter", "integer key", "long integer"],
)
def test_what_django_makes_json_of_comes_back_as_that(tasks: Any, name: str, value: Any, stored: Any) -> None:
    if re.search(r"\d{20}", str(stored)) and not transactions.keeps_long_integers("default"):
        pytest.skip("MySQL keeps no long integers")
    tasks.body = lambda given: [given, value]
    result = getattr(tasks, name).enqueue(value)
    assert result.args == [stored]
    ticked()
    result.refresh()
    assert (result.status, result.args) == ("SUCCESSFUL", [stored])
    assert result.return_value == [stored, stored]


def test_arguments_that_do_not_fit_are_a_failure_of_the_task(tasks: Any) -> None:
    result = tasks.with_context.enqueue(unknown=1)
    ticked()
    result.refresh()
    assert result.errors[0].exception_class is TypeError


@pytest.mark.parametrize("name", [*PLAIN, *JOBS])
@pytest.mark.parametrize("columns", [{"args": "ab"}, {"args": 5}, {"args": {"a": 1}}, {"kwargs": ["a"]}, {"kwargs": 1}])
def test_what_are_no_arguments_is_a_failure_of_the_task_once(tasks: Any, name: str, columns: dict[str, Any]) -> None:
    result = getattr(tasks, name).enqueue()
    one_offs().update(**columns)
    ticked()
    result.refresh()
    assert statuses() == [("failed", 1)]
    assert result.errors[0].exception_class is InvalidOrder
    assert "not a list and an object in JSON" in result.errors[0].traceback


@pytest.mark.parametrize("name", [*PLAIN, *JOBS])
@pytest.mark.parametrize(("interrupt", "attempts"), [(KeyboardInterrupt, 1), (JobInterrupted, 0)])
def test_one_that_was_interrupted_is_begun_again_and_burns_no_attempt_if_that_came_from_outside(
    tasks: Any, name: str, interrupt: type[BaseException], attempts: int
) -> None:
    def fail() -> None:
        raise interrupt

    tasks.body = fail
    result = getattr(tasks, name).enqueue()
    try:
        reports = list(islice(tick(), 3))
    except KeyboardInterrupt:  # Ctrl-C ends a tick
        reports = []
    assert len(reports) <= 1
    result.refresh()
    assert (result.status, result.attempts, len(result.worker_ids)) == ("READY", attempts, attempts)
    assert not locks().exists()
    tasks.body = tasks.echo
    ticked()
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", attempts + 1)


@each_kind
@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyboardInterrupt("enough"), SystemExit(1)], ids=repr)
@pytest.mark.parametrize("options", [{"once": True}, {"max_jobs": 4, "interval": 0.05}], ids=["once", "loop"])
def test_but_one_that_raises_it_by_itself_in_a_command_has_failed_and_ends_nothing(
    tasks: Any, name: str, error: BaseException, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a command, a signal would raise `JobInterrupted`. One pass is enough for all of them."""

    def leave(is_last: bool) -> None:
        if not is_last:
            raise error

    for job in JOBS:
        monkeypatch.setitem(registry._jobs, job, once(registry.get(job)))
    tasks.body = leave
    results = [getattr(tasks, name).enqueue(number == 3) for number in range(4)]
    with deferred_signals(), suppress(SystemExit):
        call_command("singleton_worker", stdout=StringIO(), stderr=StringIO(), **options)
    for result in results:
        result.refresh()
    assert [(result.status, result.attempts) for result in results] == [("FAILED", 1)] * 3 + [("SUCCESSFUL", 1)]
    assert {failure.exception_class for result in results for failure in result.errors} == {type(error)}
    assert not locks().exists()


@each_kind
def test_so_is_one_whose_process_is_told_to_end(tasks: Any, name: str) -> None:
    def be_told() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            pass

    async def be_told_async() -> None:
        while True:  # the main thread may be about to wait for this one, and the next signal wakes it
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.to_thread(a_moment)

    tasks.body = be_told_async if "asynchronous" in name else be_told
    for _ in range(2):
        getattr(tasks, name).enqueue()
    with deferred_signals():
        (report,) = tick()
    assert type(report.error) is JobInterrupted
    assert statuses() == [("waiting", 0)] * 2
    assert not locks().exists()


def worked() -> object:
    """What a worker with one thread does. That thread is not this one."""
    return list(Worker(Plan(max_jobs=2)).work())


def leave_a_transaction() -> None:
    transaction.atomic().__enter__()


def leave_one_that_is_aborted() -> None:
    leave_a_transaction()
    transaction.set_rollback(True)


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


def break_the_connection() -> None:
    connection.connection.close()


@pytest.mark.parametrize(
    "leave", [leave_a_transaction, leave_one_that_is_aborted, leave_autocommit_off, break_the_connection]
)
@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("stock", ticked),
        ("stock", worked),
        ("plain", worked),
        ("plain", ticked),
    ],
)
def test_what_a_task_leaves_behind_is_nothing_to_the_next(
    tasks: Any, name: str, leave: Callable[[], None], work: Callable[[], object]
) -> None:
    def begin(is_first: bool) -> None:
        Counter.objects.exists()  # connects
        if is_first:
            leave()
        else:
            Counter.objects.create(name="kept")

    tasks.body = begin
    found = getattr(tasks, name)
    for is_first in True, False:
        found.enqueue(is_first)
    in_thread(work)  # its connection is dropped
    assert [status for status, _ in statuses()][1] == "done"
    assert Counter.objects.filter(name="kept").exists()


# --- what results report


@each_kind
def test_who_listens_hears_of_each_step(tasks: Any, name: str, heard: list[Any]) -> None:
    result = getattr(tasks, name).enqueue()
    ticked()
    assert [(sender.__name__, what, heard_result.status) for sender, what, heard_result in heard] == [
        ("SingleJobBackend", "enqueued", "READY"),
        ("SingleJobBackend", "started", "RUNNING"),
        ("SingleJobBackend", "finished", "SUCCESSFUL"),
    ]
    assert {heard_result.id for _, _, heard_result in heard} == {result.id}
    _, started, finished = (heard_result for *_, heard_result in heard)
    assert (started.attempts, started.worker_ids) == (1, [f"{socket.gethostname()}:{os.getpid()}"])
    assert started.started_at
    assert not started.finished_at
    assert finished.finished_at
    assert finished.return_value == [[], {}] or finished.return_value == [(), {}]


@with_and_without_a_lock
def test_and_of_a_failure_when_it_is_the_last(tasks: Any, name: str, heard: list[Any]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("five")

    tasks.body = fail
    getattr(tasks, name).enqueue()
    ticked()
    ticked()
    attempts = 2 if name == "stock" else 1
    assert [what for _, what, _ in heard] == ["enqueued", *["started"] * attempts, "finished"]
    finished = heard[-1][2]
    assert (finished.status, finished.attempts) == ("FAILED", attempts)
    assert finished.errors[0].exception_class is ZeroDivisionError


@each_kind
def test_one_that_skips_itself_has_ended_without_a_result(
    tasks: Any, name: str, heard: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def skip() -> None:
        raise SkipRun("holiday")

    tasks.body = skip
    with caplog.at_level("INFO"):
        result = getattr(tasks, name).enqueue()
        (report,) = tick()
    assert (report.reason, report.detail, report.refusal) == (Reason.ITSELF, "holiday", None)
    result.refresh()
    assert (result.status, result.return_value, result.errors, result.attempts) == ("SUCCESSFUL", None, [], 1)
    assert [what for _, what, _ in heard] == ["enqueued", "started", "finished"]
    assert not any(record.exc_info for record in caplog.records)
    assert ticked() == []


@each_kind
@pytest.mark.parametrize("what", ["task_enqueued", "task_started", "task_finished"])
def test_a_listener_that_fails_breaks_nothing(tasks: Any, name: str, what: str) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError

    SIGNALS[what].connect(fail)
    try:
        result = getattr(tasks, name).enqueue()
        ticked()
    finally:
        SIGNALS[what].disconnect(fail)
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


@with_and_without_a_lock
def test_it_is_logged_as_djangos_backends_do(tasks: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("five")

    with caplog.at_level("DEBUG", PACKAGE):
        result = getattr(tasks, name).enqueue()
        ticked()
        tasks.body = fail
        failed = tasks.plain.enqueue()
        ticked()
    records = [record for record in caplog.records if record.name == PACKAGE]
    assert [record.levelname for record in records] == ["DEBUG", "INFO", "INFO", "DEBUG", "INFO", "ERROR"]
    words = [record.getMessage() for record in records]
    assert f"id={result.id} path=tests.app.django_tasks.{name} enqueued backend=default" in words[0]
    assert f"id={result.id} path=tests.app.django_tasks.{name} state=RUNNING" in words[1]
    assert f"id={result.id} path=tests.app.django_tasks.{name} state=SUCCESSFUL" in words[2]
    assert f"id={failed.id} path=tests.app.django_tasks.plain state=FAILED" in words[5]
    assert records[5].exc_info
    assert records[5].exc_info[0] is ZeroDivisionError
    assert "None" not in "".join(words)


@pytest.mark.parametrize("name", ["with_context", "stock_with_context"])
def test_a_task_can_look_itself_up(tasks: Any, name: str) -> None:
    def look(context: Any) -> Any:
        context.task_result.refresh()
        return [context.attempt, context.task_result.status]

    tasks.body = look
    result = getattr(tasks, name).enqueue()
    ticked()
    result.refresh()
    assert result.return_value == [1, "RUNNING"]


each_with_context = pytest.mark.parametrize(
    "name", ["with_context", "asynchronous_with_context", "stock_with_context", "stock_asynchronous_with_context"]
)


@each_with_context
def test_who_takes_a_context_is_told_of_this_attempt(tasks: Any, name: str) -> None:
    def look(context: Any, *args: Any) -> Any:
        given = context.task_result
        return [context.attempt, given.id, given.status, given.worker_ids, given.args, list(args)]

    tasks.body = look
    result = getattr(tasks, name).enqueue("a", 1)
    ticked()
    result.refresh()
    this_worker = f"{socket.gethostname()}:{os.getpid()}"
    assert result.return_value == [1, result.id, "RUNNING", [this_worker], ["a", 1], ["a", 1]]


@each_with_context
def test_and_of_a_further_one(tasks: Any, name: str) -> None:
    tasks.body = lambda context: context.attempt
    result = getattr(tasks, name).enqueue()
    one_offs().update(attempt=1, worker_ids="elsewhere:7\n")
    ticked()
    result.refresh()
    assert (result.return_value, result.attempts, result.worker_ids[0]) == (2, 2, "elsewhere:7")


# --- under the job's lock


@pytest.mark.parametrize("name", JOBS)
def test_a_task_that_is_a_job_runs_under_its_lock(tasks: Any, name: str) -> None:
    def look() -> Any:
        run = current_run()
        assert run
        return [run.job.name, run.attempt, is_free(name), is_free(FIRST)]

    tasks.body = look if name == "stock" else sync_to_async(look)
    result = getattr(tasks, name).enqueue()
    ticked()
    result.refresh()
    assert result.return_value == [name, 1, False, True]
    assert (the_one_off().job_name, the_one_off().task_path) == (name, "")
    assert (last_run(name).trigger, last_run(name).status) == ("one_off", "successful")


@pytest.mark.parametrize("name", JOBS)
def test_while_the_lock_is_held_it_waits_and_burns_no_attempt(tasks: Any, name: str, heard: list[Any]) -> None:
    results = [getattr(tasks, name).enqueue() for _ in range(3)]
    lease = take(name)
    (report,) = tick()
    assert report.reason == Reason.HELD
    assert statuses() == [("waiting", 0)] * 3
    assert [what for _, what, _ in heard] == ["enqueued"] * 3
    assert lease.release()
    assert len(ticked()) == 3
    for result in results:
        result.refresh()
        assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


def test_those_without_a_lock_do_not_wait_for_it(tasks: Any) -> None:
    tasks.stock.using(priority=10).enqueue()
    tasks.plain.enqueue()
    take("stock")
    ticked()
    assert statuses() == [("waiting", 0), ("done", 1)]


def test_it_is_tried_again_as_its_job_wants(tasks: Any) -> None:
    def fail() -> None:
        raise ZeroDivisionError("five")

    tasks.body = fail
    result = tasks.stock.enqueue()
    ticked()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 1)
    assert [failure.exception_class for failure in result.errors] == [ZeroDivisionError]
    tasks.body = tasks.echo
    ticked()
    result.refresh()
    assert (result.status, result.attempts, result.return_value) == ("SUCCESSFUL", 2, [[], {}])
    assert [failure.exception_class for failure in result.errors] == [ZeroDivisionError]


@with_and_without_a_lock
def test_the_errors_of_all_attempts_are_kept(tasks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._jobs, "stock", once(registry.get("stock")))
    result = getattr(tasks, name).enqueue()
    for error in ZeroDivisionError("first"), LookupError("second"):
        tasks.body = partial(fail_with, error)
        ticked()
        assert one_offs().retry() == 1
    result.refresh()
    assert [failure.exception_class for failure in result.errors] == [ZeroDivisionError, LookupError]
    assert ["first" in failure.traceback for failure in result.errors] == [True, False]


def fail_with(error: Exception) -> None:
    raise error


def test_a_job_that_was_asked_for_in_both_ways_runs_for_both(tasks: Any, heard: list[Any]) -> None:
    tasks.stock.func.enqueue("as a job")
    tasks.stock.enqueue("as a task")
    assert len(ticked()) == 2
    assert statuses() == [("done", 1)] * 2
    assert len(heard) == 3


#: django-tasks goes by `inspect`, which takes no object for a coroutine function before Python 3.12.
sees_coroutines = pytest.mark.skipif(sys.version_info < (3, 12), reason="Django's own tasks need Python 3.12 anyway")


@pytest.mark.parametrize("name", ["stock", pytest.param("stock_asynchronous", marks=sees_coroutines)])
def test_a_task_that_is_a_job_can_be_called_without_a_worker(tasks: Any, name: str) -> None:
    value = getattr(tasks, name).call(1)
    if asyncio.iscoroutine(value):
        value.close()
    assert value == [(1,), {}]


def test_one_that_was_asked_for_before_it_became_a_job_runs_under_the_lock_too(tasks: Any) -> None:
    tasks.body = lambda: is_free("stock")
    tasks.plain.enqueue()
    one_offs().update(task_path="tests.app.django_tasks.stock")
    lease = take("stock")
    ticked()
    assert the_one_off().status == "waiting"
    assert lease.release()
    ticked()
    assert (the_one_off().status, the_one_off().result) == ("done", False)
    assert (the_one_off().job_name, the_one_off().task_path) == ("stock", "")


# --- other releases and settings


@pytest.mark.parametrize(
    "path", ["tests.app.django_tasks.gone", "tests.app.gone.task", "tests.app.django_tasks.echo", "gone", ""]
)
def test_a_task_that_this_release_does_not_know_waits_and_is_told_of(
    tasks: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        tasks.plain.using(priority=10).enqueue()
    one_offs().update(task_path=path)
    tasks.plain.enqueue()
    ticked()
    assert statuses() == [("waiting", 0)] * 3 + [("done", 1)]
    assert caplog.text.count(f" task {path!r}") == 1


def test_a_worker_tells_once_of_what_it_does_not_know(tasks: Any, caplog: pytest.LogCaptureFixture) -> None:
    batches = Batches(take(FIRST))
    for _ in range(3):
        tasks.plain.enqueue()
        one_offs().update(task_path="tests.app.django_tasks.gone")
        assert batches.record_and_claim(10) == []
    assert caplog.text.count("This release of the code has no task") == 1


def in_an_app(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This module counts as one of an installed app."""
    usual, of_tests = apps.get_containing_app_config, apps.get_app_config("test_app")
    monkeypatch.setattr(apps, "get_containing_app_config", lambda path: of_tests if path == name else usual(path))


@pytest.mark.parametrize("error", ["ZeroDivisionError", "SystemExit(2)", "KeyboardInterrupt", "BaseException"])
def test_a_module_that_cannot_be_imported_stops_no_others_and_is_tried_once(
    tasks: Any,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = f"tasks_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    in_an_app(name, monkeypatch)
    for function in "one", "two":
        tasks.plain.using(priority=10).enqueue()
        one_offs().filter(task_path="tests.app.django_tasks.plain").update(task_path=f"{name}.{function}")
    tasks.plain.enqueue()
    with deferred_signals():  # otherwise a KeyboardInterrupt is a Ctrl-C
        ticked()
    assert statuses() == [("waiting", 0)] * 2 + [("done", 1)]
    assert caplog.text.count(f"The module {name!r} cannot be imported ({error.partition('(')[0]}") == 1
    for function in "one", "two":
        assert caplog.text.count(f"The module of the task '{name}.{function}' cannot be imported: its one-offs") == 1
    ticked()
    assert caplog.text.count(f"The module {name!r} cannot be imported") == 1


@pytest.mark.parametrize(
    "code",
    [
        "connection.cursor().execute('SELECT no_such_column')",
        "connection.close()",
        "transaction.set_rollback(True)",
        "connection.needs_rollback = True",
        "connection.close(); raise SystemExit(2)",
    ],
)
def test_what_a_module_does_to_the_connection_stops_no_others(
    tasks: Any, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported outside the transaction that claims the tasks."""
    name = f"tasks_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"from django.db import connection, transaction\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    in_an_app(name, monkeypatch)
    tasks.plain.using(priority=10).enqueue()
    one_offs().update(task_path=f"{name}.send")
    tasks.plain.enqueue()
    ticked()
    assert statuses() == [("waiting", 0), ("done", 1)]
    assert not locks().exists()


def test_a_module_that_is_not_in_an_app_is_not_imported(
    tasks: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = f"tasks_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("from tests.app.django_tasks import plain\n")
    monkeypatch.syspath_prepend(tmp_path)
    tasks.plain.using(priority=10).enqueue()
    one_offs().update(task_path=f"{name}.plain")
    tasks.plain.enqueue()
    ticked()
    assert statuses() == [("waiting", 0), ("done", 1)]
    assert caplog.text.count(f"The task '{name}.plain' is not looked up") == 1
    assert name not in sys.modules
    in_an_app(name, monkeypatch)
    ticked()
    assert statuses() == [("done", 1)] * 2


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_found_by_its_name_wherever_its_function_is(
    tasks: Any, name: str, settings: Settings, heard: list[Any]
) -> None:
    result = getattr(tasks, name).enqueue()
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("tests.app")]
    ticked()
    assert statuses() == [("done", 1)]
    assert [what for _, what, _ in heard] == ["enqueued", "started", "finished"]
    assert getattr(tasks, name).get_result(result.id).return_value == [[], {}]


@with_and_without_a_lock
@pytest.mark.parametrize("alias", ["default", "former"])
def test_what_was_enqueued_runs_though_its_queue_or_backend_is_no_more(
    tasks: Any, name: str, alias: str, settings: Settings
) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": []}, "former": {"BACKEND": BACKEND, "QUEUES": []}}
    result = getattr(tasks, name).using(queue_name="mail", backend=alias).enqueue()
    _as_enqueued.cache_clear()  # another process
    settings.TASKS = {"default": {"BACKEND": BACKEND}}
    ticked()
    assert statuses() == [("done", 1)]
    assert getattr(tasks, name).get_result(result.id).return_value == [[], {}]


def test_one_worker_runs_what_several_backends_were_asked_for(tasks: Any, settings: Settings) -> None:
    settings.TASKS = {alias: {"BACKEND": BACKEND} for alias in ("default", "other")}
    results = [tasks.plain.using(backend=alias).enqueue() for alias in ("other", "default")]
    ticked()
    for result in results:
        result.refresh()
    assert [(result.backend, result.status) for result in results] == [
        ("other", "SUCCESSFUL"),
        ("default", "SUCCESSFUL"),
    ]


# --- death


def test_when_its_worker_dies_it_is_begun_again(tasks: Any, heard: list[Any]) -> None:
    results = [tasks.plain.enqueue(number) for number in range(3)]
    die_performing(most=2)
    results[0].refresh()
    assert (results[0].status, results[0].attempts) == ("RUNNING", 1)
    ticked()
    for result in results:
        result.refresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", [result.args, {}])
        assert len(result.worker_ids) == result.attempts
    assert sorted(attempt for _, attempt in statuses()) == [1, 2, 2]
    assert [what for _, what, _ in heard].count("finished") == 3


def test_not_while_its_worker_lives(tasks: Any) -> None:
    tasks.plain.enqueue()
    busy = perform()
    later = tasks.plain.enqueue()
    ticked()
    assert statuses() == [("in_progress", 1), ("done", 1)]
    later.refresh()
    assert later.status == "SUCCESSFUL"
    assert not is_free(busy.name)


def test_each_worker_has_a_lock_of_its_own_and_the_names_are_used_again(tasks: Any) -> None:
    held: list[list[str]] = []
    tasks.body = lambda: held.append(sorted(locks().values_list("name", flat=True)))
    first = take(FIRST)
    tasks.plain.enqueue()
    ticked()
    assert first.release()
    tasks.plain.enqueue()
    ticked()
    assert held == [[FIRST, "django_singlejob.worker.2"], [FIRST]]


def test_after_so_many_attempts_it_has_failed(tasks: Any, settings: Settings) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 2}}}
    result = tasks.plain.enqueue()
    for status in "READY", "FAILED":
        die_performing()
        assert clear(lock(FIRST))
        result.refresh()
        assert result.status == status
    assert (result.is_finished, result.attempts) == (True, 2)
    assert result.finished_at
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert ticked() == []


def test_who_was_taken_for_dead_cannot_record_what_it_did(tasks: Any) -> None:
    tasks.plain.enqueue()
    zombie = die_performing()
    row = the_one_off()
    ticked()
    done = one_offs().values().get()
    assert task_rows().finish_all([row], zombie.token, {"status": "failed"}) == 0
    assert not zombie.release()
    assert one_offs().values().get() == done
    assert statuses() == [("done", 2)]


def test_nor_can_a_worker_whose_lock_was_cleared_which_goes_on_under_another(
    tasks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = []

    def lose_the_first() -> int:
        tokens.append(lock(FIRST).token)
        if len(tokens) == 1:
            assert clear(lock(FIRST), force=True)
        return len(tokens)

    tasks.body = lose_the_first
    result = tasks.plain.enqueue()
    ticked()
    assert "was lost: it was taken over, cleared, or its row was deleted. Others retry the one-offs" in caplog.text
    result.refresh()
    assert (result.status, result.attempts, result.return_value) == ("SUCCESSFUL", 2, 2)
    assert len(set(tokens)) == 2
    assert not locks().exists()


def test_a_lock_that_was_deleted_by_hand_leaves_none_in_progress_for_ever(tasks: Any) -> None:
    tasks.plain.enqueue()
    perform()
    locks().all()._raw_delete(transactions.alias())
    ticked()
    assert statuses() == [("done", 2)]


def test_one_that_was_changed_by_hand_while_it_ran_is_left_and_told_of(
    tasks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.body = lambda: one_offs().update(status="cancelled")
    tasks.plain.enqueue()
    ticked()
    assert the_one_off().status == "cancelled"
    assert "was changed by hand while it ran" in caplog.text


def test_what_the_dead_had_not_done_is_done_once_by_those_who_live(tasks: Any) -> None:
    tasks.body = lambda number: Counter.objects.create(name=number).value
    for number in range(20):
        tasks.plain.enqueue(number)
    die_performing(most=5)
    all_at_once([tick_until_none_waits] * 3)
    assert Counter.objects.count() == 20
    assert sorted(statuses()) == [("done", 1)] * 15 + [("done", 2)] * 5


# --- cancelled


@with_and_without_a_lock
def test_one_that_was_cancelled_is_not_run(tasks: Any, name: str) -> None:
    result = getattr(tasks, name).enqueue()
    assert one_offs().cancel() == 1
    assert ticked() == []
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 0)


def test_one_that_is_in_progress_cannot_be_cancelled(tasks: Any) -> None:
    tasks.body = lambda: one_offs().cancel()
    result = tasks.plain.enqueue()
    ticked()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 0)


# --- failures


@pytest.mark.parametrize("name", ["plain", "stock_with_context"])
def test_a_failure_makes_one_error_in_the_log_with_its_traceback(
    tasks: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Django logs it, as for any backend."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(tasks, "body", fail)
    getattr(tasks, name).enqueue()
    said = StringIO()
    with pytest.raises(SystemExit):
        call_command("singleton_worker", once=True, stdout=said, stderr=said)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.name for record in errors] == [PACKAGE]
    assert errors[0].exc_info
    assert errors[0].exc_info[0] is ZeroDivisionError
    where = "One-off jobs" if name == "plain" else "Runs"
    assert f"failed, ZeroDivisionError:  (traceback: in the admin under {where})" in said.getvalue()
    kind = "task" if name == "plain" else "job"
    assert re.search(rf"The {kind} '[a-z._]+' failed: ZeroDivisionError", caplog.text)
