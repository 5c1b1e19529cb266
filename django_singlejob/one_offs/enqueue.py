"""Asking for a one-off: ``job.using(run_after=...).enqueue(...)``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import Error
from django.utils import timezone

from django_singlejob import database
from django_singlejob.clock import DBNow
from django_singlejob.exceptions import InvalidOrder, JobInterrupted, LeaseLost
from django_singlejob.names import NAME_LENGTH
from django_singlejob.one_offs.values import Unstorable, as_stored, stored_result
from django_singlejob.querysets.one_offs import RELEASED, one_offs
from django_singlejob.registry import Job
from django_singlejob.results import Ending
from django_singlejob.unusable import refusal

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

PRIORITIES = range(-100, 101)
# One instance, so that two results which hold it are equal.
_NOW = DBNow()


@dataclass(frozen=True, kw_only=True)
class Order:
    """A one-off that is to be asked for: of a job, or of a task that is not a job.

    Attributes:
        job_name: the job's, under whose lock it runs.
        task_path: the task's dotted path.
        max_attempts: how often it is begun at most, if its holders die or it fails.
        queue_name: which workers run it: those of this queue, and those of all queues.
        priority: -100 to 100; of those that are due the highest is run first.
        run_after: not before this instant (aware); ``None``: as soon as somebody can.
        backend: the alias of the backend of Django's tasks by which it is asked for.

    Raises ``InvalidOrder``.
    """

    job_name: str = ""
    task_path: str = ""
    max_attempts: int = 1
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | None = None
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
        """Have a worker run the job once with these arguments, which are kept as JSON. Inside a transaction it is seen
        when that is committed.

        Raises ``InvalidOrder``, which names the argument that cannot be kept, and ``DatabaseUnusable``.
        """
        arguments = self.stored(args, kwargs)
        try:
            return one_offs().get(pk=place(self, *arguments).pk)
        except Error as error:
            if unusable := refusal(error, f"{self.job_name or self.task_path!r} was not enqueued: "):
                raise unusable from error
            raise

    def stored(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they are kept. Raises ``InvalidOrder`` for those that cannot be."""
        try:
            return (
                [as_stored(value, f"argument {number}") for number, value in enumerate(args)],
                {as_stored(name, "a name"): as_stored(value, f"argument {name!r}") for name, value in kwargs.items()},
            )
        except Unstorable as error:
            raise InvalidOrder(f"The job {self.job_name or self.task_path!r} cannot be enqueued: {error}.") from None

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)


def place(order: Order, args: Any, kwargs: Any, **others: Any) -> "OneOffJob":
    """Insert the row; the arguments are JSON. No crash loses it then, unless it is part of the caller's transaction."""
    with database.synchronous(database.alias()):
        asked = {**vars(order), "args": list(args), "kwargs": dict(kwargs), "run_after": order.run_after or DBNow()}
        return one_offs().create(**{**asked, "created_at": DBNow(), **others})


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
        return dict(RELEASED)
    told = {"error": end.error, "error_class": end.error_class, "traceback": end.traceback}
    is_ctrl_c = isinstance(failure, KeyboardInterrupt) and end.status == "interrupted"
    if (is_ctrl_c or isinstance(failure, LeaseLost)) and not is_last:
        return told | {"status": "waiting"}
    status = "done" if end.status == "successful" else "failed"
    return told | {"status": status, "result": _kept(value), "finished_at": _NOW}


def _kept(value: object) -> Any:
    """``None``: it cannot be kept."""
    try:
        return stored_result(value)
    except Exception:  # whatever a mapping of somebody's does when it is read: the run has ended
        return None
