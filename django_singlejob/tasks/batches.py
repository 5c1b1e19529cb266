"""One-offs that need no lock of their own: Django's tasks. A worker claims and records them a batch at a time.

The worker holds one lock for all of them, see ``worker.lock``. While it holds the lock, no other process touches their
rows. When it dies, the process that takes over or clears its lock puts the rows back, as it does for any dead holder.
"""

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import Error
from django.db.models import F, Q

from django_singlejob.conf import ZERO
from django_singlejob.database import errors, transactions
from django_singlejob.database.errors import interrupt_behind
from django_singlejob.exceptions import LeaseLost, SkipRun
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.endings import ending, one_off_result, reason_given
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import Reason
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import AGAIN, RELEASED, OneOffJob, OneOffJobQuerySet, line_of, worker_id
from django_singlejob.models.rows import whether
from django_singlejob.process.clock import DBNow, backoff, local_now, since, sleep, utc_now
from django_singlejob.process.escaping import listed
from django_singlejob.process.holder import Holder, this_process
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_ctrl_c, is_second_signal_received, let_in
from django_singlejob.running.enqueue import arguments_of
from django_singlejob.running.outcomes import Outcome, raised, skipped
from django_singlejob.running.values import Unstorable, stored_result
from django_singlejob.tasks import django_tasks
from django_singlejob.tasks.attempt import attempt_at, stopped_by
from django_singlejob.tasks.modules import takes_import
from django_singlejob.tasks.retries import Retries, retries_of

if TYPE_CHECKING:
    from django.tasks import Task

logger = logging.getLogger("django_singlejob")

# How many times to try to record and claim while other processes are in the way.
TRIES = 10
# How many rows are looked at together if some of them do not run here.
_MANY = 200
# Seconds.
_SOON = 0.5
# How long suspects may be passed over by a process that is never free. Seconds.
LONGEST_PASS = 60.0


@dataclass(eq=False)
class Claimed:
    """A task that this worker has claimed: call it once, in any thread.

    ``result``: what to record; ``None`` until it has run. ``duration``: how long it ran. ``is_begun``: whether a thread
    has called it. ``retry_in``: how long after this attempt it is retried; ``None`` if it is not.
    """

    row: OneOffJob
    lease: Lease
    result: dict[str, Any] | None = None
    duration: timedelta = ZERO
    is_begun: bool = False
    retry_in: timedelta | None = None
    # ``None`` until its function is called: what goes wrong before is not retried.
    _retries: Retries | None = None

    @property
    def name(self) -> str:
        return self.row.name

    def about(self, reason: BaseException | None = None) -> dict[str, Any]:
        """The ``extra`` of a log record."""
        return self.lease.grant.facts(job=self.name, reason=reason)

    def __call__(self) -> Outcome:
        self.is_begun = True
        if self.lease.lost:
            self.result = dict(RELEASED)
            return self.failed(LeaseLost(self.lease.why_lost()))
        started_at, skip = local_now(), None
        try:
            value = self._perform()
        except SkipRun as error:
            value, skip = None, error  # no longer being handled at the end: a receiver would log it
        except BaseException as error:
            failure = interrupt_behind(error) or error
            self.end(since(started_at), failure=failure, is_ctrl_c=is_ctrl_c(failure))
            return self.failed(failure)
        self.end(since(started_at), value, skip)
        facts: dict[str, Any] = {"name": self.name, "duration": self.duration, "is_task": True}
        if skip:
            return skipped(Reason.ITSELF, reason_given(skip), **facts)
        return Outcome(status="successful", value=value, **facts)

    def failed(self, error: BaseException) -> Outcome:
        """The outcome of a task that raised the error, or was not run because of it."""
        is_logged = self.result is not None and self.result["status"] == "failed"
        facts: dict[str, Any] = {"is_task": True, "is_logged": is_logged, "retry_in": self.retry_in}
        return raised(self.name, error, lease=self.lease, **facts)

    def end(
        self,
        duration: timedelta,
        value: object = None,
        failure: BaseException | None = None,
        *,
        is_ctrl_c: bool = False,
    ) -> None:
        """Keep what to record: that the task returned the value, or raised ``failure``."""
        self.duration = duration
        if self.lease.is_inherited:
            return  # this is a forked child that returned from the task as well
        row, package = self.row, self.row.task_path.partition(".")[0]
        terms: dict[str, Any] = {"duration": duration, "acquire_duration": ZERO, "is_ctrl_c": is_ctrl_c}
        end = ending(failure, package=package, **terms)
        self.result = one_off_result(end._replace(value=value), is_last=row.attempt >= row.max_attempts)
        if failure and self.result["status"] == "failed":
            self.retry_in = self._delay_after(failure)
        self.result |= self.put_off()
        if self.result["status"] in ("done", "failed"):
            _send_finished_before_recording(self, self.result)

    def _delay_after(self, failure: BaseException) -> timedelta | None:
        delay = self._retries.delay_after(failure, self.row.attempt) if self._retries else None
        return None if delay is None or stopped_by(self.row) else delay

    def put_off(self) -> dict[str, Any]:
        """What to record beside the error: that it waits for its retry, unless a user has stopped it by then. Empty if
        it is not retried."""
        return {} if self.retry_in is None else {**AGAIN, "run_after": DBNow() + self.retry_in}

    def _perform(self) -> object:
        row, task = self.row, django_tasks.find(self.row)
        assert task is not None  # noqa: S101  (a task that is not known here is not claimed)
        args, kwargs = arguments_of(row)
        call = partial(task.func, *django_tasks.begin(row, task), *args, **kwargs)
        self._retries = retries = retries_of(task.func)
        with attempt_at(row):
            value = let_in(call)
        try:
            return stored_result(value)
        except Unstorable as error:
            self._retries = retries if retries and TypeError in retries.on else None
            raise TypeError(f"The task has run, but {error}.") from None


