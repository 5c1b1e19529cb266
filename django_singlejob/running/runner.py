"""Run a job under its lock. ``run`` is the story of the package."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from asgiref.sync import async_to_sync
from django.db import Error

from django_singlejob.conf import ZERO
from django_singlejob.database.errors import interrupt_behind
from django_singlejob.exceptions import JobStopped, LeaseLost, LockHeld, SingleJobError
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.acquire import Acquisition, acquire
from django_singlejob.locking.endings import NOT_BEGUN, AlsoWrite, Ending, ending
from django_singlejob.locking.keeper import kept_alive
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.holder import this_process
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now, since, sleep
from django_singlejob.process.logs import about, in_english
from django_singlejob.process.received_signals import ReceivedSignals, is_ctrl_c, let_in, of_this_thread
from django_singlejob.running.command import ShellCommand, supervise_command
from django_singlejob.running.current_run import CURRENT, CurrentRun, row_of
from django_singlejob.running.enqueue import result_of_job, retry_of, value_kept, without_values
from django_singlejob.running.executor import NotBegun
from django_singlejob.running.in_child import BodyEnd
from django_singlejob.running.in_loop import acquire_in_loop, finished
from django_singlejob.running.order import Order, Work
from django_singlejob.running.output import Output
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor, order_steps
from django_singlejob.signals import job_finished, job_skipped, job_started

if TYPE_CHECKING:
    from django_singlejob.models import JobRun, OneOffJob

logger = logging.getLogger("django_singlejob")


#: The kind of orders to run a registered job.
OF_JOB = "django_singlejob.running.reports.work_of_job"


class Skipped(StrEnum):
    """The type of ``SKIPPED``. It is text, so that what takes a job's value can store it as JSON."""

    SKIPPED = "skipped"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "SKIPPED"

    __str__ = __repr__


#: The value of a call that did not run: for example, another holder has the lock, or the job is paused or already ran.
SKIPPED: Final[Literal[Skipped.SKIPPED]] = Skipped.SKIPPED


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        status: ``"successful"`` or ``"skipped"``, also if it ran and skipped itself.
        value: what the job returned, or ``SKIPPED``.
        reason: why it was skipped; ``None`` if it was successful.
        run_id: the primary key of its row in the history, see ``run``; ``None`` if it did not run or the history could
            not be written.
        duration: how long the job itself took; ``None`` if it did not run.
        holder: the holder that was in the way, for people; empty if there was none.
        detail: what was tried, if it could not be decided whether the lock is free; until when the job is paused, and
            why; how the last run ended, if the job already ran but was not successful; the reason that it gave, if it
            skipped itself; otherwise empty.
        slot: the slot of its schedule that it ran (aware, UTC); ``None`` if no schedule started it.
        next_slot: when its schedule is next due, if it was not due now (aware, UTC).
    """

    status: str
    value: Any
    reason: Reason | None = None
    run_id: int | None = None
    duration: timedelta | None = None
    holder: str = ""
    detail: str = ""
    slot: datetime | None = None
    next_slot: datetime | None = None

    @cached_property
    def run(self) -> "JobRun | None":
        """Its row in the history, read on first access. ``None`` if it did not run, if the history could not be
        written, or if the row has been pruned."""
        return row_of(self.run_id)


def not_begun(detail: str) -> Outcome:
    """The outcome of a call whose body has not begun."""
    return skipped(Reason.NOT_BEGUN, detail)


def skipped(reason: Reason, detail: str = "") -> Outcome:
    """The outcome of a call that did not run."""
    return Outcome(status="skipped", value=SKIPPED, reason=reason, detail=detail)


def run(
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    trigger: str = "call",
    command: Sequence[str] | None = None,
    early: timedelta = ZERO,
    one_off: "OneOffJob | None" = None,
    on_grant: Callable[[Lease], object] | None = None,
    supervisor: Supervisor | None = None,
    kind: str = OF_JOB,
    facts: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run the job if its lock can be acquired. With ``trigger="schedule"``, a slot of its schedule must also be due, or
    be due within ``early``. ``on_grant`` is called with the lease if the lock is granted. With a
    ``supervisor``, an executor runs the job: ``kind`` and ``facts`` say how it finds that, see ``Order``.

    Raises the job's own exception, unchanged; ``LeaseLost`` if the job ended without an error but not under its lock;
    ``LockHeld`` if the job has ``on_held="raise"``; ``UnsafeTransaction``; ``DatabaseUnreachable``.
    """
    given = args, kwargs or {}, trigger, command, early, one_off, on_grant, kind, facts or {}
    asked = RunRequest(job, local_now(), *given)
    return supervisor.carry_out(run_steps(asked, supervisor)) if supervisor else run_here(asked)


