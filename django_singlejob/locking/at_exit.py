"""The locks that this process may hold, so that it leaves none behind when it exits."""

import atexit
import logging
import os
import threading
from functools import partial
from uuid import UUID

from django_singlejob.database import errors, transactions
from django_singlejob.locking.recording import Writer, end_for, with_history
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

# By token: the lock's name, and the thread that requested it.
_granted: dict[UUID, tuple[str, threading.Thread]] = {}


def announce(token: UUID, name: str) -> None:
    """Call this before you request the lock: an interrupt may come between the grant and its ``Lease``."""
    _granted[token] = (name, threading.current_thread())


def forget(token: UUID) -> None:
    """Drop the token: nothing was granted, or the lock was released or is left to expire."""
    _granted.pop(token, None)


def release_granted(token: UUID, *, has_begun: bool = True) -> bool:
    """Release the lock if it was granted under this token (best effort).

    ``has_begun``: whether its run may have begun. If not, its slot is run again, as after a death. Returns ``False`` if
    the row was not found or could not be released. A COMMIT under way may still insert it; then it is left to expire.
    """
    granted = _granted.pop(token, None)
    if granted is None:
        return True
    name, _ = granted
    try:
        return _release_row(name, token, has_begun=has_begun)
    except Exception as error:
        message = "The lock %r could not be released, and is left to expire: %s"
        logger.warning(message, name, errors.words_of(error), extra=about(lock=name, token=token, reason=error))
        return False


@atexit.register
def release_at_exit() -> None:
    """Release what is still held, as after a KeyboardInterrupt at a bad moment."""
    for token, (_, thread) in list(_granted.items()):
        # Another live thread may be in the middle of a job until the process is gone: its lock is left to expire.
        if thread is threading.current_thread() or not thread.is_alive():
            release_granted(token)


def _release_row(name: str, token: UUID, *, has_begun: bool) -> bool:
    alias = transactions.alias()
    # An interrupt may have left the connection in the middle of a statement.
    transactions.drop(alias)
    lock = locks().look_up(name)
    if lock is None or lock.token != token:
        return False
    result = {"status": "interrupted", "error": "The process exited.", "finished_at": lock.now}

    def release(history: Writer) -> None:
        with transactions.durable(alias, statement_timeout=history.patience):
            if gates().hold(lock.name, lock.token) and locks().release(lock.name, lock.token):
                history.write(partial(one_offs().release, lock.token))
                if lock.slot and not has_begun:
                    gates().abandon(lock)
                end_for(lock, result, history)

    with_history(release, lock.lease)
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_granted.clear)
