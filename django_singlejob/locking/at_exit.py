"""What this process may hold, so that its exit leaves nothing behind."""

import atexit
import logging
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

from django_singlejob import database
from django_singlejob.querysets import gates, locks
from django_singlejob.queue import one_offs
from django_singlejob.recording import Writer, end_for, with_history

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

logger = logging.getLogger("django_singlejob")

# By token: the lock's name, and who asked for it.
_granted: dict[UUID, tuple[str, threading.Thread]] = {}


def announce(token: UUID, name: str) -> None:
    """To be called before the lock is asked for: an interrupt may come between the grant and its ``Lease``."""
    _granted[token] = (name, threading.current_thread())


def forget(token: UUID) -> None:
    """Nothing was granted, or it was given back, or it is left to expire."""
    _granted.pop(token, None)


def give_back(token: UUID) -> None:
    """Release the lock if it was granted under this token; best effort."""
    granted = _granted.pop(token, None)
    if granted is None:
        return
    name, _ = granted
    try:
        _release_row(name, token)
    except Exception as error:
        logger.warning("The lock %r could not be released, and is left to expire: %s", name, error)


@atexit.register
def release_at_exit() -> None:
    """Give back what is still held, as after a KeyboardInterrupt at a bad moment."""
    for token, (_, thread) in list(_granted.items()):
        # Another thread that goes on may be in the middle of a job, until the process is gone: that is left to expire.
        if thread is threading.current_thread() or not thread.is_alive():
            give_back(token)


def release_and_exit() -> NoReturn:
    """End this process at once, and give back what it holds before. Only where no job can do anything any more: none of
    its own code, and no statement that a server would carry out without it."""
    sys.stdout.flush()
    sys.stderr.flush()
    for token in list(_granted):
        give_back(token)
    os._exit(0)


def _release_row(name: str, token: UUID) -> None:
    alias = database.alias()
    # An interrupt may have left the connection in the middle of a statement.
    database.drop(alias)
    lock = locks().seen(name)
    if lock and lock.token == token:
        with_history(partial(_release_once, alias, lock), lock.lease)


def _release_once(alias: str, lock: "JobLock", history: Writer) -> None:
    with database.durable(alias, statement_timeout=history.patience):
        if gates().hold(lock.name, lock.token) and locks().release(lock.name, lock.token):
            one_offs().give_back(lock.token)
            end_for(lock, {"status": "interrupted", "error": "The process ended.", "finished_at": lock.now}, history)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_granted.clear)
