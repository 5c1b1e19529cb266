"""What Django's tasks framework requires of its backend. `contract/test_tasks.py` runs the tasks."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.checks import run_checks
from django.db import connection, transaction
from django.utils.functional import SimpleLazyObject

from django_singlejob import singleton_job
from django_singlejob.backends import SingleJobBackend
from django_singlejob.exceptions import InvalidOrder, LeaseLost
from django_singlejob.jobs import registry
from django_singlejob.models.one_offs import one_offs
from tests.app import django_tasks as tasks
from tests.app.tasks_api import (
    PACKAGE,
    InvalidTask,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task,
    task_backends,
    task_enqueued,
)
from tests.contract.acts import HOUR, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from tests.app.tasks_api import TaskResult

pytestmark = pytest.mark.django_db

BACKEND = "django_singlejob.backends.SingleJobBackend"


@pytest.fixture(autouse=True)
def jobs_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    for found in (tasks.stock, tasks.stock_asynchronous, tasks.stock_with_context):
        registry.register(found.func)  # type: ignore[arg-type]


def enqueued_async(found: Any, *args: Any, **kwargs: Any) -> TaskResult[..., Any]:
    return async_to_sync(found.aenqueue)(*args, **kwargs)  # type: ignore[no-any-return]


def enqueued(found: Any, *args: Any, **kwargs: Any) -> TaskResult[..., Any]:
    return found.enqueue(*args, **kwargs)  # type: ignore[no-any-return]


in_both_worlds = pytest.mark.parametrize("enqueue", [enqueued, enqueued_async])
each_kind = pytest.mark.parametrize(
    "name", ["plain", "asynchronous", "with_context", "stock", "stock_asynchronous", "stock_with_context"]
)


# --- enqueued


@in_both_worlds
@each_kind
def test_what_was_enqueued_is_ready(enqueue: Callable[..., TaskResult[..., Any]], name: str) -> None:
    found = getattr(tasks, name)
    before = datetime.now(UTC)
    result = enqueue(found, 1, two=3)
    after = datetime.now(UTC)
    assert (result.task, result.status, result.is_finished) == (found, TaskResultStatus.READY, False)
    assert (result.args, result.kwargs, result.backend) == ([1], {"two": 3}, "default")
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.attempts, result.worker_ids, result.errors) == (0, [], [])
    assert isinstance(result.id, str)
    assert result.enqueued_at
    assert before - SECOND <= result.enqueued_at <= after + SECOND
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


@in_both_worlds
def test_a_type_that_is_no_json_is_a_type_error(enqueue: Callable[..., TaskResult[..., Any]]) -> None:
    with pytest.raises(TypeError):
        enqueue(tasks.plain, object())


# --- with other options


def test_using_makes_another_task() -> None:
    other = tasks.plain.using()
    assert other == tasks.plain
    assert other is not tasks.plain
    soon = datetime.now(UTC) + HOUR
    chained = other.using(run_after=soon).using(priority=10).using(queue_name="mail")
    assert (chained.run_after, chained.priority, chained.queue_name) == (soon, 10, "mail")
    assert (other.run_after, other.priority, other.queue_name) == (None, 0, "default")


@each_kind
def test_a_result_knows_how_its_task_was_asked_for(name: str) -> None:
    wanted = getattr(tasks, name).using(
        priority=-100, queue_name="mail", run_after=datetime.now(timezone(5 * HOUR)) + HOUR
    )
    result = wanted.enqueue()
    assert result.task == wanted
    assert tasks.plain.get_backend().get_result(result.id).task == wanted


@each_kind
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"priority": -101}, "priority"),
        ({"priority": 101}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"run_after": datetime(2026, 1, 1)}, "run_after"),  # noqa: DTZ001
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(name: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidTask, match=expected):
        getattr(tasks, name).using(**options)


@each_kind
def test_a_queue_that_the_settings_do_not_name_is_refused(name: str, settings: Settings) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}}
    found = getattr(tasks, name)
    assert found.using(queue_name="mail").enqueue().task.queue_name == "mail"
    with pytest.raises(InvalidTask, match="Queue 'other'"):
        found.using(queue_name="other")


@in_both_worlds
def test_it_is_asked_again_when_the_task_is_enqueued(
    enqueue: Callable[..., TaskResult[..., Any]], settings: Settings
) -> None:
    found = tasks.plain.using(queue_name="mail")
    settings.TASKS = {"default": {"BACKEND": BACKEND}}
    with pytest.raises(InvalidTask, match="Queue 'mail'"):
        enqueue(found)
    assert not one_offs().exists()


def test_a_function_whose_path_is_too_long_is_refused() -> None:
    def function() -> None: ...

    function.__module__, function.__qualname__ = tasks.__name__, "f" * 201
    with pytest.raises(InvalidTask):
        task(function)


def nested() -> Callable[[], None]:
    def function() -> None: ...

    return function


@pytest.mark.parametrize("function", [nested(), any, [].append], ids=["nested", "builtin", "bound"])
def test_a_function_that_no_worker_could_import_is_no_task(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidTask, match="module level"):
        task(function)


@pytest.mark.parametrize("function", [lambda: None, nested], ids=["lambda", "another name"])
def test_nor_is_one_under_whose_path_there_is_no_task(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidTask):
        task(function).enqueue()


def test_one_in_hand_may_be_neither_in_an_app_nor_in_the_setting_which_is_warned_of(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages have tasks outside their apps, and import them when they are loaded."""
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("tests.app")]
    monkeypatch.setattr(apps.get_app_config("django_singlejob"), "loaded", frozenset())
    for enqueue in enqueued, enqueued_async:
        result = enqueue(tasks.plain)
        assert tasks.plain.get_result(result.id) == result
    warned = [message.msg for message in default_task_backend.check() if message.id == "singlejob.W012"]
    assert "Workers may not find the task 'tests.app.django_tasks.plain': they do not import its module." in warned
    assert not any("stock" in text for text in warned)  # jobs are found by their names


