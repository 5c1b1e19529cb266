"""Pruning: what is old is deleted, once a day on all servers together."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from django.db.models import Exists, Subquery

from django_singlejob.conf import options
from django_singlejob.exceptions import SkipRun
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.recording import alone
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.rows import delete_rows
from django_singlejob.models.runs import runs
from django_singlejob.models.unreadable import RowQuerySet
from django_singlejob.process.clock import DBNow, local_now

DAY = timedelta(days=1)
# What is left after that is for the next pass: a pass should not take much longer because of it. Seconds.
LONGEST = 10.0
# Whatever HISTORY_KEEP says, a weekend of slots can be read on Monday, though not everything that was printed.
SPARED, KEPT_OUTPUTS = timedelta(days=3), 1_000


def prune() -> str:
    """Delete runs and one-offs that are older than the settings allow. If that takes too long, the run is skipped: the
    next one goes on."""
    alone(runs().exists)  # raises if the table is locked: a thread that waited for it would run no jobs
    end, counts = local_now() + LONGEST, Counter[str]()
    for name, rows, act in _surplus():
        for batch in rows.batches():
            counts[name] += act(batch)
            if local_now() > end:
                raise SkipRun(
                    f"After {LONGEST:.0f} seconds, the rest is left to the next run. Done: {_in_words(counts)}."
                )
    return _in_words(counts)


def _surplus() -> Iterator[tuple[str, RowQuerySet[Any], Callable[[RowQuerySet[Any]], int]]]:
    """What there is too much of, each with what to do about some of it."""
    age, keep = timedelta(days=options().history_days), options().history_keep
    for rows in runs().surplus(age, keep, SPARED):
        yield "runs", rows, delete_rows
    for rows in runs().beyond(max(keep, KEPT_OUTPUTS)):
        yield "outputs", rows.exclude(output=""), lambda some: some.update(output="")
    yield "one-offs", one_offs().surplus(age), delete_rows
    yield "notes", notes().surplus(age), delete_rows


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in ("runs", "outputs", "one-offs", "notes") if counts[name])


# It is not registered, so that only workers run it.
PRUNING = Job(name="django_singlejob.prune", func=prune, ping_url="")


def anything_to_prune() -> list[RowQuerySet[Any]]:
    """Query sets with at most one row each: none has one if nothing is older than a day, or if the last pruning began
    within a day, and was not cut short."""
    gate = gates().filter(name=PRUNING.name, last_started_at__range=(DBNow() - DAY, DBNow() + DAY))
    is_done = Exists(gate.exclude(last_status__in=("skipped", "interrupted")))
    old_run = runs().exclude(status="running").filter(started_at__lt=DBNow() - DAY)
    return [
        rows.filter(~is_done, pk=Subquery(old.order_by().values("pk")[:1]))
        for rows, old in ((runs(), old_run), (one_offs(), one_offs().surplus(DAY)))
    ]
