"""Writes the history. It is a record, never a condition: an error in it never fails, repeats or prevents a run.

The history is written in the transaction that grants or releases a lock. If that fails, the transaction is repeated
without the history, and the history is then written once more on its own. If a run still has no row, one error is
logged. If only its end is missing, the job's gate keeps the end (``JobStatus.unrecorded``) until it can be recorded. A
gate keeps only one end, and that is enough: no later run of the job gets a row before the kept end is recorded.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error, transaction
from django.utils.dateparse import parse_datetime, parse_duration

from django_singlejob import database
from django_singlejob.clock import instant_in_words, local_now, since, utc_now
from django_singlejob.cutoff import limited
from django_singlejob.escaping import printable
from django_singlejob.holder import this_process
from django_singlejob.logs import about
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.runs import runs

if TYPE_CHECKING:
    from django_singlejob.models import JobLock
    from django_singlejob.querysets.jobs import JobStatusQuerySet

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

_away_until = float("-inf")
_away_because = ""


class HistoryFailed(Exception):
    """The history could not be written. Its cause is the error; without a cause, no write was attempted."""


class Writer:
    """Writes to the history in a transaction that decides something. A writer that is off writes nothing.

    Use it as a context manager around that transaction. If the history cannot be written, the transaction is rolled
    back, and ``has_failed`` is true after the block.

    Attributes:
        patience: how long each statement may take; ``None`` if the writer is off.
    """

    def __init__(self, patience: timedelta | None) -> None:
        self.patience = patience
        self.has_failed = False
        self._later: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        self.has_failed = isinstance(error, HistoryFailed)
        if isinstance(error, HistoryFailed):
            _leave_out(error.__cause__)
        elif error is None:
            for act in self._later:
                act()
        return self.has_failed

    @property
    def is_off(self) -> bool:
        return self.patience is None

    def write(self, statement: Callable[[], T]) -> T | None:
        """Run the statement and return its value, or ``None`` if the writer is off."""
        if self.patience is None:
            return None
        try:
            with limited(database.alias(), self.patience):
                return statement()
        except Exception as error:
            raise HistoryFailed from error

    def after_commit(self, act: Callable[[], object]) -> None:
        """Call ``act`` once the transaction has been committed and is over."""
        transaction.on_commit(partial(self._later.append, act), using=database.alias())


def writers(lease: timedelta | None = None) -> Iterator[Writer]:
    """The writers for a transaction that also writes to the history. Carry out the transaction inside each of them:
    there is one, and if it fails, a second one that is off.

    ``lease``: how much of its lease the waiting holder has left.
    """
    patience = _patience(lease)
    writer = Writer(None if _is_away() or patience < LEAST_PATIENCE else patience)
    yield writer
    if writer.has_failed:
        yield Writer(None)


def _leave_out(problem: BaseException | None) -> None:
    message = "The history could not be written and is skipped for now: %s"
    logger.info(message, printable(str(problem), PROBLEM_LENGTH), extra=about(reason=problem))
    if problem and database.is_connection_lost(problem):
        database.drop(database.alias())


def alone(write: Callable[[], T], lease: timedelta | None = None) -> T:
    """Write to the history in a transaction of its own, which blocks no gate and no lock.

    Raises ``HistoryFailed``. After that, this process skips the history for a while.
    """
    global _away_until, _away_because  # so that not every run waits for the same time-out
    if _is_away():
        raise HistoryFailed(f"a write has just failed, so this one was not attempted: {_away_because}")
    patience, begun_at = _patience(lease), local_now()
    try:
        with database.durable(database.alias(), statement_timeout=patience), limited(database.alias(), patience):
            return write()
    except Exception as error:
        is_lost = database.is_connection_lost(error)
        problem = printable(f"{type(error).__name__}: {error}", PROBLEM_LENGTH)
        if is_lost:
            database.drop(database.alias())
        # A lost connection says nothing about the history, unless we cut it ourselves.
        if not is_lost or database.is_out_of_room(error) or since(begun_at) >= patience:
            _away_until, _away_because = local_now() + AWAY_FOR, problem
        raise HistoryFailed(problem) from error


def has_row(token: UUID, lease: timedelta) -> bool:
    """Whether the history has a run of this token, or that cannot be found out."""
    try:
        return alone(partial(runs().key_of, token), lease) is not None
    except HistoryFailed:
        return True


def _is_away() -> bool:
    return local_now() < _away_until


def _patience(lease: timedelta | None) -> timedelta:
    return PATIENCE if lease is None else min(PATIENCE, lease / PATIENT_PART)


class Entry:
    """A run's row in the history.

    Attributes:
        facts: the values that are known from the start.
        pk: its primary key; ``None`` if there is no row.
    """

    def __init__(self, former: Mapping[str, Any] | None, lease: timedelta, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.pk: int | None = None
        self._token = facts["token"]
        self._lease = lease
        #: The end of an earlier run, if the job's gate still keeps it.
        self._former = former

    def begin(self, writer: Writer) -> None:
        """Insert the row in the transaction of the grant."""
        self.pk = writer.write(self._insert)

    def begin_late(self, started_at: datetime) -> None:
        """Insert the row after the grant, if the grant skipped it."""
        self.facts["started_at"] = started_at
        if self.pk is None:
            self._begin_late()

    def adopt(self, started_at: datetime) -> None:
        """Find the row of a grant that was committed although its answer was lost; insert it if the grant skipped
        it."""
        self.facts["started_at"] = started_at
        # Even with a key: it may come from another try than the one that was committed.
        self._begin_late()

    def _begin_late(self) -> None:
        with suppress(HistoryFailed):
            self.pk = alone(self._found_or_inserted, self._lease)
            if self._former is not None:
                # Make room for a later end.
                _at_gate(self.facts["job_name"], methodcaller("forget", self._former))

    def _found_or_inserted(self) -> int:
        return runs().key_of(self._token) or self._insert()

    def _insert(self) -> int:
        if self._former is not None:
            _record(self._former)
        return runs().start(self.facts)

    def end(self, writer: Writer, result: Mapping[str, Any]) -> bool:
        """Record how the run ended, in the transaction of the release. ``False`` if the history is skipped."""
        return self.pk is not None and writer.write(lambda: runs().finish(self._token, result)) is not None

    def kept(self, writer: Writer, result: Mapping[str, Any]) -> dict[str, Any]:
        """What changes in the job's gate in that transaction: the gate keeps the end if the history is skipped."""
        return {"unrecorded": _kept(self._token, result)} if writer.is_off and self.pk is not None else {}

    def end_late(self, result: Mapping[str, Any]) -> None:
        """Record how the run ended, after the release skipped it."""
        try:
            self.pk = alone(partial(self._insert_or_finish, result), self._lease)
        except HistoryFailed as failed:
            if self.pk is None:
                _log("A run of %r is missing from the history (%s): %s", failed, {**self.facts, **result})
            else:
                # The release has not kept the end if the job released its lock itself.
                _at_gate(self.facts["job_name"], methodcaller("keep", _kept(self._token, result)))
                _log(
                    "The end of a run of %r is not in the history yet (%s): %s",
                    failed,
                    {**self.facts, **result},
                    self.pk,
                )

    def _insert_or_finish(self, result: Mapping[str, Any]) -> int:
        pk = self.pk or self._found_or_inserted()
        runs().finish(self._token, result)
        return pk