def run_here(asked: "RunRequest") -> Outcome:
    """Carry out the request in this process."""
    if asked.job.is_async:
        return async_to_sync(_run_in_loop)(asked, of_this_thread())
    answer = acquire(asked.of_lock())
    if isinstance(answer, Refusal):
        return _skip(asked.job, answer)
    execution = _Execution(asked, answer)
    try:
        with execution.surroundings():
            execution.value = let_in(execution.body)
    except BaseException as error:
        execution.failure = interrupt_behind(error) or error
    return execution.finish()


def run_steps(asked: "RunRequest", supervisor: Supervisor) -> Steps[Outcome]:
    """Carry out the request in an executor, which logs the job's failure, while its frames are at hand."""
    answer = yield from _acquire_steps(asked.of_lock())
    if isinstance(answer, Refusal):
        return _skip(asked.job, answer)
    execution = _Execution(asked, answer)
    try:
        yield from execution.run_in_child(supervisor)
    except NotBegun as why:
        if not execution.is_stopped():
            return execution.give_back(why, supervisor.pause)
        execution.failure = JobStopped(answer.stopped_by)
    except BaseException as error:
        execution.failure = error
    return execution.finish(supervisor.pause)


def work_of(job: Job, order: Order, lease: Lease, log: Callable[[BaseException], object]) -> Work:
    """What an executor does for an order to run the job. ``log`` is called with its failure."""
    facts = order.facts
    asked = RunRequest(job, local_now(), facts["args"], facts["kwargs"])
    duration, keeps_value = facts["acquire_duration"], facts["one_off"] is not None
    execution = _Execution(asked, lease, acquire_duration=duration, keeps_value=keeps_value)
    return Work(execution.body_in_loop if job.is_async else execution.body, execution.end_in_child, log)


def _acquire_steps(request: LockRequest) -> Steps[Lease | Refusal]:
    acquisition = Acquisition(request)
    while isinstance(answer := acquisition.ask(), float):
        try:
            yield answer
        except BaseException:
            acquisition.leave_nothing()
            raise
    return answer


async def run_async(job: Job, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Outcome:
    """The same for an ``async def``. The job runs in the caller's event loop; only database queries use a thread."""
    return await _run_in_loop(RunRequest(job, local_now(), args, kwargs or {}), of_this_thread())


async def _run_in_loop(asked: "RunRequest", signals: ReceivedSignals | None) -> Outcome:
    answer = await acquire_in_loop(asked.of_lock())
    if isinstance(answer, Refusal):
        return _skip(asked.job, answer)
    execution = _Execution(asked, answer)
    try:
        with execution.surroundings():
            body = execution.body_in_loop
            execution.value = await (signals.call_async(body) if signals else body())
    except BaseException as error:
        execution.failure = error
    return await finished(execution.finish)


class RunRequest(NamedTuple):
    """A run of a job, as requested. ``one_off``: the one-off that requests it, if any. ``kind`` and
    ``facts``: see ``Order``. ``mistake``: why it fails although its body is not called; ``None`` if it is."""

    job: Job
    asked_at: float
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})
    trigger: str = "call"
    command: Sequence[str] | None = None
    early: timedelta = ZERO
    one_off: "OneOffJob | None" = None
    on_grant: Callable[[Lease], object] | None = None
    kind: str = OF_JOB
    facts: Mapping[str, Any] = MappingProxyType({})
    mistake: Exception | None = None

    def of_lock(self) -> LockRequest:
        """The request for the lock, which comes first."""
        job = self.job
        return LockRequest.of(
            job.lock,
            lease=job.lease,
            heartbeat=job.heartbeat,
            wait=job.wait,
            holder=this_process(self.command),
            job_name=job.name,
            min_interval=job.min_interval or ZERO,
            max_attempts=job.max_attempts,
            policy=job.policy,
            is_scheduled=self.trigger == "schedule",
            early=self.early,
            trigger=self.trigger,
            one_off=self.one_off,
        )