def _send_finished_before_recording(performed: Claimed, result: Mapping[str, Any]) -> None:
    # Receivers see the row as it will be recorded. By the database's clock it has not finished yet.
    row = performed.row
    for name in ("status", "result", "error", "error_class", "traceback", "origin"):
        setattr(row, name, result[name])
    row.errors += line_of(result)
    row.finished_at = utc_now()
    try:
        if task := django_tasks.find(row):
            django_tasks.end(row, task)
    except BaseException as error:  # whatever a receiver does, the task has finished
        message = "The signal that %s has finished could not be sent."
        logger.error(message, row, exc_info=error, extra=performed.about(error))


class Batches:
    """The tasks that one worker has claimed under its lease from these queues (if none is named, from all).

    Only a ``Claimed`` task may be called in another thread. If the lease is lost, ``LeaseLost`` is raised: others retry
    what was not recorded by then.
    """

    def __init__(self, lease: Lease, queues: Sequence[str] = ()) -> None:
        self._lease = lease
        self._queues = queues
        #: The tasks that were claimed and have not been recorded.
        self.claimed: list[Claimed] = []
        #: The claimed tasks that were handed in, in that order. A dict is an ordered set.
        self._performed: dict[Claimed, None] = {}
        self._unknown: set[str] = set()
        # The paths that were looked up, and a row for each whose look-up comes next, because it imports a module.
        self._seen: set[str] = set()
        self._unseen: dict[str, OneOffJob] = {}
        # Whether one of our COMMITs may have been carried out although its answer was lost.
        self._is_uncertain = False
        #: Whether the last claim left due tasks alone: they would have waited for a thread on their last attempt, or
        #: one of them is a suspect. And whether it passed over suspects, because something ran.
        self.has_spared = self.passes_suspects = False
        # Whether a suspect was passed over for ``LONGEST_PASS``, and nothing else begins before it.
        self._holds_back = False
        self._looks_at = local_now() + LONGEST_PASS

    @property
    def has_news(self) -> bool:
        """Whether there is a result to record."""
        return bool(self._performed)

    @property
    def is_free(self) -> bool:
        """Whether none of the tasks still runs."""
        return len(self._performed) == len(self.claimed)

    @property
    def runs_suspect(self) -> bool:
        """Whether a suspect is claimed, beside which nothing may run: if its process crashes, that was its doing."""
        return bool(self.claimed) and self.claimed[0].row.suspect

    def waiting(self) -> "TaskQuerySet":
        """The waiting tasks that this release of the code can run."""
        # Without a backend, somebody wrote it by hand, and it says nothing about others with its path.
        rows = task_rows().parallel().in_queues(self._queues).exclude(backend="")
        return rows.exclude(task_path__in=self._unknown)

    def record_and_claim(self, most: int, until: datetime | None = None, ahead: int = 0) -> list[Claimed]:
        """Record what was handed in, and claim at most ``most`` other tasks that are due now, or were due at ``until``.
        The caller calls each of them and hands in the outcome that it returns.

        ``ahead``: how many of them would have to wait for a thread. None that is on its last attempt has to: if this
        process is killed, it fails, even if it has not begun.
        """
        self.has_spared = False
        if most:
            self._look_for_suspects(until)
            most = 0 if self._holds_back else most
        claimed = self._try_to_record_and_claim(most, until, ahead)
        while self._unseen:
            self._look_up()
            claimed = self._try_to_record_and_claim(most, until, ahead)
        return claimed

    def _look_for_suspects(self, until: datetime | None) -> None:
        now = local_now()
        self.passes_suspects = not self.is_free
        if self.is_free:
            self._looks_at, self._holds_back = now + LONGEST_PASS, False
        elif now >= self._looks_at:
            self._looks_at = now + LONGEST_PASS
            self._holds_back = self.waiting().filter(suspect=True).due(until).exists()

    def _try_to_record_and_claim(self, most: int, until: datetime | None, ahead: int) -> list[Claimed]:
        for pause in islice(backoff(), TRIES):
            sleep(pause)
            was_uncertain = self._is_uncertain
            try:
                claimed = self._record_and_claim(most, until, ahead)
            except LeaseLost:
                self._log_losses()
                raise
            except Error as error:
                self._raise_unless_retryable(error, was_uncertain=was_uncertain)
                continue
            if claimed is not None:
                return claimed
        return []

    def _look_up(self) -> None:
        # Not in our transaction: a module may do anything to the connection when it is imported.
        for path, row in self._unseen.items():
            django_tasks.find(row)
            self._seen.add(path)
        self._unseen.clear()

    def hand_in(self, task: Claimed, outcome: Outcome) -> None:
        """Have the next ``record_and_claim`` record the task."""
        if task.result is None:
            task.end(ZERO, failure=outcome.error)
        self._performed[task] = None

    def release(self, claimed: Iterable[Claimed]) -> None:
        """Have the next ``record_and_claim`` put back these tasks, which were not begun."""
        for task in claimed:
            task.result = dict(RELEASED)
            self._performed[task] = None

    def record_all(self) -> bool:
        """Record what was handed in. This is retried while the lease lasts; after a second signal it is tried once.
        Returns whether all is recorded."""
        while not self._lease.lost and (self._performed or self._is_uncertain):
            try:
                self.record_and_claim(0)
            except Error as error:
                if not (errors.is_connection_lost(error) or errors.is_transient(error)):
                    raise
                message = "The results of one-offs could not be recorded and will be retried: %s"
                logger.warning(message, errors.words_of(error), extra=self._lease.grant.facts(reason=error))
                transactions.drop(transactions.alias())
                if is_second_signal_received():
                    break
                sleep(_SOON)
        return not (self._performed or self._is_uncertain)

    def _log_losses(self) -> None:
        for task in self._performed:
            message = "%s has finished after its lease was lost, so it is not recorded: others retry it."
            logger.error(message, task.row, extra=task.about())

    # --- record and claim

    def _record_and_claim(self, most: int, until: datetime | None, ahead: int) -> list[Claimed] | None:
        """``None`` means that another worker has claimed one of the tasks and nothing was written: look again."""
        lease = self._lease
        performed, is_uncertain = list(self._performed), self._is_uncertain
        self._is_uncertain = True
        alias = transactions.alias()
        with transactions.durable(alias):
            if not gates().hold(lease.name, lease.token):
                lease.distrust()
                raise LeaseLost(lease.why_lost())
            if is_uncertain:
                task_rows().exclude(pk__in=[task.row.pk for task in self.claimed]).release(lease.token)
            _record(performed, lease, is_uncertain=is_uncertain)
            locked = self._without_spared(self._lock_due(most, until), most - ahead)
            is_claimed = not locked or task_rows().claim_locked(locked, lease.token, this_process())
            if not is_claimed:
                transactions.roll_back(alias)
        self._is_uncertain = False
        if not is_claimed:
            return None
        self._forget(performed)
        claimed = [Claimed(row, lease) for row in locked]
        self.claimed += claimed
        return claimed

    def _forget(self, recorded: Iterable[Claimed]) -> None:
        for task in recorded:
            del self._performed[task]
        done = set(recorded)
        self.claimed = [task for task in self.claimed if task not in done]

    def _raise_unless_retryable(self, error: Error, *, was_uncertain: bool) -> None:
        """Return if a retry may succeed; raise the error otherwise."""
        is_transient = errors.is_transient(error)
        if errors.is_connection_lost(error) or not (is_transient or self._performed):
            raise error
        if errors.is_undone(error) or not is_transient:
            self._is_uncertain = was_uncertain
        if not is_transient:
            self._record_one_by_one()

    def _record_one_by_one(self) -> None:
        """If the database refuses one task's result, record the others all the same."""
        for task in list(self._performed):
            try:
                self._record_alone(task)
            except Error as error:
                if errors.is_connection_lost(error) or errors.is_transient(error):
                    self._is_uncertain = True
                    raise
                message = "The result of %s cannot be recorded as it is: recorded as failed."
                logger.error(message, task.row, exc_info=error, extra=task.about(error))
                end = ending(error, duration=ZERO, acquire_duration=ZERO)
                task.result = one_off_result(end, is_last=True) | task.put_off()
                self._record_alone(task)

    def _record_alone(self, task: Claimed) -> None:
        lease = self._lease
        with transactions.durable(transactions.alias()):
            if not gates().hold(lease.name, lease.token):
                return  # the next `record_and_claim` finds out
            _record([task], lease, is_uncertain=self._is_uncertain)
        self._forget([task])

    def _lock_due(self, most: int, until: datetime | None) -> list[OneOffJob]:
        looked_at = most
        while most:
            waiting = self.waiting().filter(suspect=False) if self.passes_suspects else self.waiting()
            locked = waiting.lock_due(looked_at, until)
            self._unseen = {row.task_path: row for row in locked if self._takes_import(row.task_path)}
            if self._unseen:
                return []
            found = {row.task_path: django_tasks.find(row) for row in locked}
            if not self._leaves(found):
                return locked[:most]
            looked_at = max(most, _MANY)  # there may be more of them in the way
        return []

    def _without_spared(self, locked: list[OneOffJob], free: int) -> list[OneOffJob]:
        """Those for ``free`` threads, and those behind them that may wait for one; or a suspect alone."""
        some = [*locked[:free], *takewhile(lambda row: row.attempt + 1 < row.max_attempts, locked[free:])]
        some = list(takewhile(lambda row: not row.suspect, some)) or some[:1]
        self.has_spared = len(some) < len(locked)
        return some

    def _takes_import(self, path: str) -> bool:
        return path not in self._seen and takes_import(path)

    def _leaves(self, found: "Mapping[str, Task[..., Any] | None]") -> bool:
        """Whether some of these tasks do not run here: this worker cannot find them, or they have become jobs, which
        run under their own locks."""
        unknown = {name for name, task in found.items() if task is None}
        if unknown:
            self._unknown |= unknown
            for name in sorted(unknown):
                logger.warning("%s: its one-offs wait.", django_tasks.why_unknown(name), extra=about(job=name))
        jobs = {name: job for name, task in found.items() if task and (job := django_tasks.job_of(task))}
        for name, job in jobs.items():
            task_rows().parallel().filter(task_path=name).make_exclusive(job)
        return bool(unknown or jobs)


