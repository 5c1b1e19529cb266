"""Which workers there are, and which queues they serve. It only reads."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.jobs.slots import MISFIRE_GRACE
from django_singlejob.models.locks import locks
from django_singlejob.models.passes import passes

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# Nobody reads about more, and a page that is refreshed every few seconds may not take longer for more.
MOST = 1_000
# A pass by cron counts as a worker for this long after it began. A job whose slot is older than this is overdue, so
# cron has to come by at least as often anyway.
REMEMBERED = MISFIRE_GRACE


class SeenWorker(NamedTuple):
    """A worker that runs, or that ran ``--once`` or ``--drain`` a short time ago.

    Attributes:
        holder: its host name and process ID, for people: ``web-1, pid 4711``.
        queues: the queues whose one-offs it runs; empty: all queues.
        seen_at: when the database last heard from it (UTC).
        is_once: whether it is a pass that ended by itself, as cron starts them.
        is_live: whether its lease has not expired, by the database's clock; of a pass, always ``True``.
    """

    holder: str
    queues: tuple[str, ...]
    seen_at: datetime
    is_once: bool
    is_live: bool


def workers(held: "Iterable[JobLock] | None" = None) -> list[SeenWorker]:
    """The workers whose locks exist, including dead ones until their locks are cleared, and then the passes of the
    last ``REMEMBERED``: at most ``MOST`` of each. ``held``: the judged locks of all workers, if they have been read.
    Takes two queries, or one with ``held``."""
    return [*_running(_locks() if held is None else held), *_passes()]


def serves(worker: SeenWorker, queue: str) -> bool:
    """Whether the worker runs one-offs of this queue, if it is live."""
    return not worker.queues or queue in worker.queues


def _locks() -> "list[JobLock]":
    live_first = ("is_impossible", "is_stale", "name")
    return locks().filter(name__startswith=f"{WORKER_LOCK}.").judged().order_by(*live_first).survey(MOST)


def _running(held: "Iterable[JobLock]") -> Iterator[SeenWorker]:
    for lock in sorted(held, key=lambda lock: (lock.acquired_at, lock.name)):
        yield SeenWorker(
            holder=lock.holder,
            queues=_names(lock.queues),
            seen_at=lock.heartbeat_at,
            is_once=False,
            is_live=not lock.is_suspected,
        )


def _passes() -> Iterator[SeenWorker]:
    for row in passes().recent(REMEMBERED).order_by("-seen_at")[:MOST].survey():
        yield SeenWorker(
            holder=row.holder,
            queues=_names(row.queues),
            seen_at=row.seen_at,
            is_once=True,
            is_live=True,
        )


def _names(queues: object) -> tuple[str, ...]:
    # The row may have been edited by hand.
    return tuple(map(str, queues)) if isinstance(queues, list) else ()