def test_one_that_no_worker_could_find_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(default_task_backend.check())
    monkeypatch.setattr(tasks, "other_name", dataclasses.replace(tasks.plain, priority=5), raising=False)
    assert not list(default_task_backend.check())  # it is the same function
    lost = task(nested)
    monkeypatch.setattr(tasks, "lost", lost, raising=False)
    (message,) = default_task_backend.check()
    assert message.id == "singlejob.W012"
    assert message.msg.startswith(f"Workers cannot find a task at {lost.module_path!r}.")


def test_to_look_for_them_evaluates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules have objects that ask the database when they are used, perhaps before its tables are made."""
    lazy = SimpleLazyObject(lambda: pytest.fail("This asks the database."))
    monkeypatch.setattr(tasks, "lazy", lazy, raising=False)
    assert not list(default_task_backend.check())


def test_but_one_that_is_a_job_may_be_anywhere(settings: Settings) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("tests.app")]
    result = enqueued(tasks.stock)
    assert tasks.stock.get_result(result.id) == result


def test_nor_is_a_job_within_a_function() -> None:
    with pytest.raises(InvalidTask, match="module level"):
        task(singleton_job("inner")(nested()))


@pytest.mark.parametrize("name", ["plain", "asynchronous", "stock", "stock_asynchronous"])
def test_who_takes_a_context_has_an_argument_for_it(name: str) -> None:
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(getattr(tasks, name).func)


# --- results


def test_a_result_is_found_by_its_id() -> None:
    result = tasks.plain.enqueue(1)
    assert tasks.plain.get_result(result.id) == result
    assert async_to_sync(tasks.plain.aget_result)(result.id) == result
    assert default_task_backend.get_result(result.id) == result
    assert async_to_sync(default_task_backend.aget_result)(result.id) == result


@pytest.mark.parametrize(
    "result_id",
    [
        *("123", "", "-1", " 1", "1_0", "1\0", "²", "٣", "0", str(2**63), "9" * 5000),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_is_the_id_of_none_is_found_nowhere(result_id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.plain.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(tasks.plain.aget_result)(result_id)


@pytest.mark.parametrize("result_id", [1, None, 1.0, b"1", True, object(), ["1"]], ids=lambda each: type(each).__name__)
def test_what_is_no_text_is_the_id_of_none(result_id: Any) -> None:
    tasks.plain.enqueue()
    with pytest.raises(TaskResultDoesNotExist):
        tasks.plain.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(default_task_backend.aget_result)(result_id)


@each_kind
@pytest.mark.parametrize("ahead", [None, -1000 * HOUR, -HOUR / 3600, HOUR], ids=str)
def test_both_tell_the_same_run_after(name: str, ahead: timedelta | None) -> None:
    run_after = None if ahead is None else datetime.now(UTC) + ahead
    wanted = getattr(tasks, name).using(run_after=run_after)
    result = wanted.enqueue()
    found = wanted.get_result(result.id)
    assert result.task.run_after == found.task.run_after == wanted.run_after == run_after
    assert result == found


ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


@pytest.mark.parametrize("write", [lambda given: given.translate(ARABIC), "0{}".format], ids=["arabic", "zero"])
def test_an_id_is_written_in_one_way(write: Callable[[str], str]) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.plain.get_result(write(tasks.plain.enqueue().id))


def test_the_result_of_another_task_is_a_mismatch() -> None:
    for result in (tasks.asynchronous.enqueue(), tasks.stock.enqueue()):
        with pytest.raises(TaskResultMismatch, match="does not match"):
            tasks.plain.get_result(result.id)
        with pytest.raises(TaskResultMismatch, match="does not match"):
            async_to_sync(tasks.plain.aget_result)(result.id)


def test_a_one_off_that_is_no_task_has_no_result() -> None:
    row = singleton_job("mail")(lambda: None).enqueue()
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(str(row.pk))


@pytest.mark.parametrize(
    "path", ["tests.app.django_tasks.gone", "tests.app.gone.task", "tests.app.django_tasks.echo", "gone", ""]
)
def test_nor_has_one_that_this_release_does_not_know(path: str) -> None:
    result = tasks.plain.enqueue()
    one_offs().update(task_path=path)
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)


@pytest.mark.parametrize("path", ["unittest.__main__", "unittest.__main__.main", "antigravity.send", "this.s"])
def test_nor_is_a_foreign_module_imported(path: str) -> None:
    result = tasks.plain.enqueue()
    one_offs().update(task_path=path, error_class=path)
    before = {*sys.modules}
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    one_offs().update(task_path=tasks.plain.module_path)
    (error,) = default_task_backend.get_result(result.id).errors
    with pytest.raises(ImportError):
        _ = error.exception_class
    assert {*sys.modules} - before == set()


@pytest.mark.parametrize("kind", [ValueError, SystemExit, InvalidTask, LeaseLost])
def test_the_class_of_an_exception_is_what_django_promises(kind: type[BaseException]) -> None:
    result = tasks.plain.enqueue()
    path = f"{kind.__module__}.{kind.__qualname__}"
    one_offs().update(error_class=path, traceback="five")
    (error,) = default_task_backend.get_result(result.id).errors
    assert isinstance(error, TaskError)
    assert (error.exception_class, error.exception_class_path, error.traceback) == (kind, path, "five")
    assert pickle.loads(pickle.dumps(error)) == error
    one_offs().update(error_class="builtins.print")
    (error,) = default_task_backend.get_result(result.id).errors
    with pytest.raises(ValueError, match="does not reference a valid exception"):
        _ = error.exception_class


def test_a_result_that_was_pruned_is_found_no_more() -> None:
    result = tasks.plain.enqueue()
    one_offs().all()._raw_delete(one_offs().db)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_refreshing_a_result_tells_the_news() -> None:
    result = tasks.plain.enqueue()
    before = dataclasses.asdict(result)
    result.refresh()
    async_to_sync(result.arefresh)()
    assert dataclasses.asdict(result) == before
    one_offs().update(status="in_progress", started_at=datetime.now(UTC), attempt=1, worker_ids="web-1:7\n")
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.RUNNING, 1, ["web-1:7"])
    assert result.started_at == result.last_attempted_at
    one_offs().update(status="done", finished_at=datetime.now(UTC), result=[42])
    async_to_sync(result.arefresh)()
    assert (result.status, result.is_finished, result.return_value) == (TaskResultStatus.SUCCESSFUL, True, [42])


# --- the function itself


@pytest.mark.parametrize("name", ["plain", "asynchronous"])
def test_a_task_can_be_called_without_a_worker(name: str) -> None:
    found = getattr(tasks, name)
    assert found.call(1) == [(1,), {}]
    assert async_to_sync(found.acall)(1) == [(1,), {}]


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django pickles tasks since 6.1")
@each_kind
def test_tasks_and_results_can_be_pickled(name: str) -> None:
    wanted = getattr(tasks, name).using(priority=5, run_after=datetime.now(UTC) + HOUR)
    assert pickle.loads(pickle.dumps(wanted)) == wanted
    result = wanted.enqueue(1)
    assert pickle.loads(pickle.dumps(result)) == result


class ReadsFromReplica:
    def db_for_read(self, model: object, **hints: object) -> str:
        return "a replica that lags behind"

    def db_for_write(self, model: object, **hints: object) -> str:
        return "default"


def test_a_replica_for_reads_breaks_nothing(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [ReadsFromReplica()]
    result = tasks.plain.enqueue()
    result.refresh()
    assert tasks.plain.get_result(result.id) == result


# --- the backend


def test_what_it_can_do() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, SingleJobBackend)
    assert (backend.alias, backend.options) == ("default", {})
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_there_may_be_several(settings: Settings) -> None:
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 1}},
        "patient": {"BACKEND": BACKEND, "QUEUES": ["slow"], "OPTIONS": {"max_attempts": 9}},
        "immediate": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"},
    }
    wanted = tasks.plain.using(backend="patient", queue_name="slow")
    result = wanted.enqueue()
    assert (result.task, result.backend) == (wanted, "patient")
    assert task_backends["patient"].get_result(result.id).backend == "patient"
    assert tasks.plain.using(backend="immediate").enqueue().status == TaskResultStatus.SUCCESSFUL
    tasks.plain.enqueue()
    rows = one_offs().order_by("pk").values_list("backend", "queue_name", "max_attempts")
    assert list(rows) == [("patient", "slow", 9), ("default", "default", 1)]


def test_a_dead_worker_costs_a_task_an_attempt_of_three_unless_told_otherwise() -> None:
    tasks.plain.enqueue()
    tasks.stock.enqueue()
    assert {row.name: row.max_attempts for row in one_offs()} == {"tests.app.django_tasks.plain": 3, "stock": 2}


@pytest.mark.parametrize("options", [{}, {"max_attempts": 1}, {"max_attempts": 100}], ids=str)
def test_options_that_can_be(options: dict[str, Any], settings: Settings) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
    assert list(default_task_backend.check()) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_atempts": 1}, "singlejob.E009"),
        ({"max_attempts": 0}, "singlejob.E010"),
        ({"max_attempts": -1}, "singlejob.E010"),
        ({"max_attempts": "3"}, "singlejob.E010"),
        ({"max_attempts": 1.5}, "singlejob.E010"),
        ({"max_attempts": 2**31}, "singlejob.E010"),
        ({"max_attempts": None}, "singlejob.E010"),
    ],
    ids=str,
)
def test_djangos_check_tells_of_options_that_cannot_be(
    options: dict[str, Any], expected: str, settings: Settings
) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND}, "other": {"BACKEND": BACKEND, "OPTIONS": options}}
    (error,) = [message for message in run_checks() if "TASKS['other']['OPTIONS']" in message.msg]
    assert error.id == expected


# --- many at once


def enqueued_many(found: Any, calls: Any) -> list[TaskResult[..., Any]]:
    return found.get_backend().enqueue_many(found, calls)  # type: ignore[no-any-return]


def enqueued_many_async(found: Any, calls: Any) -> list[TaskResult[..., Any]]:
    return async_to_sync(found.get_backend().aenqueue_many)(found, calls)  # type: ignore[no-any-return]


many_in_both_worlds = pytest.mark.parametrize("enqueue_many", [enqueued_many, enqueued_many_async])


@many_in_both_worlds
@each_kind
def test_many_are_enqueued_at_once(enqueue_many: Callable[..., list[TaskResult[..., Any]]], name: str) -> None:
    found = getattr(tasks, name).using(priority=3)
    results = enqueue_many(found, [((number,), {"two": [number]}) for number in range(3)])
    assert [result.args for result in results] == [[0], [1], [2]]
    assert [result.kwargs for result in results] == [{"two": [0]}, {"two": [1]}, {"two": [2]}]
    assert {(result.task, result.status) for result in results} == {(found, TaskResultStatus.READY)}
    assert [found.get_result(result.id) for result in results] == results


def test_each_of_many_is_told_to_who_listens() -> None:
    heard: list[str] = []

    def listen(task_result: TaskResult[..., Any], **_: Any) -> None:
        heard.append(task_result.id)

    task_enqueued.connect(listen)
    try:
        results = enqueued_many(tasks.plain, [((), {})] * 3)
    finally:
        task_enqueued.disconnect(listen)
    assert heard == [result.id for result in results]


@many_in_both_worlds
def test_one_of_many_that_cannot_be_is_named(enqueue_many: Callable[..., list[TaskResult[..., Any]]]) -> None:
    with pytest.raises(InvalidOrder, match=r"of calls\[1\], argument 0 .* type object"):
        enqueue_many(tasks.plain, [((), {}), ((object(),), {})])
    assert not one_offs().exists()


@many_in_both_worlds
def test_of_a_task_that_no_worker_finds_none_is_enqueued(
    enqueue_many: Callable[..., list[TaskResult[..., Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tasks.plain
    monkeypatch.delattr(tasks, "plain")
    with pytest.raises(InvalidTask, match="cannot find a task"):
        enqueue_many(found, [((), {})])
    assert not one_offs().exists()


def test_a_task_takes_a_statement(django_assert_num_queries: Any) -> None:
    # MySQL returns nothing from an INSERT.
    is_told = connection.features.can_return_rows_from_bulk_insert
    with transaction.atomic(), django_assert_num_queries(1 if is_told else 2):
        tasks.plain.enqueue(1)
    with transaction.atomic(), django_assert_num_queries(1 if is_told else 3):
        enqueued_many(tasks.plain, [((1,), {}), ((2,), {})])