def abandon(dead: "JobLock", error: str, writer: Writer) -> None:
    """Record that the holder of a run died, in the transaction that takes its lock away."""
    end_for(dead, {"status": "abandoned", "error": error}, writer)


def end_for(lock: "JobLock", result: Mapping[str, Any], writer: Writer) -> None:
    """Record how the run of this lock ended, in place of its holder. If the history is skipped, the job's gate keeps
    the end."""
    if not lock.job_name:
        return
    if writer.is_off:
        result = {**result, "finished_at": lock.now}
        # If the gate already keeps an end, it is that of an earlier run, and this run has no row.
        gates().filter(name=lock.job_name).keep(_kept(lock.token, result))
        writer.after_commit(partial(_end_late_for, lock, result))
    elif not writer.write(partial(_finish_or_find, lock, result)):
        writer.after_commit(partial(_log_missing, lock, result))


def _finish_or_find(lock: "JobLock", result: Mapping[str, Any]) -> bool:
    """``False`` if the run has no row."""
    return runs().finish(lock.token, result) or runs().key_of(lock.token) is not None


def _end_late_for(lock: "JobLock", result: Mapping[str, Any]) -> None:
    try:
        is_recorded = alone(partial(_finish_or_find, lock, result), lock.lease)
    except HistoryFailed as failed:
        _log("The end of a run of %r is not in the history yet (%s): %s", failed, {**_facts(lock), **result})
        return
    _at_gate(lock.job_name, methodcaller("forget", _kept(lock.token, result)))
    if not is_recorded:
        _log_missing(lock, result)


