"""How a lock is taken from a dead holder, and how it is cleared without a successor."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import Error

from django_singlejob.conf import ZERO
from django_singlejob.database import errors, transactions
from django_singlejob.locking.liveness import LONGEST_STAY, LONGEST_WATCH, Watch
from django_singlejob.locking.recording import Writer, end_for, with_history
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import backoff, local_now, since, sleep
from django_singlejob.signals import lock_taken_over

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# How long to retry a forced clear while others are in the way, in seconds.
PERSEVERANCE = 5.0


class Watchman:
    """Watches all the locks at once, to find out which holders are dead. See ``liveness`` for what proves it."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        #: The suspected locks that cannot be decided yet, each with the shortest time until it can.
        self.undecided: dict[str, tuple[JobLock, timedelta]] = {}

    def dead(self) -> list["JobLock"]:
        """The locks whose holders are dead by now. Ask again after ``pause``."""
        # Watch the live ones too: if one of them is suspected later, we know since when it has not changed.
        asked_at = local_now()
        seen = {lock.name: lock for lock in locks().watched()}
        self._watches = {name: self._watches.get(name) or Watch() for name in seen}
        left = {name: self._watches[name].look(lock, asked_at) for name, lock in seen.items()}
        self.undecided = {name: (seen[name], rest) for name, rest in left.items() if rest}
        return [seen[name] for name, rest in left.items() if rest == ZERO]

    def put_off(self, lock: "JobLock") -> None:
        """Count a dead holder's lock as undecided again: it could not be cleared, since its gate is busy."""
        self.undecided[lock.name] = (lock, ZERO)

    @property
    def watched(self) -> set[str]:
        """The names of the undecided locks, and of their jobs."""
        return {name for lock, _ in self.undecided.values() for name in (lock.name, lock.job_name)}

    @property
    def pause(self) -> float | None:
        """How soon to look again, in seconds; ``None`` if nothing can be decided soon."""
        soon = [lock for lock, rest in self.undecided.values() if rest <= LONGEST_STAY]
        return min((self._watches[lock.name].pause(lock) for lock in soon), default=None)


def dead_locks(watchman: Watchman | None = None) -> Iterator["JobLock"]:
    """The locks whose holders are dead, each as soon as this is known, until no more can be decided soon."""
    watchman, yielded, begun_at = watchman or Watchman(), set(), local_now()
    for pause in backoff():
        sleep(pause if watchman.pause is None else min(pause, watchman.pause))
        for lock in watchman.dead():
            if lock.token not in yielded:
                yielded.add(lock.token)
                yield lock
        if watchman.pause is None or since(begun_at) > LONGEST_WATCH:
            return


def clear(lock: "JobLock", *, force: bool = False, error: str = "The lock was cleared.") -> bool:
    """End the lease of the row that was seen, and its run. If the holder is alive, it finds out at its next heartbeat
    or fenced transaction.

    Returns ``False`` if the row is a different one by now, or if its holder gave a sign of life or is inside a fenced
    transaction. With ``force``, only a different row, or a fenced transaction that lasts for seconds, prevents it.
    """
    # Without ``force``, there is no need to wait for others: the lock will be looked at again.
    give_up_at = local_now() + (PERSEVERANCE if force else 0)
    for pause in backoff():
        sleep(pause)
        is_cleared = clear_at_once(lock, force=force, error=error)
        if is_cleared is not None or local_now() >= give_up_at:
            return bool(is_cleared)
    raise AssertionError("backoff() never ends")


def clear_at_once(lock: "JobLock", *, force: bool = False, error: str) -> bool | None:
    """Like ``clear``, but try only once. Returns ``None`` if others are in the way: nothing is changed."""
    transactions.refuse_open_transaction(transactions.alias())
    try:
        gates().remember(lock.name)
        is_cleared = with_history(lambda history: _clear_once(lock, history, force=force, error=error))
    except Error as problem:
        if not errors.is_undone(problem):
            raise
        return None
    if is_cleared:
        lock_taken_over.send_robust(sender=type(lock), name=lock.name, lease=None, lock=lock)
    return is_cleared


def _clear_once(lock: "JobLock", history: Writer, *, force: bool, error: str) -> bool | None:
    """Returns ``None`` if the gate is busy."""
    alias = transactions.alias()
    with transactions.durable(alias, statement_timeout=history.patience):
        is_cleared = take_from(
            lock,
            pass_gate=lambda: gates().revoke(lock.name),
            end_lease=lambda: locks().clear(lock, force=force),
            error=error,
            history=history,
        )
        if not is_cleared:
            transactions.roll_back(alias)
    return is_cleared


def take_from(
    dead: "JobLock", *, pass_gate: Callable[[], bool], end_lease: Callable[[], bool], error: str, history: Writer
) -> bool | None:
    """Take a lock from its holder, in the caller's transaction and in the order gate, lease, run.

    ``pass_gate`` and ``end_lease`` are the conditional writes. Returns ``False`` if one of them changed nothing: then
    roll back. Returns ``None`` if another process is inside a transaction on the gate.
    """
    if not gates().is_at_hand(dead.name):
        return None  # it is not waited for
    if not (pass_gate() and end_lease()):
        return False
    end_for(dead, {"status": "abandoned", "error": error}, history)
    history.write(lambda: one_offs().abandon(dead, error))  # otherwise a worker puts it back later
    if dead.job_name:
        gates().abandon(dead)
    return True
