"""How a lease ends: one transaction updates the gate, deletes the lock's row and records the run's end."""

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from django.db import Error, connections

from django_singlejob.conf import options
from django_singlejob.database import errors, transactions
from django_singlejob.database.unusable import is_temporary, refusal
from django_singlejob.exceptions import LeaseLost
from django_singlejob.locking.at_exit import forget
from django_singlejob.locking.endings import Ending, summary, without_values
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.recording import Writer, with_history
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process import rooms
from django_singlejob.process.clock import backoff, local_now
from django_singlejob.process.received_signals import is_second_signal_received

logger = logging.getLogger("django_singlejob")

# How long a release is retried, in seconds, if the lease is over, or (at least once) after a second signal.
LEAST_PATIENCE = 2.0


#: Returns what releases a lock, and records its run's end, with one statement; ``None`` if the case is out of the
#: ordinary. That returns whether the lock was ours; ``None``: nothing was decided or changed.
PlanAtOnce: TypeAlias = Callable[[Grant, Ending | None, Writer], Callable[[], bool | None] | None]


class WriteRefused(Exception):
    """The database refused what is written of a one-off, so the transaction must be rolled back and tried again."""


class Release:
    """The release of one lease, which is retried until the database answers.

    If the answer to a COMMIT is lost, the COMMIT may have been carried out all the same. From then on the release is in
    doubt, and a later try that finds the lock gone checks whether an earlier try released it.

    ``deadline``: when the holder stops trusting itself, as ``local_now()``; in the past if it knows that it lost the
    lock.

    Attributes:
        is_in_doubt: whether this release, or one that gave up, sent a COMMIT whose answer never came.
        is_recorded: whether it has recorded the run's end in the history.
    """

    def __init__(self, grant: Grant, ending: Ending | None, deadline: float, *, is_in_doubt: bool) -> None:
        self.is_in_doubt, self.is_recorded = is_in_doubt, False
        self._grant, self._ending, self._deadline = grant, ending, deadline
        self._name, self._token = grant.request.name, grant.token
        # Each is tried if the database refuses the one before: the run has ended even if it refuses them all.
        self._writes_more, self._is_second_try = list(self._of_one_off(ending)) if ending else [], False
        if grant.entry:  # for a row that the grant has skipped
            grant.entry.facts.setdefault("started_at", grant.acquired_at)

    def carry_out(self, pause: Callable[[float], object], *, is_private: bool) -> bool:
        """Release the lock and record the run's end. Returns ``False`` if the lock was no longer ours.

        ``pause`` is called with the seconds to wait before another try. If it returns ``False``, there is none.
        ``is_private``: no other process can see the lock, so there is none either.

        Raises ``LeaseLost`` if the database could not be reached while the lease lasted.
        """
        alias, begun_at, patience = transactions.alias(), local_now(), self._left().total_seconds()
        for seconds in backoff():
            was_in_doubt = self.is_in_doubt
            try:
                transactions.leave_no_transaction(alias)
                # Django does not wrap all errors of a driver.
                with connections[alias].wrap_database_errors:
                    return self._carry_out_once(is_first=seconds == 0)
            except WriteRefused:
                pass  # the next try does without
            except Error as error:
                if errors.is_undone(error):
                    self.is_in_doubt = was_in_doubt
                if seconds and is_second_signal_received():
                    patience = LEAST_PATIENCE
                is_over = is_private or local_now() + seconds > begun_at + max(patience, LEAST_PATIENCE)
                if is_over or not _wait(pause, seconds, error):
                    raise self._left_to_expire(error) from error
                message = "Releasing the lock %r failed and will be retried: %s"
                logger.info(message, self._name, errors.words_of(error), extra=self._grant.facts(reason=error))
        raise AssertionError("backoff() never ends")

    def _left(self) -> timedelta:
        """How long the lease still lasts without another heartbeat."""
        lease = self._grant.request.lease.total_seconds()
        return timedelta(seconds=max(0.0, min(self._deadline - local_now(), lease)))

    def _carry_out_once(self, *, is_first: bool) -> bool:
        is_smooth = is_first and not self.is_in_doubt
        plan: PlanAtOnce | None = rooms.find("release_at_once") if is_smooth and options().single_statement else None
        is_released = with_history(partial(self._try, plan), self._left())
        return is_released or (self.is_in_doubt and self._was_released())

    def _try(self, plan: PlanAtOnce | None, history: Writer) -> bool:
        """Release with one statement, if there is a plan for it. If the case is out of the ordinary, nothing is changed
        by that, and a transaction decides."""
        if release := plan and plan(self._grant, self._ending, history):
            self.is_in_doubt = True
            answer = release()
            self.is_in_doubt = self.is_recorded = bool(answer)
            if answer is not None:
                return answer
        alias = transactions.alias()
        with transactions.durable(alias, statement_timeout=history.patience):
            is_released = self._update_gates() and locks().release(self._name, self._token)
            if not is_released:
                transactions.roll_back(alias)
            is_recorded = is_released and self._record(history)
            self.is_in_doubt = self.is_in_doubt or is_released
        self.is_recorded = is_recorded
        return is_released

    def _update_gates(self) -> bool:
        if self._ending is None:
            return gates().hold(self._name, self._token)
        end, own_name = self._ending, self._grant.request.own_name
        if not end.was_begun:
            is_ours = gates().hold(self._name, self._token)
            at = self._grant.slot, self._grant.attempt
            return is_ours and gates().undo_start(own_name, *at, self._grant.before)
        how = end.status, end.duration
        if not gates().finish(self._name, self._token, *how, failures=end.failures, own_name=own_name):
            return False
        # A user may have stopped it without a heartbeat in between.
        if end.is_cut_off and (slot := self._grant.slot) and not locks().stopped_by(self._name, self._token):
            gates().put_back(own_name, slot, self._grant.attempt)
        return True

    def _record(self, history: Writer) -> bool:
        """Write what only reports. Returns whether the history has the run's end."""
        if self._ending is None:
            return False
        entry = self._grant.entry
        if not self._ending.was_begun:
            one_offs().release(self._token)
            history.write(partial(runs().forget, self._token))
            return True
        is_recorded = entry is not None and entry.end(history, self._ending.result)
        has_time = self._left() > self._grant.request.lease / 2
        try:
            for write in self._writes_more[:1]:
                write()
        except Exception as error:
            # Others may hold its row for longer than the lease lasts.
            if errors.is_transient(error) and has_time:
                raise
            self._leave_out(error)
            raise WriteRefused from error
        return is_recorded

    def write_more(self) -> None:
        """Write what becomes of the one-off, although the lock was released before."""
        while self._writes_more:
            try:
                with transactions.durable(transactions.alias()):
                    self._writes_more[0]()
            except Exception as error:
                self._leave_out(error)
            else:
                return

    def _leave_out(self, error: Exception) -> None:
        # A connection may be lost by chance. A server that ends it for a statement that is too long does so each time.
        self._is_second_try = errors.is_connection_lost(error) and not self._is_second_try
        if not self._is_second_try:
            del self._writes_more[0]
            what = "The result of a one-off of" if self._grant.request.one_off else "The one-off that retries"
            extra = self._grant.facts(reason=error)
            logger.error("%s %r was refused: %s", what, self._grant.request.own_name, summary(error), extra=extra)

    def _of_one_off(self, ending: Ending) -> Iterator[Callable[[], object]]:
        if ending.retry is not None:
            yield partial(one_offs().bulk_create, [one_offs().model(**ending.retry)])
        if ending.one_off is not None:
            yield partial(self._end_one_off, ending.one_off)
            yield partial(self._end_one_off, without_values(ending.one_off))

    def _end_one_off(self, result: Mapping[str, Any]) -> None:
        if not one_offs().finish(self._token, result):
            message = "A one-off of %r was changed by hand while it ran: only the history has its result."
            logger.warning(message, self._grant.request.own_name, extra=self._grant.facts())

    def _was_released(self) -> bool:
        """Whether a COMMIT whose answer was lost was carried out.

        While the lease lasts, no other process takes the lock. If it is gone, we released it, unless it was cleared
        by force. In that case the gate has no token until another caller passes it; after that, the job's gate or the
        history shows what happened.
        """
        token = gates().filter(name=self._name).values_list("token", flat=True).first()
        if token == self._token:
            return True
        status = self._grant.entry.status() if self._grant.entry else None
        if self._ending and status == self._ending.status:
            return True
        return token is not None and local_now() < self._deadline and status != "abandoned"

    def _left_to_expire(self, error: Error) -> LeaseLost:
        unusable = refusal(error)
        if unusable or is_temporary(error):
            forget(self._token)  # otherwise the process would wait for it, or fail, again when it exits
        what = f"The lock {self._name!r} could not be released, and"
        if self.is_in_doubt:
            what = f"It is not known whether the lock {self._name!r} was released. If it was not, it"
        return LeaseLost(f"{what} is left to expire" + (f". {unusable}" if unusable else f": {errors.words_of(error)}"))


def _wait(pause: Callable[[float], object], seconds: float, error: Error) -> bool:
    """Wait before another try. Returns ``False`` if there is to be none."""
    transactions.drop(transactions.alias())
    if seconds == 0 or errors.is_transient(error):  # one try on a new connection is always made
        pause(seconds)
        return True
    return errors.is_connection_lost(error) and pause(seconds) is not False
