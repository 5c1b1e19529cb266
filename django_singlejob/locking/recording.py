"""Writes the history. It is a record, never a condition: an error in it never fails, repeats or prevents a run.

The history is written in the transaction that grants or releases a lock. If that fails, the transaction is repeated
without the history. When a run has ended, its whole row is written, if necessary once more on its own; if that fails
too, one error is logged.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from django_singlejob.database import errors, transactions
from django_singlejob.database.time_limits import limited
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow, local_now, since
from django_singlejob.process.escaping import printable
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

logger = logging.getLogger("django_singlejob")

T = TypeVar("T")

# How many seconds a process skips the history after a failed write.
AWAY_FOR = 30.0
# The longest a statement of the history may take: this, or the lease divided by PATIENT_PART if that is less.
PATIENCE = timedelta(seconds=2)
PATIENT_PART = 3
# With less time than this, the history is not written in a transaction that decides: the decision must get through.
LEAST_PATIENCE = timedelta(milliseconds=100)
PROBLEM_LENGTH = 500
#: The error of a run, or of a one-off, that is not over although its lock is gone.
ORPHANED = "Its lock is gone, and how it ended was not recorded."

_away_until = float("-inf")
_away_because = ""


class HistoryFailed(Exception):
    """The history could not be written. Its cause is the error; without a cause, no write was attempted."""


class Writer:
    """Writes to the history in a transaction that decides something. A writer that is off writes nothing.

    Attributes:
        patience: how long each statement may take; ``None`` if the writer is off.
        failure: why it is off; ``None`` if it is not.
    """

    def __init__(self, patience: timedelta | None, failure: HistoryFailed | None = None) -> None:
        self.patience = patience
        self.failure = failure

    def write(self, statement: Callable[[], T]) -> T | None:
        """Run the statement and return its value, or ``None`` if the writer is off."""
        if self.patience is None:
            return None
        begun_at = local_now()
        try:
            with limited(transactions.alias(), self.patience):
                return statement()
        except Exception as error:
            if since(begun_at) >= self.patience / 2:
                stay_away(error)  # so that the next one need not wait as well
            raise HistoryFailed(_problem(error)) from error


def writer(lease: timedelta | None = None) -> Writer:
    """The writer for a transaction that also writes to the history. ``lease``: how much of its lease the waiting holder
    has left."""
    patience, skipped = _patience(lease), why_skipped()
    if patience < LEAST_PATIENCE:
        skipped = skipped or HistoryFailed("the lease is almost over")
    return Writer(None, skipped) if skipped else Writer(patience)


def with_history(carry_out: Callable[[Writer], T], lease: timedelta | None = None) -> T:
    """Carry out a transaction that also writes to the history. If that cannot be written, carry it out once more,
    without."""
    try:
        return carry_out(writer(lease))
    except HistoryFailed as error:
        failure, problem = error, error.__cause__
    message = "The history could not be written and is skipped for now: %s"
    logger.info(message, printable(str(problem), PROBLEM_LENGTH), extra=about(reason=problem))
    if problem and errors.is_connection_lost(problem):
        transactions.drop(transactions.alias())
    return carry_out(Writer(None, failure))


def alone(write: Callable[[], T], lease: timedelta | None = None) -> T:
    """Write to the history in a transaction of its own, which blocks no gate and no lock.

    Raises ``HistoryFailed``. After that, this process skips the history for a while.
    """
    if skipped := why_skipped():
        raise skipped
    alias, patience, begun_at = transactions.alias(), _patience(lease), local_now()
    try:
        with transactions.durable(alias, statement_timeout=patience), limited(alias, patience):
            return write()
    except Exception as error:
        is_lost, problem = errors.is_connection_lost(error), _problem(error)
        if is_lost:
            transactions.drop(alias)
        # A lost connection says nothing about the history, unless we cut it ourselves.
        if not is_lost or errors.is_out_of_room(error) or since(begun_at) >= patience:
            stay_away(error)
        raise HistoryFailed(problem) from error


def _problem(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}", PROBLEM_LENGTH)


def why_skipped() -> HistoryFailed | None:
    """Why no write is attempted for a while; ``None`` if it is."""
    if local_now() >= _away_until:
        return None
    return HistoryFailed(f"a write has just failed, so this one was not attempted: {_away_because}")


def stay_away(error: Exception) -> None:
    """Skip the history for a while, so that not every run waits for the same time-out."""
    global _away_until, _away_because
    _away_until, _away_because = local_now() + AWAY_FOR, _problem(error)


def _patience(lease: timedelta | None) -> timedelta:
    return PATIENCE if lease is None else min(PATIENCE, lease / PATIENT_PART)


class Entry:
    """A run's row in the history.

    Attributes:
        facts: the values that are known from the start.
        pk: its primary key; ``None`` if there is no row, or none is known.
    """

    def __init__(self, lease: timedelta, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.pk: int | None = None
        self._token = facts["token"]
        self._lease = lease

    def find(self) -> None:
        """Find the row of a grant that was committed although its answer was lost. The last try may have another."""
        self.pk = None
        with suppress(HistoryFailed):
            self.pk = alone(partial(runs().key_of, self._token), self._lease)

    def status(self) -> str | None:
        """The run's status in the history; ``None`` if it has no row, or if the history cannot be read."""
        with suppress(HistoryFailed):
            return alone(partial(runs().status_of, self._token), self._lease)
        return None

    def begin(self, writer: Writer) -> None:
        """Insert the row in the transaction of the grant."""
        self.pk = writer.write(lambda: runs().start(self.facts))

    def end(self, writer: Writer, result: Mapping[str, Any]) -> bool:
        """Record how the run ended, in the transaction of the release. ``False`` if the history is skipped."""
        return writer.write(partial(self._end, result)) is not None

    def end_late(self, result: Mapping[str, Any]) -> None:
        """Record how the run ended, after the release skipped it, or failed."""
        try:
            alone(partial(self._end, result), self._lease)
        except HistoryFailed as failed:
            _log_missing(failed, {**self.facts, **result}, self.pk)

    def _end(self, result: Mapping[str, Any]) -> bool:
        if not runs().finish(self._token, result):
            # It was ended in our place, or the grant skipped the history.
            self.pk = runs().key_of(self._token) or runs().start({**self.facts, "finished_at": DBNow(), **result})
        return True


