"""Which workers there are, which queues they serve, and which servers ask for what is due. It only reads."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django_singlejob.conf import ZERO
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.jobs.slots import MISFIRE_GRACE
from django_singlejob.models.locks import locks
from django_singlejob.monitoring.marks import DISABLED, FORGOTTEN_AFTER, SHORT, SILENT_AFTER, marks

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, WorkerPass

# Nobody reads about more, and a page that is refreshed every few seconds may not take longer for more.
MOST = 1_000
# A pass by cron counts as a worker for this long after its server was last marked, as it is every five minutes. A job
# whose slot is older than MISFIRE_GRACE is overdue, so cron has to come by at least as often anyway.
REMEMBERED = MISFIRE_GRACE + timedelta(minutes=5)
# One that pauses for longer may do so for a weekend, too.
RARE = timedelta(hours=12)


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


class Server(NamedTuple):
    """A server that asks for what is due in some queues, or did so lately.

    Attributes:
        hostname: its name.
        queues: the queues that it serves; empty: all.
        first_seen_at: when it was first seen (UTC).
        seen_at: when it was last seen, to about five minutes (UTC).
        age: how long ago that is.
        is_once: whether passes ask there, as cron starts them.
        release: which code runs there; empty if that is not known.
        clock_error: how far its clock is ahead of the database's; ``None`` if that is not known.
        trouble: why not everything that is due runs there; empty if it does.
        is_asking: whether it still asks.
        is_silent: whether it has stopped, as is worth telling: it was seen on two days, and no new server has taken its
            place.
    """

    hostname: str
    queues: tuple[str, ...]
    first_seen_at: datetime
    seen_at: datetime
    age: timedelta
    is_once: bool
    release: str
    clock_error: timedelta | None
    trouble: str
    is_asking: bool
    is_silent: bool


def workers(held: "Iterable[JobLock] | None" = None, marked: "Iterable[WorkerPass] | None" = None) -> list[SeenWorker]:
    """The workers whose locks exist, including dead ones until their locks are cleared, at most ``MOST`` of them, and
    then the passes of the last ``REMEMBERED``. ``held``: the judged locks of all workers, and ``marked``: the marks, if
    they have been read. Otherwise each takes a query."""
    passes = marks(REMEMBERED) if marked is None else marked
    return [*_running(_locks() if held is None else held), *_passes(passes)]


def servers(marked: "Iterable[WorkerPass]") -> list[Server]:
    """The servers that these marks are of, by name."""
    rows = sorted(marked, key=lambda row: (row.hostname, _names(row.queues)))
    silent = {row.key for row in _silent(rows)}
    return [
        Server(
            hostname=row.hostname,
            queues=_names(row.queues),
            first_seen_at=row.first_seen_at,
            seen_at=row.seen_at,
            age=row.now - row.seen_at,
            is_once=row.is_once,
            release=row.release,
            clock_error=row.clock_error,
            trouble=row.trouble,
            is_asking=_is_asking(row),
            is_silent=row.key in silent,
        )
        for row in rows
    ]


def _silent(rows: "Sequence[WorkerPass]") -> "Iterator[WorkerPass]":
    """Those that have stopped asking. A new server of the same queues takes the place of one of them, as a new
    container does after a deploy, and so do other queues of the same server."""
    newest_first = sorted(rows, key=lambda row: row.first_seen_at, reverse=True)
    for row in sorted(rows, key=lambda row: row.seen_at, reverse=True):
        is_seen_on_two_days = row.seen_at.date() > row.first_seen_at.date() and row.seen_at - row.first_seen_at > SHORT
        if is_seen_on_two_days and not _is_asking(row):
            successor = next((new for new in newest_first if _takes_the_place(new, row)), None)
            if successor is None:
                yield row
            else:
                newest_first.remove(successor)


def _is_asking(row: "WorkerPass") -> bool:
    gap = row.gap or ZERO
    return row.now - row.seen_at < (FORGOTTEN_AFTER if gap > RARE else max(SILENT_AFTER, 2 * gap))


def _takes_the_place(new: "WorkerPass", old: "WorkerPass") -> bool:
    is_like_it = (new.queues == old.queues) != (new.hostname == old.hostname)
    is_lasting = _is_asking(new) or new.seen_at - new.first_seen_at > SHORT
    # Before the old one ends, the new one may already ask.
    return is_like_it and is_lasting and new.first_seen_at > old.seen_at - SILENT_AFTER


def serves(worker: SeenWorker | Server, queue: str) -> bool:
    """Whether the worker, or a worker of this server, runs one-offs of this queue, if it is live."""
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


def _passes(marked: "Iterable[WorkerPass]") -> Iterator[SeenWorker]:
    for row in marked:
        if row.is_once and row.is_recent and row.trouble != DISABLED:
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
