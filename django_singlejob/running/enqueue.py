"""Enqueues one-offs: ``job.using(run_after=...).enqueue(...)``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from asgiref.sync import sync_to_async
from django.db import Error
from django.utils import timezone

from django_singlejob.conf import ZERO
from django_singlejob.database.unusable import refusal
from django_singlejob.exceptions import InvalidOrder, JobInterrupted, LeaseLost, quoted
from django_singlejob.jobs.names import NAME_LENGTH, is_queue_name
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.endings import Ending
from django_singlejob.models.one_offs import AGAIN, PRIORITIES, RELEASED
from django_singlejob.process.clock import YEARS, DBNow, storable
from django_singlejob.running.insert import Call, insert
from django_singlejob.running.values import Unstorable, comes_back, stored_arguments, stored_result

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

# A call's positional and keyword arguments.
AnyCall: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
Misfit: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], str | None]

# One instance, so that two results that contain it are equal.
_NOW = DBNow()


@dataclass(frozen=True, kw_only=True)
class Order:
    """The options of a one-off that is to be enqueued, for a job or for a task that is not a job.

    Attributes:
        job_name: the name of the job, under whose lock it runs.
        task_path: the task's dotted path.
        max_attempts: how many attempts it gets at most, if its holders die or it fails.
        queue_name: which workers run it: those of this queue, and those of all queues.
        priority: -100 to 100; of those that are due, the highest runs first.
        run_after: the instant (aware) before which it does not run; ``None`` to run it as soon as possible.
        backend: the alias of the task backend that enqueues it; empty for a one-off that is not a task.

    Raises ``InvalidOrder``.
    """

    job_name: str = ""
    task_path: str = ""
    max_attempts: int = 1
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | None = None
    backend: str = ""
    # Says what is wrong with arguments for the function; ``None`` not to check them.
    _misfit: Misfit | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_queue_name(self.queue_name):
            raise InvalidOrder(
                f"Invalid queue name {quoted(self.queue_name)}: use 1 to {NAME_LENGTH} printable characters, without "
                "commas and without spaces at the ends, and not *."
            )
        if isinstance(self.priority, bool) or self.priority not in PRIORITIES:
            raise InvalidOrder(f"Invalid priority {quoted(self.priority)}: use a whole number from -100 to 100.")
        if self.run_after is not None:
            object.__setattr__(self, "run_after", _instant(self.run_after))

    def enqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """Have a worker run the job once with these arguments, which are stored as JSON. Inside a transaction, workers
        see the one-off after the commit.

        Raises ``InvalidOrder``, which names the argument that cannot be stored, and ``DatabaseUnusable``.
        """
        self._refuse_misfit(args, kwargs)
        call = self.stored(args, kwargs)
        with self._explained():
            return place(self, *call)

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[AnyCall]) -> "list[OneOffJob]":
        """Have a worker run the job once for each call: a pair of its arguments, as a list or tuple, and its keyword
        arguments, as a dict. Enqueues all of them or none, and returns them in the same order.

        Raises ``InvalidOrder``, which names the call and the argument that cannot be stored, and ``DatabaseUnusable``.
        """
        if not isinstance(calls, Iterable):
            raise self._invalid(f"calls is {quoted(calls)}. Make it a list of pairs, such as ((4711,), {{}}).")
        stored = [self._stored_call(number, call) for number, call in enumerate(calls)]
        with self._explained():
            return insert(_columns(self), stored)

    async def aenqueue_many(self, calls: Iterable[AnyCall]) -> "list[OneOffJob]":
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue_many)(calls)

    def stored(self, args: Sequence[Any], kwargs: Mapping[str, Any], whose: str = "") -> Call:
        """The arguments as they are stored. Raises ``InvalidOrder`` if one of them cannot be: ``whose`` precedes its
        name in the message."""
        try:
            return Call(*stored_arguments(args, kwargs))
        except Unstorable as error:
            raise self._invalid(f"{whose}{error}.") from None

    def _stored_call(self, number: int, call: object) -> Call:
        match call:
            case (list() | tuple() as args, Mapping() as kwargs) if all(isinstance(name, str) for name in kwargs):
                self._refuse_misfit(args, kwargs, f"of calls[{number}], ")
                return self.stored(args, kwargs, f"of calls[{number}], ")
        raise self._invalid(
            f"calls[{number}] is {quoted(call)}. Make it a pair of the arguments, as a list or tuple, and the keyword "
            "arguments, as a dict with names as keys: ((4711,), {'language': 'it'})."
        )

    def _refuse_misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any], whose: str = "") -> None:
        """Raise ``InvalidOrder`` if the function does not accept these arguments."""
        misfit = self._misfit(args, kwargs) if self._misfit else None
        if misfit is None:
            return
        # The function may have a parameter of this name, and something else may be wrong.
        options = [
            name
            for name in ("run_after", "priority", "queue_name")
            if f"unexpected keyword argument {name!r}" in misfit
        ]
        hint = f" {options[0]} is an option of using(): call using({options[0]}=...).enqueue(...)." if options else ""
        raise self._invalid(f"{whose}{misfit}.{hint}")

    def _invalid(self, why: str) -> InvalidOrder:
        return InvalidOrder(f"The job {self.job_name or self.task_path!r} cannot be enqueued: {why}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise ``DatabaseUnusable`` for an error that says that the database lacks something."""
        try:
            yield
        except Error as error:
            if unusable := refusal(error, f"{self.job_name or self.task_path!r} was not enqueued: "):
                raise unusable from error
            raise