def _record(performed: Iterable[Claimed], lease: Lease, *, is_uncertain: bool) -> None:
    for result, rows in _alike(performed):
        if task_rows().finish_all(rows, lease.token, result) != len(rows) and not is_uncertain:
            names = listed(sorted({row.name for row in rows}))
            message = "A result of %s was not recorded: the row was changed by hand while it ran."
            logger.warning(message, names, extra=lease.grant.facts())


def _alike(performed: Iterable[Claimed]) -> list[tuple[dict[str, Any], list[OneOffJob]]]:
    """The rows grouped by what to record: many tasks return nothing, so one statement records them all."""
    groups: dict[Hashable, tuple[dict[str, Any], list[OneOffJob]]] = {}
    for task in performed:
        result = task.result or {}
        # A result cannot be a key: 1 and True are equal, and a list has no hash.
        key: Hashable = task if result.get("result") is not None else (task.row.version, *result.items())
        groups.setdefault(key, (result, []))[1].append(task.row)
    return list(groups.values())


# --- the rows


def task_rows() -> "TaskQuerySet":
    """The one-offs, on the database that decides, as tasks need them."""
    return TaskQuerySet(OneOffJob, using=transactions.alias())


class TaskQuerySet(OneOffJobQuerySet):
    """One-offs that are claimed under the token of their worker's lock, and recorded and put back with others."""

    def lock_due(self, most: int, until: datetime | None = None) -> list[OneOffJob]:
        """The next ``most`` to run, with ``now``. No other worker can claim them until this transaction ends. On SQLite
        the transaction must have written already: then no other process can write at all."""
        return self._first_due(most, until, in_turn=True)

    def claim_locked(self, locked: Sequence[OneOffJob], token: UUID, holder: Holder) -> bool:
        """Claim them, to run them. Returns ``False`` if another process has claimed one of them: then roll back this
        transaction. Updates the instances as well, as far as a run needs it."""
        rows = self.filter(pk__in=[row.pk for row in locked]).still_waiting()
        if rows.update(**self._claimed(token, holder)) != len(locked):
            return False
        for row in locked:
            row.status, row.version, row.attempt = "in_progress", row.version + 1, row.attempt + 1
            row.token, row.started_at = token, row.now
            row.worker_ids += worker_id(holder)
        return True

    def finish_all(self, claimed: Sequence[OneOffJob], token: UUID, result: Mapping[str, Any]) -> int:
        """Record how these ended, which were claimed under that token and are all of one version. Returns the number
        of rows changed."""
        rows = self.in_progress().filter(pk__in=[row.pk for row in claimed], token=token, version=claimed[0].version)
        return rows.update(**self._finished(result))

    def suspect(self, error: str) -> int:
        """Put those in progress back to waiting, as if they had never begun: they ran beside each other in a process
        that has crashed, and each runs alone next. Returns the number of rows changed."""
        changes = {"suspect": whether(Q(stopped_by="")), "error": error, **RELEASED}
        return self.in_progress().update(version=F("version") + 1, **changes)

    def make_exclusive(self, job: Job) -> int:
        """Make waiting ones run under the lock of the job that their function has become. Returns the number of rows
        changed."""
        changes = {"job_name": job.name, "task_path": "", "max_attempts": job.most_attempts}
        return self.waiting().update(version=F("version") + 1, **changes)
