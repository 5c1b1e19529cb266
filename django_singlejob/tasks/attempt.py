"""An attempt at a task finds out by its row whether a user has stopped it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import Error, connections

from django_singlejob.database import errors, transactions
from django_singlejob.exceptions import JobStopped
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about
from django_singlejob.running.current_run import ASK_TASK

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")

# How often a task asks the database whether it was stopped, at most. Seconds.
_INTERVAL = 1.0


@contextmanager
def attempt_at(row: "OneOffJob") -> Iterator[None]:
    """Inside, ``raise_if_stopped()`` is about this task."""
    before = ASK_TASK.set(_Attempt(row).raise_if_stopped)
    try:
        yield
    finally:
        ASK_TASK.reset(before)


class _Attempt:
    """An attempt at a task, which finds out by its row whether a user has stopped it."""

    def __init__(self, row: "OneOffJob") -> None:
        self._row = row
        self._stopped_by = ""
        self._look_at = 0.0

    def raise_if_stopped(self) -> None:
        if not self._stopped_by and local_now() >= self._look_at:
            self._stopped_by = stopped_by(self._row)
            self._look_at = local_now() + _INTERVAL
        if self._stopped_by:
            raise JobStopped(self._stopped_by)


def stopped_by(row: "OneOffJob") -> str:
    """The user who has stopped this attempt; empty if nobody has, or if the database does not answer: the task goes on
    meanwhile."""
    try:
        with transactions.closed_if_lost(connections[transactions.alias()]):
            return one_offs().stopped_by(row)
    except Error as error:
        message = "Whether a user has stopped the task %r is not known: %s"
        logger.warning(message, row.name, errors.words_of(error), extra=about(job=row.name, reason=error))
        return ""