def _instant(run_after: object) -> datetime:
    if not isinstance(run_after, datetime) or timezone.is_naive(run_after):
        raise InvalidOrder(f"Invalid run_after {quoted(run_after)}: use an aware datetime, which has a time zone.")
    if instant := storable(run_after):
        return instant
    raise InvalidOrder(
        f"Invalid run_after {quoted(run_after)}: use a year from {YEARS[0]} to {YEARS[-1]}, or leave run_after out to "
        "run it as soon as possible."
    )


def arguments_of(row: "OneOffJob") -> tuple[list[Any], dict[str, Any]]:
    """The stored arguments. Raises ``InvalidOrder`` if the row has others than this package stores."""
    if isinstance(row.args, list) and isinstance(row.kwargs, dict):
        return row.args, row.kwargs
    raise InvalidOrder(
        f"The one-off {row.pk} has arguments that are not a list and an object in JSON, or that are nested too deeply: "
        "they were written by hand or by another program. Delete it, and enqueue it again."
    )


def place(order: Order, args: Any, kwargs: Any, **others: Any) -> "OneOffJob":
    """Insert the row. The arguments must be JSON. After that no crash loses the row, unless it is part of the caller's
    transaction."""
    (row,) = insert(_columns(order) | others, [Call(args, kwargs)])
    return row


def _columns(order: Order) -> dict[str, Any]:
    columns = {name: value for name, value in vars(order).items() if name != "_misfit"}
    return {**columns, "status": "waiting", "run_after": order.run_after or _NOW, "created_at": _NOW}


def retry_of(job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], object] | None:
    """What enqueues the first retry of a run that no one-off has requested. ``None`` if its arguments would not come
    back from JSON unchanged."""
    if not comes_back([args, dict(kwargs)]):
        return None
    order = Order(job_name=job.name, max_attempts=job.most_attempts)
    again_at = DBNow() + (job.delay_before_retry(1) or ZERO)
    return partial(place, order, *order.stored(args, kwargs), attempt=1, run_after=again_at)


def result_of_job(
    job: Job, end: Ending, failure: BaseException | None, value: object, *, attempt: int, is_stopped: bool = False
) -> dict[str, Any]:
    """What to record for a one-off whose run ended like this. If it was interrupted by a signal, or its lease could not
    be proven for a while, it is started again, unless it may begin only once. If it failed, it is retried as often as
    its job allows.

    ``is_stopped``: a user has stopped the run, so that it is not started again, however it has ended."""
    result = one_off_result(
        end,
        failure,
        value,
        is_last=is_stopped or attempt >= job.most_attempts,
        may_begin_again=not is_stopped and job.most_attempts > 1,
    )
    delay = job.delay_before_retry(attempt) if result["status"] == "failed" and not is_stopped else None
    if delay is None:
        return result
    return result | {"status": "waiting", "finished_at": None, "run_after": DBNow() + delay}


def one_off_result(
    end: Ending, failure: BaseException | None, value: object, *, is_last: bool, may_begin_again: bool = True
) -> dict[str, Any]:
    """The same for a one-off that is not retried when it fails. ``is_last``: it is not started again after a lost lease
    either. ``may_begin_again``: it is after a signal, which uses up no attempt."""
    if isinstance(failure, JobInterrupted) and may_begin_again:
        return dict(RELEASED)
    is_over = end.status in ("successful", "skipped")
    # Why a run has skipped itself is in the history: it is not an error.
    error = {"error": "" if is_over else end.error, "error_class": end.error_class, "traceback": end.traceback}
    error |= {"origin": end.origin}
    is_ctrl_c = isinstance(failure, KeyboardInterrupt) and end.status == "interrupted"
    if (is_ctrl_c or isinstance(failure, LeaseLost)) and not is_last:
        return {**error, **AGAIN}
    status = "done" if is_over else "failed"
    return error | {"status": status, "result": value_kept(value), "finished_at": _NOW}


def without_values(result: Mapping[str, Any]) -> dict[str, Any]:
    """The same end, if the database refuses to store the value or the error of the run."""
    kept = {name: result[name] for name in ("status", "attempt", "finished_at", "run_after") if name in result}
    return kept | {
        "error": "The database refused the result of this run.",
        "error_class": "",
        "traceback": "",
        "origin": "",
    }


def value_kept(value: object) -> Any:
    """The return value as it is stored; ``None`` if it cannot be."""
    try:
        return stored_result(value)
    except Exception:  # reading a custom mapping may raise anything, and the run has already ended
        return None