def end_for(lock: "JobLock", result: Mapping[str, Any], writer: Writer) -> None:
    """Record how the run of this lock ended, in place of its holder, in the transaction that takes the lock away."""
    if lock.job_name and not writer.write(partial(_finish_or_find, lock, result)):
        facts = {
            "job_name": lock.job_name,
            "lock": lock.name,
            "token": lock.token,
            "slot": lock.slot,
            "attempt": lock.attempt,
        }
        facts |= {"hostname": lock.hostname, "pid": lock.pid, "started_at": lock.acquired_at, **result}
        problem = writer.failure or "it has no row"
        transaction.on_commit(partial(_log_missing, problem, facts), using=transactions.alias(), robust=True)


def _finish_or_find(lock: "JobLock", result: Mapping[str, Any]) -> bool:
    """``False`` if the run has no row."""
    return runs().finish(lock.token, result) or runs().key_of(lock.token) is not None


def _log_missing(problem: object, facts: Mapping[str, Any], run: int | None = None) -> None:
    known: dict[str, Any] = {"run": run, **{name: facts.get(name) for name in ("fence", "slot", "token")}}
    reason = problem if isinstance(problem, BaseException) else None
    message = "A run of %r, or its end, is missing from the history (%s): %s"
    text = json.dumps(facts, cls=DjangoJSONEncoder)
    logger.error(message, facts["job_name"], problem, text, extra=about(job=facts["job_name"], reason=reason, **known))


def abandon_orphans() -> int:
    """Record as abandoned the runs whose locks are gone. Returns their number. Raises ``HistoryFailed``."""
    return alone(lambda: runs().abandon_orphans(ORPHANED))
