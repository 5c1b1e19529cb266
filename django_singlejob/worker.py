"""What a server does all day: one pass after the other over what is due."""

import logging
import random
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

from django.db import Error

from django_singlejob import database, runner
from django_singlejob.clearing import Watchman
from django_singlejob.clock import backoff, local_now
from django_singlejob.conf import options
from django_singlejob.interrupt import is_told_to_end
from django_singlejob.querysets import gates, locks, runs
from django_singlejob.queue import one_offs
from django_singlejob.registry import Job
from django_singlejob.scheduler import Report, attempt, clear_dead, is_anything_due, keep_up, logged, run_what_is_due

logger = logging.getLogger("django_singlejob")

# What a release of the code changes need not be looked at each second.
KEEP_UP_EVERY = timedelta(minutes=1)
PRUNE_EVERY = timedelta(hours=1)
WATCH_EVERY = timedelta(seconds=1)
# How often one that sleeps looks whether it is told to end. Seconds.
_NAP = 0.1


def prune() -> str:
    """Delete the runs and one-offs that are older than the settings want."""
    age = timedelta(days=options().history_days)
    return f"{runs().surplus(age, options().history_keep).prune()} runs, {one_offs().surplus(age).prune()} one-offs"


# On all servers together once a day; it is not registered, so that nobody asks for it where there is no worker.
PRUNING = Job(name="django_singlejob.prune", func=prune, min_interval=timedelta(days=1))


def work(interval: timedelta, queues: Sequence[str] = ()) -> Iterator[Report]:
    """Run what is due until this process is told to end, looking each ``interval``, or a bit sooner or later so that
    servers spread out. While nothing is due that takes one query. It goes on when the database comes back."""
    watchman, pauses = Watchman(), backoff(interval.total_seconds())
    keep_up_at = prune_at = local_now()
    while not is_told_to_end():
        try:
            if local_now() >= keep_up_at:
                keep_up()
                keep_up_at = local_now() + KEEP_UP_EVERY.total_seconds()
            if local_now() >= prune_at:
                prune_at = local_now() + PRUNE_EVERY.total_seconds()
                logged(attempt(PRUNING, lambda: runner.run(PRUNING)))
            if is_anything_due(queues):
                clear_dead(watchman)
                yield from run_what_is_due(watchman.watched | _hopeless(), queues)
            pauses = backoff(interval.total_seconds())
            # Who is watched has to be looked at often.
            soon = min(interval, WATCH_EVERY) if watchman.watched else interval
            _pause(soon.total_seconds() * random.uniform(0.8, 1.2))  # noqa: S311
        except Error as error:
            if not (database.is_connection_lost(error) or database.is_transient(error)):
                raise
            logger.warning("The database does not answer, which is tried again: %s", error)
            database.drop(database.alias())
            _pause(next(pauses) or interval.total_seconds())


def _hopeless() -> set[str]:
    """The locks that somebody holds, and the jobs that are paused."""
    return {
        *locks().live().values_list("name", flat=True),
        *gates().filter(paused=True).values_list("name", flat=True),
    }


def _pause(seconds: float) -> None:
    # A signal is remembered, and ends no sleep.
    end = local_now() + seconds
    while not is_told_to_end() and (left := end - local_now()) > 0:
        time.sleep(min(left, _NAP))