def _skip(job: Job, refusal: Refusal) -> Outcome:
    extra = about(job=job.name, lock=job.lock, reason=refusal.reason)
    if refusal.reason == Reason.UNDECIDED:
        logger.warning("The job %r was skipped. %s", job.name, refusal.message(job.lock), extra=extra)
    else:
        logger.info("The job %r was skipped: %s.", job.name, in_english(refusal.reason.label), extra=extra)
    job_skipped.send_robust(sender=Job, name=job.name, reason=refusal.reason)
    if job.on_held == "raise" and refusal.may_be_held:
        raise LockHeld(refusal.message(job.lock))
    return Outcome(
        status="skipped",
        value=SKIPPED,
        reason=refusal.reason,
        holder=refusal.lock.holder if refusal.lock else "",
        detail=refusal.detail,
        next_slot=refusal.next_slot,
    )


def _memory() -> SharedMemory:
    try:
        return SharedMemory()
    except OSError as error:
        raise NotBegun(f"There is no memory for it: {error}") from error


class _Execution:
    """One run: its heartbeat, its context and its outcome."""

    def __init__(
        self,
        asked: RunRequest,
        lease: Lease,
        *,
        acquire_duration: timedelta | None = None,
        keeps_value: bool = False,
    ) -> None:
        """``acquire_duration`` and ``keeps_value``: what the process that has acquired the lock says, if it is another
        one: how long that took, and whether it needs the body's value."""
        self.value: Any = None
        #: What the body raised. It is raised again once the lock is released.
        self.failure: BaseException | None = None
        self._asked = asked
        self._lease = lease
        #: How the body ended, as its child process has reported; ``None`` if there was none, or no report.
        self._reported: Ending | None = None
        #: What it prints; ``None`` if that is not kept.
        self._output: Output | None = None
        self._run = CurrentRun(job=asked.job, lease=lease, slot=lease.grant.slot, attempt=lease.grant.attempt)
        self._acquire_duration = since(asked.asked_at) if acquire_duration is None else acquire_duration
        self._keeps_value = keeps_value or asked.one_off is not None
        self._started_at = local_now()
        if asked.job.max_runtime:
            lease.runtime_ends_at = self._started_at + asked.job.max_runtime.total_seconds()
        if asked.on_grant:
            asked.on_grant(lease)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Keep the lease alive while the body runs, and have ``current_run()`` return this run."""
        with self._as_current(), kept_alive(self._lease):
            self._send_started()
            yield

    def run_in_child(self, supervisor: Supervisor) -> Steps[None]:
        """Have another process run the body.

        Raises ``NotBegun`` if it has not begun."""
        self._lease.prove()
        if isinstance(self._asked.job.func, ShellCommand):
            self._run_command(self._asked.job.func, supervisor)
            return
        if self._asked.mistake:
            raise self._asked.mistake
        self._reported, self.value, self.failure = yield from self._ordered(supervisor)

    def _run_command(self, command: ShellCommand, supervisor: Supervisor) -> None:
        with self._as_current():
            memory = _memory()
            if not command.is_alone:  # what it leaves behind prints on when this process is over
                self._output = supervisor.output(self._asked.job.name, memory, is_command=True)
            supervise_command(supervisor, self._lease, command, memory, self._output, self._send_started)

    def _ordered(self, supervisor: Supervisor) -> Steps[BodyEnd]:
        job = self._asked.job
        order = self._order(supervisor)
        while True:
            memory = _memory()
            self._output = supervisor.output(job.name, memory)
            try:
                return (
                    yield from order_steps(
                        supervisor, self._lease, memory, self._output, order, self._begun, max_runtime=job.max_runtime
                    )
                )
            except NotBegun as why:
                if not why.was_idle:
                    raise

    def _order(self, supervisor: Supervisor) -> Order:
        asked = self._asked
        facts = {
            **asked.facts,
            "job": asked.job.name,
            "args": list(asked.args),
            "kwargs": dict(asked.kwargs),
            "one_off": asked.one_off.pk if asked.one_off else None,
            "acquire_duration": self._acquire_duration,
        }
        is_patient = supervisor.patience is not None
        return Order.of(asked.kind, facts, self._lease, heeds_any_signal=not is_patient, is_last=supervisor.has_one_run)

    def _begun(self) -> None:
        """Take note that the body has begun."""
        with self._as_current():
            self._send_started()

    @contextmanager
    def _as_current(self) -> Iterator[None]:
        before = CURRENT.set(self._run)
        try:
            yield
        finally:
            CURRENT.reset(before)

    def _send_started(self) -> None:
        job_started.send_robust(sender=Job, name=self._asked.job.name, run=self._run)

    def end_in_child(self, value: Any, failure: BaseException | None) -> BodyEnd:
        end = self._ending_of(failure, is_ctrl_c=False)
        is_wanted = self._keeps_value and failure is None
        return BodyEnd(end, value_kept(value) if is_wanted else None, None if end.status == "skipped" else failure)

    def body(self) -> Any:
        """Call the job's function and return its value."""
        asked = self._asked
        CURRENT.set(self._run)  # in a child, nothing else has
        self._lease.prove()
        if asked.mistake:
            raise asked.mistake
        value = asked.job.func(*asked.args, **asked.kwargs)
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
            raise SingleJobError(
                f"The job {asked.job.name!r} returned {value!r}, whose body would run later and without the lock. "
                "Decorate the function that does the work itself."
            )
        return value

    async def body_in_loop(self) -> Any:
        """The same for an ``async def``."""
        CURRENT.set(self._run)
        if self._lease.lost:
            await finished(self._lease.prove)
        if self._asked.mistake:
            raise self._asked.mistake
        return await self._asked.job.func(*self._asked.args, **self._asked.kwargs)

    def finish(self, pause: Callable[[float], object] = sleep) -> Outcome:
        """Release the lock and send the signal. Then raise the job's own exception, or else ``LeaseLost`` if the lease
        was lost. ``pause`` waits before a release is tried again."""
        end = self._ending()
        if end.status == "skipped":
            self.value, self.failure = SKIPPED, None
        status = self._release(end, pause)
        if not self._lease.is_inherited:
            self._send_finished(status, end.duration)
        if self.failure:
            try:
                raise self.failure
            finally:
                # Its traceback refers to this frame: the reference cycle would keep the body's objects alive.
                self.failure = None
        run_id, slot = self._lease.grant.run_id, self._run.slot
        why: dict[str, Any] = {"reason": Reason.ITSELF, "detail": end.error} if status == "skipped" else {}
        return Outcome(status=status, value=self.value, run_id=run_id, duration=end.duration, slot=slot, **why)

    def is_stopped(self) -> bool:
        """Whether a user has stopped the run, as far as the database can be asked."""
        with suppress(Error, LeaseLost):
            self._lease.renew()
        return bool(self._lease.stopped_by)

    def give_back(self, why: NotBegun, pause: Callable[[float], object]) -> Outcome:
        """Release the lock of a run whose body has not begun: neither its slot, nor its one-off, nor an attempt at
        either is used. ``pause``: see ``finish``."""
        job, facts = self._asked.job, self._lease.grant.facts
        try:
            loss = "" if self._lease.finish(NOT_BEGUN, pause=pause) else self._lease.why_lost()
        except LeaseLost as error:
            loss = str(error)
        if loss:
            message = "The job %r has not begun, and could not be given back: %s %s"
            logger.warning(message, job.name, why, loss, extra=facts(reason=why))
        elif not why.is_by_signal:
            logger.warning("The job %r has not begun, and was given back: %s", job.name, why, extra=facts(reason=why))
        return skipped(Reason.INTERRUPTED) if why.is_by_signal else not_begun(str(why))

    def _ending(self) -> Ending:
        was_ctrl_c = self.failure is not None and is_ctrl_c(self.failure)
        end = self._reported or self._ending_of(self.failure, is_ctrl_c=was_ctrl_c)
        is_by_signal = end.status == "interrupted" and isinstance(self.failure, KeyboardInterrupt)
        if is_by_signal and (grant := self._lease.grant).slot and not self._lease.stopped_by:
            end = end._replace(is_cut_off=not grant.is_last_of_slot, is_failure=grant.is_last_of_slot)
        output = self._output.text if self._output else ""
        return end._replace(also_write=self._also_write(end), output=output)

    def _ending_of(self, failure: BaseException | None, *, is_ctrl_c: bool) -> Ending:
        return ending(
            failure,
            is_ctrl_c=is_ctrl_c,
            duration=since(self._started_at),
            acquire_duration=self._acquire_duration,
            package=str(getattr(self._asked.job.func, "__module__", "")).partition(".")[0],
        )

    def _also_write(self, end: Ending) -> AlsoWrite | None:
        """Update the one-off that requested this run, or enqueue a one-off that retries it after a failure."""
        job, facts, is_stopped = self._asked.job, self._lease.grant.facts, bool(self._lease.stopped_by)
        if self._asked.one_off:
            attempt = self._lease.grant.attempt
            result = result_of_job(job, end, self.failure, self.value, attempt=attempt, is_stopped=is_stopped)
            writes = [partial(self._end_one_off, each) for each in (result, without_values(result))]
            return AlsoWrite(f"The result of a one-off of {job.name!r} was refused", *writes, facts=facts)
        if not (end.is_failure and job.retries) or is_stopped:
            return None
        if again := retry_of(job, self._asked.args, self._asked.kwargs):
            return AlsoWrite(f"The one-off that retries {job.name!r} was refused", again, facts=facts)
        message = "The job %r is not retried: its arguments would not come back from JSON unchanged."
        logger.error(message, job.name, extra=facts())
        return None

    def _end_one_off(self, result: Mapping[str, Any]) -> None:
        if not one_offs().finish(self._lease.token, result):
            message = "A one-off of %r was changed by hand while it ran: only the history has its result."
            logger.warning(message, self._asked.job.name, extra=self._lease.grant.facts())

    def _release(self, end: Ending, pause: Callable[[float], object]) -> str:
        """Release the lock and return the run's status. If the run outlived its lease and nothing else went wrong, it
        has failed."""
        try:
            if self._lease.finish(end, pause=pause):
                return end.status
            loss = LeaseLost(self._lease.why_lost())
        except LeaseLost as unreleased:
            loss = unreleased
        if self.failure is None:
            self.failure = loss
            return "failed"
        message = "After the job %r had failed: %s"
        logger.error(message, self._asked.job.name, loss, extra=self._lease.grant.facts(reason=loss))
        return end.status

    def _send_finished(self, status: str, duration: timedelta) -> None:
        job_finished.send_robust(
            sender=Job, name=self._asked.job.name, run=self._run, status=status, duration=duration, error=self.failure
        )
