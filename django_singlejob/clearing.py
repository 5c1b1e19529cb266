"""How a dead holder's lock is cleared, without a successor."""

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from django.db import Error

from django_singlejob import database
from django_singlejob.clock import backoff
from django_singlejob.querysets import gates, locks
from django_singlejob.signals import lock_taken_over
from django_singlejob.watch import Watch, bury

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

TRIES = 10


class Watchman:
    """Tells the stale locks whose holders are dead, after watching them all for two heartbeat intervals of theirs."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        #: The names of the stale locks of which he could not tell yet, and of their jobs.
        self.watched: set[str] = set()

    def dead(self) -> list["JobLock"]:
        """Those of which he can tell by now; to be asked again soon while some are watched."""
        stale = {lock.name: lock for lock in locks().stale()}
        self._watches = {name: self._watches.get(name) or Watch() for name in stale}
        dead = [lock for name, lock in stale.items() if _is_dead(lock, self._watches[name])]
        watched = [lock for lock in stale.values() if lock not in dead]
        self.watched = {name for lock in watched for name in (lock.name, lock.job_name)}
        return dead


def dead_locks() -> Iterator["JobLock"]:
    """The stale locks whose holders are dead, each as soon as that is known."""
    watchman = Watchman()
    told = set()
    for pause in backoff():
        time.sleep(pause)
        for lock in watchman.dead():
            if lock.token not in told:
                told.add(lock.token)
                yield lock
        if not watchman.watched:
            return


def _is_dead(lock: "JobLock", watch: Watch) -> bool:
    try:
        return watch.is_over(lock)
    except Error as error:
        if not database.is_transient(error):
            raise
        return False  # somebody is at its gate, so somebody is alive


def clear(lock: "JobLock", *, force: bool = False, error: str = "The lock was cleared.") -> bool:
    """End the lease of the row that was seen, and its run. ``False``: it is another one's by now, or its holder lives
    (``force``: that does not matter), or somebody is inside a fenced transaction on it for seconds. A holder that is
    alive finds out at its next heartbeat, check or fenced transaction."""
    alias = database.alias()
    database.refuse_open_transaction(alias)
    for pause in islice(backoff(), TRIES):
        time.sleep(pause)
        try:
            gates().remember(lock.name)
            is_cleared = _clear_once(alias, lock, force=force, error=error)
        except Error as problem:
            if not database.is_transient(problem):
                raise
        else:
            if is_cleared:
                lock_taken_over.send_robust(sender=lock.name, lease=None, lock=lock)
            if is_cleared is not None:
                return is_cleared
    return False


def _clear_once(alias: str, lock: "JobLock", *, force: bool, error: str) -> bool | None:
    """``None``: the gate is busy."""
    with database.durable(alias):
        if not gates().is_at_hand(lock.name):
            return None  # MySQL would wait for it for almost a minute
        gates().shut(lock.name)
        is_cleared = locks().clear(lock, force=force)
        if is_cleared:
            bury(lock, error)
        else:
            database.roll_back(alias)
        return is_cleared
