"""The queues: what is due in each, and what has failed lately. This module only reads."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Count, Min

from django_singlejob.conf import ZERO
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow

if TYPE_CHECKING:
    from django_singlejob.models.one_offs import OneOffJobQuerySet

# One-offs that finished longer ago say nothing about how a queue is doing.
LATELY = timedelta(hours=1)
# One-offs that have been due for longer wait for a worker, or for the lock of their job.
LATE = timedelta(minutes=5)
# With more rows, a page that is refreshed every few seconds would be slow.
MOST = 3_000


class Queue(NamedTuple):
    """What is in a queue.

    Attributes:
        name: the queue's name.
        due: the number of one-offs that are due and wait.
        is_cut: whether even more may be due: at most ``MOST`` are counted in all queues together.
        oldest: how long the oldest of them has been due; zero if none is due.
        failed: the number of one-offs that failed in the last hour, at most ``MOST``.
        finished: the number of one-offs that finished in the last hour, successful or not, if any failed; ``None`` if
            there are too many to count.
        failed_share: the share of the finished one-offs that failed; if there are too many to count, of the newest.
    """

    name: str
    due: int = 0
    is_cut: bool = False
    oldest: timedelta = ZERO
    failed: int = 0
    finished: int | None = 0
    failed_share: float = 0

    @property
    def is_failed_cut(self) -> bool:
        """Whether even more may have failed."""
        return self.failed >= MOST


def queues(
    names: Collection[str] = (), *, ignored: Collection[str] = (), passed_jobs: Collection[str] = ()
) -> list[Queue]:
    """The queues in which one-offs are due or have failed lately, sorted by name: all, or those of ``names``. The
    one-offs of ``passed_jobs`` are not counted. Takes at most four queries, however many rows there are."""
    rows = one_offs().in_queues(list(names)).exclude(queue_name__in=ignored).exclude(job_name__in=passed_jobs)
    backlogs, results = _backlogs(rows), _results(rows)
    return [
        Queue(name=name, **backlogs.get(name, {}), **results.get(name, {}))
        for name in sorted(backlogs.keys() | results.keys())
    ]


def has_any(name: str) -> bool:
    """Whether there is a one-off in this queue, waiting or finished."""
    return one_offs().filter(queue_name=name).exists()


# --- what is due


def _backlogs(rows: "OneOffJobQuerySet") -> dict[str, dict[str, Any]]:
    oldest_first = rows.due().order_by("run_after").values_list("queue_name", "run_after", DBNow())
    seen = list(oldest_first[: MOST + 1])
    counts = Counter(name for name, _run_after, _now in seen[:MOST])
    is_cut = len(seen) > MOST
    ages: dict[str, timedelta] = {}
    for name, run_after, now in seen:
        ages.setdefault(name, _age(run_after, now))
    found = {name: {"due": count, "is_cut": is_cut, "oldest": ages[name]} for name, count in counts.items()}
    return found | _behind(rows, counts) if is_cut else found


def _behind(rows: "OneOffJobQuerySet", seen: Collection[str]) -> dict[str, dict[str, Any]]:
    """The queues other than those ``seen``: a long queue must not hide a short one whose one-offs are younger."""
    others = rows.due().exclude(queue_name__in=seen).order_by().values("queue_name")
    found = others.annotate(count=Count("pk"), since=Min("run_after")).values_list(
        "queue_name", "count", "since", DBNow()
    )
    return {
        name: {"due": min(due, MOST), "is_cut": due > MOST, "oldest": _age(since, now)}
        for name, due, since, now in found[:MOST]
    }


def _age(run_after: datetime, now: datetime) -> timedelta:
    # A connection's own time zone comes back with every instant, and two of one zone are compared by their wall clocks.
    return max(now.astimezone(UTC) - run_after.astimezone(UTC), ZERO)


# --- what has failed


class _Finished(NamedTuple):
    queue: str
    at: datetime


def _results(rows: "OneOffJobQuerySet") -> dict[str, dict[str, Any]]:
    failed = _newest(rows, "failed")
    if not failed:
        return {}
    done = _newest(rows, "done")
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


def _newest(rows: "OneOffJobQuerySet", status: str) -> list[_Finished]:
    lately = rows.filter(status=status, finished_at__gt=DBNow() - LATELY).order_by("-finished_at")
    return [
        _Finished(name, at.astimezone(UTC)) for name, at in lately.values_list("queue_name", "finished_at")[:MOST] if at
    ]


def _counts(sample: Sequence[_Finished], since: datetime | None = None) -> Counter[str]:
    return Counter(finished.queue for finished in sample if since is None or finished.at >= since)
