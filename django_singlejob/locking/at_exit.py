"""The locks that this process may hold, so that it leaves none behind when it exits."""

import atexit
import logging
import os
import threading
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django_singlejob.database import errors, transactions
from django_singlejob.locking.recording import Writer, end_for, with_history
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")


class _Granted(NamedTuple):
    """What the database may have granted: the lock's name, the thread that requested it, and whether its run may have
    begun."""

    name: str
    thread: threading.Thread
    may_have_begun: bool = False


# By token.
_granted: dict[UUID, _Granted] = {}


def announce(token: UUID, name: str) -> None:
    """Call this before you request the lock: an interrupt may come between the grant and its ``Lease``."""
    _granted[token] = _Granted(name, threading.current_thread())


def begin(token: UUID) -> None:
    """Call this before the run may begin. Until then, its slot is run again, as after a death."""
    if granted := _granted.get(token):  # not in a process that a receiver of a signal has forked meanwhile
        _granted[token] = granted._replace(may_have_begun=True)


def forget(token: UUID) -> None:
    """Drop the token: nothing was granted, or the lock was released or is left to expire."""
    _granted.pop(token, None)


def release_granted(token: UUID) -> bool:
    """Release the lock if it was granted under this token (best effort).

    Returns ``False`` if the row was not found or could not be released. A COMMIT under way may still insert it; then it
    is left to expire.
    """
    granted = _granted.pop(token, None)
    if granted is None:
        return True
    try:
        return _release_row(granted, token)
    except Exception as error:
        message = "The lock %r could not be released, and is left to expire: %s"
        extra = about(lock=granted.name, token=token, reason=error)
        logger.warning(message, granted.name, errors.words_of(error), extra=extra)
        return False


def may_hold_a_lock() -> bool:
    """Whether this process may hold a lock."""
    return bool(_granted)


@atexit.register
def release_at_exit() -> None:
    """Release what is still held, as after a KeyboardInterrupt at a bad moment."""
    for token, granted in list(_granted.items()):
        # Another live thread may be in the middle of a job until the process is gone: its lock is left to expire.
        if granted.thread is threading.current_thread() or not granted.thread.is_alive():
            release_granted(token)


def _release_row(granted: _Granted, token: UUID) -> bool:
    alias = transactions.alias()
    # An interrupt may have left the connection in the middle of a statement.
    transactions.drop(alias)
    lock = locks().look_up(granted.name)
    if lock is None or lock.token != token:
        return False
    result = {"status": "interrupted", "error": "The process exited.", "finished_at": lock.now}

    def release(history: Writer) -> None:
        with transactions.durable(alias, statement_timeout=history.patience):
            if gates().hold(lock.name, lock.token) and locks().release(lock.name, lock.token):
                history.write(partial(one_offs().release, lock.token))
                if lock.slot and not granted.may_have_begun:
                    gates().abandon(lock)
                end_for(lock, result, history)

    with_history(release, lock.lease)
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_granted.clear)
