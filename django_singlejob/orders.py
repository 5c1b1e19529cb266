"""Asking for a one-off: ``job.using(run_after=...).enqueue(...)``."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from django_singlejob.clock import DBNow
from django_singlejob.endings import Ending
from django_singlejob.exceptions import InvalidOrder, LeaseLost
from django_singlejob.queue import GIVEN_BACK, one_offs
from django_singlejob.registry import NAME_LENGTH, Job

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

PRIORITIES = range(-100, 101)
# What every database stores as it is.
_INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True, kw_only=True)
class Order:
    """A one-off of a job that is to be asked for.

    Attributes:
        job_name: the job's.
        max_attempts: how often it is begun at most, if its holders die or it fails.
        queue_name: which workers run it: those of this queue, and those of all queues.
        priority: -100 to 100; of those that are due the highest is run first.
        run_after: not before this instant (aware); ``None``: as soon as somebody can.

    Raises ``InvalidOrder``.
    """

    job_name: str
    max_attempts: int = 1
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.queue_name) <= NAME_LENGTH:
            raise InvalidOrder(f"{self.queue_name!r:.250} is no queue: give a name of 1 to {NAME_LENGTH} characters.")
        if self.priority not in PRIORITIES:
            raise InvalidOrder(f"{self.priority!r} is no priority: give a whole number from -100 to 100.")
        if self.run_after is not None and not isinstance(self.run_after, datetime):
            raise InvalidOrder(f"{self.run_after!r} is no instant to run after: give an aware datetime.")
        if self.run_after is not None and timezone.is_naive(self.run_after):
            raise InvalidOrder(f"run_after is {self.run_after}, without a time zone: give an aware datetime.")

    def enqueue(self, *args: Any, **kwargs: Any) -> "OneOffJob":
        """Have a worker run the job once with these arguments, which must be JSON. Inside a transaction it is seen
        when that is committed.

        Raises ``InvalidOrder``, which names the argument that is no JSON.
        """
        for path, value in [*enumerate(args), *kwargs.items()]:
            for complaint in complaints(value, f"argument {path!r}"):
                raise InvalidOrder(f"The job {self.job_name!r} cannot be enqueued: {complaint}.")
        row = place(self, args, kwargs)
        row.refresh_from_db()
        return row

    async def aenqueue(self, *args: Any, **kwargs: Any) -> "OneOffJob":
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
        created_at=DBNow(),
        **{"run_after": order.run_after or DBNow(), **others},
    )


def one_off_result(
    job: Job, end: Ending, failure: BaseException | None, value: object, *, attempt: int
) -> dict[str, Any]:
    """What is recorded of a one-off whose run ended so. If it was told to end, or its lease could not be proven for a
    while, it is begun again; if it failed, too, as long as its job wants that."""
    if isinstance(failure, KeyboardInterrupt):
        return dict(GIVEN_BACK)
    if isinstance(failure, LeaseLost) and attempt < job.most_attempts:
        return {"status": "waiting", "error": end.error}
    told = {"error": end.error, "traceback": end.traceback, "result": value if is_json(value) else None}
    if end.status == "successful":
        return told | {"status": "done", "finished_at": DBNow()}
    delay = job.delay_before_retry(attempt)
    if delay is None:
        return told | {"status": "failed", "finished_at": DBNow()}
    return told | {"status": "waiting", "run_after": DBNow() + delay}


def is_json(value: object) -> bool:
    """Whether every database stores it as it is, but for tuples, which come back as lists."""
    return next(complaints(value, ""), None) is None


def complaints(value: object, path: str) -> Iterator[str]:
    """Why the value, or which part of it, is no JSON that every database stores."""
    match value:
        case list() | tuple():
            for number, item in enumerate(value):
                yield from complaints(item, f"{path}[{number}]")
        case dict():
            for key, item in value.items():
                yield from _complaints_of_key(key, path)
                yield from complaints(item, f"{path}[{key!r}]")
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
        if value not in _INTEGERS:
            yield f"{path} is an integer of more than 64 bits"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{path} is {value}, which JSON does not know"
    elif value is not None:
        yield f"{path} is {value!r:.100}, of the type {type(value).__name__}, which is no JSON"