def _log_missing(lock: "JobLock", result: Mapping[str, Any]) -> None:
    _log("A run of %r is missing from the history (%s): %s", "it has no row", {**_facts(lock), **result})


def _facts(lock: "JobLock") -> dict[str, Any]:
    facts = {"job_name": lock.job_name, "token": lock.token, "slot": lock.slot, "attempt": lock.attempt}
    return {**facts, "hostname": lock.hostname, "pid": lock.pid, "started_at": lock.acquired_at}


def _log(sentence: str, problem: object, facts: Mapping[str, Any], run: int | None = None) -> None:
    known: dict[str, Any] = {"run": run, **{name: facts.get(name) for name in ("fence", "slot", "token")}}
    reason = problem if isinstance(problem, BaseException) else None
    text = json.dumps(facts, cls=DjangoJSONEncoder)
    logger.error(sentence, facts["job_name"], problem, text, extra=about(job=facts["job_name"], reason=reason, **known))


def catch_up(kept: Mapping[str, object]) -> None:
    """Record the ends that gates keep; ``kept`` has them by gate name. Raises ``HistoryFailed``."""
    for name, end in kept.items():
        alone(partial(_record, end))
        # If the gate is busy, the job's next run clears the end.
        _at_gate(name, methodcaller("forget", end))


def _at_gate(name: str, change: "Callable[[JobStatusQuerySet], object]") -> None:
    """Change what a gate keeps, unless another process is using the gate."""
    # What was written by hand may be too deep to be compared.
    with suppress(Error, RecursionError), database.durable(database.alias()):
        if gates().is_at_hand(name):
            change(gates().filter(name=name))


def abandon_orphans(error: str) -> int:
    """Record as abandoned the runs whose locks were deleted by hand. Returns their number. Raises ``HistoryFailed``."""
    return alone(lambda: runs().abandon_orphans(error))


# --- what a gate keeps


def _kept(token: object, result: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps({"token": token, **result}, cls=DjangoJSONEncoder))
    return kept


def _record(kept: object) -> None:
    try:
        token, result = _read(kept)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A row that was edited by hand must not block the history of everything else.
        message = "The end of a run that a gate keeps cannot be read (%r): %s"
        logger.error(message, error, printable(str(kept), 2000), extra=about(reason=error))
        return
    by = this_process()
    remark = (
        f"The history could not be written when the run ended; {by.hostname}, pid {by.pid}, "
        f"recorded this at {instant_in_words(utc_now())}."
    )
    result["error"] = "\n".join(filter(None, [result.get("error"), remark]))
    if runs().finish(token, result):
        logger.info("The end of the run with the token %s is now in the history.", token, extra=about(token=token))


def _read(kept: Any) -> tuple[UUID, dict[str, Any]]:
    """The token and the result. Keys that this release of the code does not know are ignored."""
    token = UUID(kept["token"])
    result = {name: parse(kept[name]) for name, parse in _PARSERS.items() if kept.get(name) is not None}
    return token, {"status": runs().model.Status(kept["status"]), **result}


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "finished_at": parse_datetime,
    "duration": parse_duration,
    "acquire_duration": parse_duration,
    "error": str,
    "traceback": str,
    "origin": str,
}
