"""What this process may hold, so that its exit leaves nothing behind."""

import atexit
import logging
import os
from uuid import UUID

from django_singlejob import database
from django_singlejob.querysets import gates, locks, runs
from django_singlejob.queue import one_offs

logger = logging.getLogger("django_singlejob")

_granted: dict[UUID, str] = {}


def announce(token: UUID, name: str) -> None:
    """To be called before the lock is asked for: an interrupt may come between the grant and its ``Lease``."""
    _granted[token] = name


def forget(token: UUID) -> None:
    """Nothing was granted, or it was given back."""
    _granted.pop(token, None)


def give_back(token: UUID) -> None:
    """Release the lock if it was granted under this token; best effort."""
    name = _granted.pop(token, None)
    if name is None:
        return
    try:
        _release_row(name, token)
    except Exception as error:
        logger.warning("The lock %r could not be released, and is left to expire: %s", name, error)


@atexit.register
def release_at_exit() -> None:
    """Give back what is still held, as after a KeyboardInterrupt at a bad moment."""
    for token in list(_granted):
        give_back(token)


def _release_row(name: str, token: UUID) -> None:
    alias = database.alias()
    # An interrupt may have left the connection in the middle of a statement.
    database.drop(alias)
    lock = locks().filter(name=name, token=token).first()
    if lock is None:
        return
    with database.durable(alias):
        if gates().hold(name, token) and locks().release(name, token) and lock.run_id:
            one_offs().give_back(token)
            runs().finish(lock.run_id, token, {"status": "interrupted", "error": "The process ended."})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_granted.clear)
