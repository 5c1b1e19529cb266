"""How a lease ends: one transaction updates the gate, deletes the lock's row and records the run's end."""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import Error, connections
from django.db.models import F

from django_singlejob.conf import ZERO
from django_singlejob.database import errors, transactions
from django_singlejob.database.errors import words_of
from django_singlejob.database.unusable import refusal
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking import single_statement
from django_singlejob.locking.at_exit import forget, release_granted
from django_singlejob.locking.endings import Ending, summary
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.recording import HistoryFailed, Writer, alone, writers
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import backoff, local_now
from django_singlejob.process.received_signals import is_second_signal_received

logger = logging.getLogger("django_singlejob")


class Release:
    """The release of one lease, which is retried until the database answers.

    If the answer to a COMMIT is lost, the COMMIT may have been carried out all the same. From then on the release is in
    doubt, and a later try that finds the lock gone checks whether an earlier try released it.

    Attributes:
        deadline: when the holder stops trusting itself, as ``local_now()``.
        is_lost: whether the lease is known to be lost.
        is_private: whether no other process can see the lock.
        is_in_doubt: whether this release, or one that gave up, sent a COMMIT whose answer never came.
        pause: is called with the seconds to wait before another try. If it returns ``False``, there is none.
    """

    def __init__(
        self,
        grant: Grant,
        ending: Ending | None,
        *,
        deadline: float,
        is_lost: bool,
        is_private: bool,
        is_in_doubt: bool,
        pause: Callable[[float], object],
    ) -> None:
        self.is_in_doubt = is_in_doubt
        self._pause = pause
        self._name, self._token, self._own_name = grant.request.name, grant.token, grant.request.own_name
        self._grant = grant
        self._ending = ending
        self._deadline = deadline
        self._is_lost = is_lost
        self._is_private = is_private
        self._is_recorded = False
        if grant.entry:  # for a row that the grant has skipped
            grant.entry.facts.setdefault("started_at", grant.acquired_at)
        self._also = ending.also_write if ending else None
        #: Which of its writes is next, and how often it has lost the connection.
        self._next_also = self._also_failures = 0
        #: Whether one statement may be tried: not after an error in one.
        self._is_single = single_statement.is_chosen()
        self._is_history_slow = False

    def carry_out(self) -> bool:
        """Release the lock and record the run's end. Returns ``False`` if the lock was no longer ours.

        Raises ``LeaseLost`` if the database could not be reached while the lease lasted.
        """
        try:
            return self._while_the_lease_lasts()
        except LeaseLost:
            raise
        except BaseException:
            # Signals wait for this, except one that comes again and again. If it cuts this off, try once more.
            release_granted(self._token)
            raise

    def _while_the_lease_lasts(self) -> bool:
        alias = transactions.alias()
        give_up_at = local_now() + max(self._left().total_seconds(), 2)
        for pause in backoff():
            try:
                transactions.leave_no_transaction(alias)
                return self._carry_out_once()
            except Error as error:
                is_too_late = local_now() + pause > give_up_at or _is_pointless(pause, error)
                if is_too_late or (pause > 0 and errors.lack(error)):
                    forget(self._token)  # otherwise the process would wait for it, or fail, again when it exits
                if is_too_late or self._is_private or _is_hopeless(pause, error):
                    raise LeaseLost(self._left_to_expire(error)) from error
                message = "Releasing the lock %r failed and will be retried: %s"
                logger.info(message, self._name, words_of(error), extra=self._grant.facts(reason=error))
                transactions.drop(alias)
                # One try on a new connection is still made.
                if self._pause(pause) is False and pause > 0 and not errors.is_transient(error):
                    forget(self._token)
                    raise LeaseLost(self._left_to_expire(error)) from error
        raise AssertionError("backoff() never ends")

    def _left(self) -> timedelta:
        """How long the lease still lasts without another heartbeat."""
        seconds = self._deadline - local_now()
        return min(self._grant.request.lease, timedelta(seconds=max(0.0, min(seconds, 1e9))))

    def _carry_out_once(self) -> bool:
        was_in_doubt, is_released = self.is_in_doubt, False
        try:
            # Django does not wrap all errors of a driver.
            with connections[transactions.alias()].wrap_database_errors:
                is_decided, is_released = self._at_once()
                for history in () if is_decided else writers(ZERO if self._is_history_slow else self._left()):
                    with history:
                        is_released = self._transaction(history)
        except _Refused as refused:
            self._try_another(refused.__cause__)
            return self._carry_out_once()
        except Error as error:
            if errors.is_undone(error):
                self.is_in_doubt = was_in_doubt
            raise
        return is_released or (self.is_in_doubt and self._was_released())

    def _at_once(self) -> tuple[bool, bool]:
        """Release with one statement, if the case is ordinary. Returns whether that decided, and whether it released
        the lock. If not, the portable path decides."""
        if self.is_in_doubt or not self._is_single:
            return False, False
        history, began_at = next(writers(self._left())), local_now()
        if not single_statement.is_ordinary_release(self._grant, self._ending, history):
            return False, False
        self.is_in_doubt, self._is_single = True, False
        try:
            is_released = single_statement.release(self._grant, self._ending, history)
        except Error as error:
            self._is_history_slow = single_statement.took_long(began_at, history)
            self.is_in_doubt = not single_statement.was_undone(error)
            if self.is_in_doubt:
                raise
            return False, False
        self.is_in_doubt, self._is_recorded = is_released, is_released and self._ending is not None
        return True, is_released

    def _left_to_expire(self, error: Error) -> str:
        unusable = refusal(error)
        why = f". {unusable}" if unusable else f": {words_of(error)}"
        if self.is_in_doubt:
            return f"{self.not_known}. If it was not, it is left to expire{why}"
        return f"The lock {self._name!r} could not be released, and is left to expire{why}"

    @property
    def not_known(self) -> str:
        """The beginning of a message about a release without an answer."""
        return f"It is not known whether the lock {self._name!r} was released"

    def _transaction(self, history: Writer) -> bool:
        alias = transactions.alias()
        with transactions.durable(alias, statement_timeout=history.patience):
            is_released = self._update_gates() and locks().release(self._name, self._token)
            if not is_released:
                transactions.roll_back(alias)
            is_recorded = is_released and self._record(history)
            self.is_in_doubt = self.is_in_doubt or is_released
        self._is_recorded = is_recorded
        return is_released

    def _update_gates(self) -> bool:
        if self._ending is None:
            return gates().hold(self._name, self._token)
        result = _status_result(self._ending)
        duration = self._ending.duration if self._ending.status == "successful" else None
        if self._own_name == self._name:
            return gates().finish(self._name, self._token, result, duration)
        # The job's own gate may be another lock's, so its token is not ours: hold the lock's gate meanwhile.
        return gates().hold(self._name, self._token) and gates().finish_own(self._own_name, result, duration)

    def _record(self, history: Writer) -> bool:
        """Record the end. Returns whether the history has it now."""
        if self._ending is None:
            return False
        is_recorded = self._grant.entry is not None and self._grant.entry.end(history, _run_result(self._ending))
        self._write_also()
        return is_recorded

    def _write_also(self) -> None:
        if self._also is None or self._next_also == len(self._also.writes):
            return
        try:
            self._also.writes[self._next_also]()
        except Exception as error:
            if self._may_get_through(error):
                raise
            raise _Refused from error

    def _may_get_through(self, error: Exception) -> bool:
        """Whether the same write may succeed if it is tried again. A server may end the connection of a statement that
        is too long, each time; and others may hold the row for longer than the lease lasts."""
        if errors.is_transient(error):
            return self._left() > self._grant.request.lease / 2
        return self._may_reconnect(error)

    def _may_reconnect(self, error: Exception) -> bool:
        """Whether this is the first connection that the write has lost."""
        if not errors.is_connection_lost(error):
            return False
        self._also_failures += 1
        return self._also_failures == 1

    def write_also_alone(self) -> None:
        """Write what belongs to the end of the run although its lock was released before."""
        while self._also and self._next_also < len(self._also.writes):
            try:
                with transactions.durable(transactions.alias()):
                    self._also.writes[self._next_also]()
            except Exception as error:
                if self._may_reconnect(error):
                    transactions.drop(transactions.alias())
                else:
                    self._try_another(error)
            else:
                return

    def _try_another(self, error: BaseException | None) -> None:
        assert self._also is not None and error is not None  # noqa: PT018, S101
        self._next_also, self._also_failures = self._next_also + 1, 0
        logger.error("%s: %s", self._also.sentence, summary(error), extra=self._grant.facts(reason=error))
        if errors.is_connection_lost(error):
            transactions.drop(transactions.alias())

    def _was_released(self) -> bool:
        """Whether a COMMIT whose answer was lost was carried out.

        While the lease lasts, no other process takes the lock. If it is gone, we released it, unless it was cleared
        by force. In that case the gate has no token until another caller passes it; after that, the job's gate or the
        history shows what happened.
        """
        token = gates().filter(name=self._name).values_list("token", flat=True).first()
        if token == self._token:
            return True
        status = self._recorded_status()
        if self._ending and status == self._ending.status:
            return True
        is_trusted = not self._is_lost and local_now() < self._deadline
        return token is not None and is_trusted and status != "abandoned"

    def _recorded_status(self) -> str | None:
        if self._grant.entry is None:
            return None
        try:
            return alone(lambda: runs().filter(token=self._token).values_list("status", flat=True).first())
        except HistoryFailed:
            return None

    def record_late(self, loss: str) -> None:
        """Record the end if the release did not. Without the lock, we may write only our own run's row.

        ``loss`` says how the lock was lost; it is empty if the lock was not lost.
        """
        if self._ending is None or self._grant.entry is None or self._is_recorded:
            return
        result = _run_result(self._ending)
        if self._ending.status == "successful" and loss:
            result |= {"status": "failed", "error": f"LeaseLost: {loss}"}
        self._grant.entry.end_late(result)


class _Refused(Exception):
    """The database refused what only reports. Its cause is the error."""


def _is_hopeless(pause: float, error: Error) -> bool:
    """Whether not even a new connection helps."""
    return pause > 0 and not (errors.is_transient(error) or errors.is_connection_lost(error))


def _is_pointless(pause: float, error: Error) -> bool:
    """Whether a second signal rules out another try, after this pause. One on a new connection is still made."""
    return is_second_signal_received() and pause > 0 and not errors.is_transient(error)


def _status_result(ending: Ending) -> dict[str, Any]:
    result: dict[str, Any] = {"last_status": ending.status}
    if ending.status == "successful":
        result |= {"consecutive_failures": 0}
    elif ending.is_failure:
        result |= {"consecutive_failures": F("consecutive_failures") + 1}
    return result


def _run_result(ending: Ending) -> dict[str, Any]:
    names = ("status", "duration", "acquire_duration", "error", "traceback", "origin")
    return {name: getattr(ending, name) for name in names}
