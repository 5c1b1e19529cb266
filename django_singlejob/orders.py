"""Asking for a one-off: ``job.using(run_after=...).enqueue(...)``."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from django_singlejob.clock import DBNow
from django_singlejob.endings import Ending
from django_singlejob.exceptions import InvalidOrder, JobInterrupted, LeaseLost
from django_singlejob.queue import GIVEN_BACK, one_offs
from django_singlejob.registry import NAME_LENGTH, Job

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

PRIORITIES = range(-100, 101)
# What every database stores as it is.
_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**63 - 1
# MariaDB takes 31, with the list of the arguments.
DEPTH = 30
# Servers refuse a statement that is too long, and MySQL hangs up on whoever sends it.
RESULT_LENGTH = 1_000_000
# One instance, so that two results which hold it are equal.
_NOW = DBNow()


@dataclass(frozen=True, kw_only=True)
class Order:
    """A one-off of a job that is to be asked for.

    Attributes:
        job_name: the job's.
        max_attempts: how often it is begun at most, if its holders die or it fails.
        queue_name: which workers run it: those of this queue, and those of all queues.
        priority: -100 to 100; of those that are due the highest is run first.
        run_after: not before this instant (aware); ``None``: as soon as somebody can.
        exclusive: it runs under its job's lock.
        backend: the alias of the backend of Django's tasks by which it is asked for.

    Raises ``InvalidOrder``.
    """

    job_name: str
    max_attempts: int = 1
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | None = None
    exclusive: bool = True
    backend: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.queue_name) <= NAME_LENGTH:
            raise InvalidOrder(f"{self.queue_name!r:.250} is no queue: give a name of 1 to {NAME_LENGTH} characters.")
        if self.priority not in PRIORITIES:
            raise InvalidOrder(f"{self.priority!r} is no priority: give a whole number from -100 to 100.")
        if self.run_after is not None and not isinstance(self.run_after, datetime):
            raise InvalidOrder(f"{self.run_after!r} is no instant to run after: give an aware datetime.")
        if self.run_after is not None and timezone.is_naive(self.run_after):
            raise InvalidOrder(f"run_after is {self.run_after}, without a time zone: give an aware datetime.")

    def enqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """Have a worker run the job once with these arguments, which must be JSON. Inside a transaction it is seen
        when that is committed.

        Raises ``InvalidOrder``, which names the argument that is no JSON.
        """
        self.validate(args, kwargs)
        return one_offs().get(pk=place(self, args, kwargs).pk)

    def validate(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise ``InvalidOrder`` for arguments that are no JSON."""
        for path, value in [*enumerate(args), *kwargs.items()]:
            for complaint in complaints(value, f"argument {path!r}"):
                raise InvalidOrder(f"The job {self.job_name!r} cannot be enqueued: {complaint}.")

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)


def place(order: Order, args: Any, kwargs: Any, **others: Any) -> "OneOffJob":
    """Insert the row; the arguments are JSON."""
    return one_offs().create(
        job_name=order.job_name,
        args=list(args),
        kwargs=dict(kwargs),
        queue_name=order.queue_name,
        priority=order.priority,
        max_attempts=order.max_attempts,
        exclusive=order.exclusive,
        backend=order.backend,
        created_at=DBNow(),
        **{"run_after": order.run_after or DBNow(), **others},
    )


def result_of_job(
    job: Job, end: Ending, failure: BaseException | None, value: object, *, attempt: int
) -> dict[str, Any]:
    """What is recorded of a one-off whose run ended so. If it was told to end, or its lease could not be proven for a
    while, it is begun again; if it failed, too, as long as its job wants that."""
    result = one_off_result(end, failure, value, is_last=attempt >= job.most_attempts)
    delay = job.delay_before_retry(attempt) if result["status"] == "failed" else None
    if delay is None:
        return result
    return result | {"status": "waiting", "finished_at": None, "run_after": DBNow() + delay}


def one_off_result(end: Ending, failure: BaseException | None, value: object, *, is_last: bool) -> dict[str, Any]:
    """The same for one that is not tried again when it fails. ``is_last``: nor when the lease was lost."""
    if isinstance(failure, JobInterrupted):
        return dict(GIVEN_BACK)
    told = {"error": end.error, "error_class": end.error_class, "traceback": end.traceback}
    if isinstance(failure, LeaseLost | KeyboardInterrupt) and not is_last:
        return told | {"status": "waiting"}
    status = "done" if end.status == "successful" else "failed"
    result = value if next(complaints_of_result(value), None) is None else None
    return told | {"status": status, "result": result, "finished_at": _NOW}


def is_json(value: object) -> bool:
    """Whether every database stores it as it is, but for tuples, which come back as lists."""
    return next(complaints(value, ""), None) is None


def complaints_of_result(value: object) -> Iterator[str]:
    """Why what a job returned cannot be kept."""
    yield from complaints(value, "the result")
    if len(json.dumps(value, default=str)) > RESULT_LENGTH:
        yield f"the result has more than {RESULT_LENGTH:,} characters as JSON"


def complaints(value: object, path: str, depth: int = 1) -> Iterator[str]:
    """Why the value, or which part of it, is no JSON that every database stores."""
    match value:
        case list() | tuple() | dict() if depth > DEPTH:
            yield f"{path} is nested deeper than {DEPTH} levels"
        case list() | tuple():
            for number, item in enumerate(value):
                yield from complaints(item, f"{path}[{number}]", depth + 1)
        case dict():
            for key, item in value.items():
                yield from _complaints_of_key(key, path)
                yield from complaints(item, f"{path}[{key!r}]", depth + 1)
        case _:
            yield from _complaints_of_scalar(value, path)


def _complaints_of_key(key: object, path: str) -> Iterator[str]:
    if isinstance(key, str):
        yield from _complaints_of_scalar(key, f"a key of {path}")
    else:
        yield f"{path} has the key {key!r:.100}, which is no string"


def _complaints_of_scalar(value: object, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
            yield f"{path} has a character that databases do not store: NUL, or half a surrogate pair"
    elif isinstance(value, int):
        if not _LEAST_INTEGER <= value <= _GREATEST_INTEGER:
            yield f"{path} is an integer of more than 64 bits"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{path} is {value}, which JSON does not know"
    elif value is not None:
        yield f"{path} is {value!r:.100}, of the type {type(value).__name__}, which is no JSON"
