"""Enqueues one-offs: ``job.using(run_after=...).enqueue(...)``."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from asgiref.sync import sync_to_async
from django.db import Error, connections, transaction
from django.utils import timezone

from django_singlejob.conf import quoted
from django_singlejob.database import transactions
from django_singlejob.database.unusable import refusal
from django_singlejob.exceptions import InvalidOrder
from django_singlejob.jobs.names import NAME_LENGTH, is_queue_name
from django_singlejob.models.one_offs import PRIORITIES, one_offs
from django_singlejob.models.rows import in_utc
from django_singlejob.process import rooms
from django_singlejob.process.clock import YEARS, storable
from django_singlejob.running.values import JSON_LENGTH, Unstorable, stored_arguments

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

# A call's positional and keyword arguments.
AnyCall: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
Misfit: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], str | None]

#: Inserts rows in a room's own way, and returns them; ``None``: the portable way has to.
Insert: TypeAlias = "Callable[[str, Mapping[str, Any], Sequence[Call]], list[OneOffJob] | None]"
# A statement with more rows is hardly faster, and blocks others for longer.
MOST_ROWS = 1000


class Call(NamedTuple):
    """The arguments of a one-off, in JSON's own types. ``unique_key``: of those with this key, only one waits."""

    args: list[Any]
    kwargs: dict[str, Any]
    unique_key: str = ""


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
        unique: ``True`` to have only one wait, in its queue, with these arguments; a text, to have only one wait with
            this text, whatever the arguments.

    Raises ``InvalidOrder``.
    """

    job_name: str = ""
    task_path: str = ""
    max_attempts: int = 1
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | None = None
    backend: str = ""
    unique: bool | str = False
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
        if not isinstance(self.unique, bool) and not is_queue_name(self.unique):
            raise InvalidOrder(
                f"Invalid unique {quoted(self.unique)}: use True, or 1 to {NAME_LENGTH} printable characters, without "
                "commas and without spaces at the ends."
            )
        if self.run_after is not None:
            object.__setattr__(self, "run_after", _instant(self.run_after))

    def enqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """Have a worker run the job once with these arguments, which are stored as JSON. Inside a transaction, workers
        see the one-off after the commit. If it is ``unique`` and one waits that nobody has begun, returns that one,
        which will run after the commit, at the earlier of the two instants, with the higher of the two priorities.

        Raises ``InvalidOrder``, which names the argument that cannot be stored, and ``DatabaseUnusable``.
        """
        self._refuse_misfit(args, kwargs)
        call = self.stored(args, kwargs)
        with self._explained():
            return insert(_columns(self), [call])[0]

    async def aenqueue(self, /, *args: Any, **kwargs: Any) -> "OneOffJob":
        """The same, for an ``async def``."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[AnyCall]) -> "list[OneOffJob]":
        """Have a worker run the job once for each call: a pair of its arguments, as a list or tuple, and its keyword
        arguments, as a dict. Enqueues all of them or none, and returns them in the same order.

        Raises ``InvalidOrder``, which names the call and the argument that cannot be stored, and ``DatabaseUnusable``.
        """
        if isinstance(self.unique, str):
            raise self._invalid("the text of unique names one of them. Use unique=True, or call enqueue() for each.")
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
            call = Call(*stored_arguments(args, kwargs))
        except Unstorable as error:
            raise self._invalid(f"{whose}{error}.") from None
        return call._replace(unique_key=self._key(call)) if self.unique else call

    def _key(self, call: Call) -> str:
        # A hash: MySQL takes capital letters for small ones.
        text = self.unique if isinstance(self.unique, str) else ""
        which = [self.job_name, self.task_path, self.queue_name, self.backend, text or call]
        digest = sha256(json.dumps(which, sort_keys=True).encode()).hexdigest()
        return f"{digest[:32]} {text}".rstrip()

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
            for name in ("run_after", "priority", "queue_name", "unique")
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
    columns = {name: value for name, value in vars(order).items() if name not in ("_misfit", "unique")}
    if order.run_after is None:
        del columns["run_after"]  # the database's time
    return columns


def insert(columns: Mapping[str, Any], calls: Sequence[Call]) -> "list[OneOffJob]":
    """Insert a row for each call, all of them or none, and return the rows in the same order. In place of one whose
    ``unique_key`` waits, return the row that does.

    ``columns`` are the other columns, which the rows share: values, or expressions. Once this returns, no crash loses
    the rows, unless they are part of the caller's transaction.
    """
    if not calls:
        return []
    alias, batches = transactions.alias(), list(in_batches(calls))
    ask: Insert | None = rooms.find("insert_unique" if calls[0].unique_key else "insert_at_once")
    if ask and (rows := ask(alias, columns, calls)):
        return rows
    all_or_none = transaction.atomic(using=alias, savepoint=len(batches) > 1)
    with closed_if_lost(alias), transactions.synchronous(alias), all_or_none:
        return [row for batch in batches for row in _inserted(alias, columns, batch)]


def closed_if_lost(alias: str) -> AbstractContextManager[None]:
    """Unless it is the caller's transaction that is lost: that has its own end."""
    connection = connections[alias]
    return nullcontext() if connection.in_atomic_block else transactions.closed_if_lost(connection)


def in_batches(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """The calls, in one part for each statement. A part has no more JSON than a single call may have, because servers
    limit the length of a statement."""
    batch, length = list[Call](), 0
    for call in calls:
        own = len(json.dumps(call))
        if batch and (len(batch) == MOST_ROWS or length + own > JSON_LENGTH):
            yield batch
            batch, length = [], 0
        batch.append(call)
        length += own
    if batch:
        yield batch


def _is_told(alias: str, columns: Mapping[str, Any]) -> bool:
    """Whether the statement that inserts a row returns what only the database knows. It does not on MySQL, nor of an
    expression."""
    can_tell = connections[alias].features.can_return_rows_from_bulk_insert
    return can_tell and not any(hasattr(value, "resolve_expression") for value in columns.values())


def _inserted(alias: str, columns: Mapping[str, Any], batch: Sequence[Call]) -> "list[OneOffJob]":
    rows = [one_offs().model(**columns, **call._asdict()) for call in batch]
    if _is_told(alias, columns):
        return [in_utc(row) for row in one_offs().bulk_create(rows)]
    for row in rows:
        row.save(using=alias, force_insert=True)
    found = one_offs().in_bulk([row.pk for row in rows])  # with what only the database knows
    return [found[row.pk] for row in rows]
