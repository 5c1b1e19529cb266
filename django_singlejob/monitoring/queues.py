"""The queues: what is due in each, and what has failed lately. This module only reads."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models import Count, Exists, F, Min

from django_singlejob.conf import ZERO
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_singlejob.models.jobs import JobStatusQuerySet
    from django_singlejob.models.one_offs import OneOffJob, OneOffJobQuerySet

# One-offs that finished longer ago say nothing about how a queue is doing.
LATELY = timedelta(hours=1)
# One-offs that have been due for longer wait for a worker, or for the lock of their job.
LATE = timedelta(minutes=5)
# With more rows, a page that is refreshed every few seconds would be slow.
MOST = 3_000
# Of rows as a whole, whose arguments may be long.
MOST_READ = 100


class Queue(NamedTuple):
    """What is in a queue.

    Attributes:
        name: the queue's name.
        due: the number of one-offs that are due and wait.
        is_cut: whether even more may be due: at most ``MOST`` are counted in all queues together.
        oldest: how long the oldest of them has been due; zero if none is due.
        due_since: when the oldest of them became due; ``None`` if none is due.
        failed: the number of one-offs that failed in the last hour, at most ``MOST``.
        finished: the number of one-offs that finished in the last hour, successful or not, if any failed; ``None`` if
            there are too many to count.
        failed_share: the share of the finished one-offs that failed; if there are too many to count, of the newest.
    """

    name: str
    due: int = 0
    is_cut: bool = False
    oldest: timedelta = ZERO
    due_since: datetime | None = None
    failed: int = 0
    finished: int | None = 0
    failed_share: float = 0

    @property
    def is_failed_cut(self) -> bool:
        """Whether even more may have failed."""
        return self.failed >= MOST


def queues(
    names: Collection[str] = (),
    *,
    ignored: Collection[str] = (),
    passed_jobs: Collection[str] = (),
    paused: "JobStatusQuerySet | None" = None,
) -> list[Queue]:
    """The queues in which one-offs are due or have failed lately, sorted by name: all, or those of ``names``. The
    one-offs of ``passed_jobs``, and of jobs with these ``paused`` gates, are not counted. Takes one query, or two if
    more than ``MOST`` are due."""
    rows = one_offs().in_queues(list(names)).exclude(queue_name__in=ignored).exclude(job_name__in=passed_jobs)
    if paused is not None:
        rows = rows.exclude(job_name__in=paused.values("name"))
    seen = _look(rows)
    backlogs, results = _backlogs(rows, seen.due), _results(seen.failed, seen.done)
    return [
        Queue(name=name, **backlogs.get(name, {}), **results.get(name, {}))
        for name in sorted(backlogs.keys() | results.keys())
    ]


def read_oldest(names: Collection[str]) -> None:
    """Read those that have been due the longest, to find out about those that cannot be read."""
    len(one_offs().in_queues(list(names)).due().order_by("run_after", "pk")[:MOST_READ])


def has_any(name: str) -> bool:
    """Whether there is a one-off in this queue, waiting or finished."""
    return one_offs().filter(queue_name=name).exists()


class _Seen(NamedTuple):
    """A one-off: since when it has been due, or when it finished."""

    queue: str
    at: datetime
    now: datetime


class _Look(NamedTuple):
    """Of each, the first ``MOST``."""

    due: Sequence[_Seen]  # the oldest first, and one more to see whether there are more
    failed: Sequence[_Seen]  # the newest first
    done: Sequence[_Seen]  # the newest first, if any failed


def _look(rows: "OneOffJobQuerySet") -> _Look:
    lately = rows.filter(finished_at__gt=DBNow() - LATELY)
    failed, done = (lately.filter(status=status) for status in ("failed", "done"))
    due = _first(rows.due(), "run_after", MOST + 1)
    found: dict[str, list[_Seen]] = {"waiting": [], "failed": [], "done": []}
    for status, queue, at, now in due.union(
        _first(failed, "-finished_at", MOST), _first(done.filter(Exists(failed)), "-finished_at", MOST), all=True
    ):
        if at:
            # A connection's own time zone comes back with every instant, and two of one zone are compared by their
            # wall clocks.
            found[status].append(_Seen(queue, at.astimezone(UTC), now.astimezone(UTC)))
    waiting, failures, successes = (sorted(some, key=lambda seen: seen.at) for some in found.values())
    return _Look(waiting, failures[::-1], successes[::-1])


def _first(rows: "OneOffJobQuerySet", order: str, most: int) -> "QuerySet[OneOffJob, Any]":
    """The first of these rows, as a part of a union."""
    column, cut = order.removeprefix("-"), rows.order_by(order)[:most]
    if not connections[rows.db].features.supports_slicing_ordering_in_compound:
        cut = one_offs().filter(pk__in=cut.values("pk"))  # SQLite
    return cut.values_list("status", "queue_name", F(column), DBNow())


# --- what is due


def _backlogs(rows: "OneOffJobQuerySet", seen: Sequence[_Seen]) -> dict[str, dict[str, Any]]:
    counts = Counter(one.queue for one in seen[:MOST])
    is_cut = len(seen) > MOST
    oldest: dict[str, _Seen] = {}
    for one in seen:
        oldest.setdefault(one.queue, one)
    found = {
        name: {"due": count, "is_cut": is_cut, **_age(oldest[name].at, oldest[name].now)}
        for name, count in counts.items()
    }
    return found | _behind(rows, counts) if is_cut else found


def _behind(rows: "OneOffJobQuerySet", seen: Collection[str]) -> dict[str, dict[str, Any]]:
    """The queues other than those ``seen``: a long queue must not hide a short one whose one-offs are younger."""
    others = rows.due().exclude(queue_name__in=seen).order_by().values("queue_name")
    found = others.annotate(count=Count("pk"), since=Min("run_after")).values_list(
        "queue_name", "count", "since", DBNow()
    )
    return {
        name: {"due": min(due, MOST), "is_cut": due > MOST, **_age(since.astimezone(UTC), now.astimezone(UTC))}
        for name, due, since, now in found[:MOST]
    }


def _age(since: datetime, now: datetime) -> dict[str, Any]:
    return {"oldest": max(now - since, ZERO), "due_since": since}


# --- what has failed


def _results(failed: Sequence[_Seen], done: Sequence[_Seen]) -> dict[str, dict[str, Any]]:
    # If one of the two samples is cut, compare only the time that both cover.
    ends = [sample[-1].at for sample in (failed, done) if len(sample) == MOST]
    since = max(ends, default=None)
    newer_failed, newer_done = _counts(failed, since), _counts(done, since)
    return {
        name: {
            "failed": count,
            "finished": None if since else count + newer_done[name],
            "failed_share": newer_failed[name] / max(newer_failed[name] + newer_done[name], 1),
        }
        for name, count in _counts(failed).items()
    }


def _counts(sample: Sequence[_Seen], since: datetime | None = None) -> Counter[str]:
    return Counter(finished.queue for finished in sample if since is None or finished.at >= since)
