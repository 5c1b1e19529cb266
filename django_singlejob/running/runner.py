"""Run a job under its lock. ``run`` is the story of the package."""

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.db import Error

from django_singlejob.conf import ZERO
from django_singlejob.database.errors import interrupt_behind
from django_singlejob.exceptions import (
    DatabaseUnreachable,
    DatabaseUnusable,
    JobInterrupted,
    JobStopped,
    LeaseLost,
    LockHeld,
    SingleJobError,
    UnsafeTransaction,
)
from django_singlejob.jobs import registry, slots
from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.acquire import Acquisition, acquire
from django_singlejob.locking.endings import NOT_BEGUN, Ending, decided, ending
from django_singlejob.locking.heartbeat import renewing
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.recording import why_skipped
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.process.clock import local_now, since, sleep
from django_singlejob.process.escaping import listed
from django_singlejob.process.holder import this_process
from django_singlejob.process.logs import about, in_english
from django_singlejob.process.received_signals import (
    ReceivedSignals,
    is_ctrl_c,
    is_shutdown_requested,
    let_in,
    of_this_thread,
)
from django_singlejob.running.command import ShellCommand, command_steps
from django_singlejob.running.current_run import CURRENT, CurrentRun
from django_singlejob.running.executor import NotBegun
from django_singlejob.running.in_loop import acquire_in_loop, finished
from django_singlejob.running.order import Order, Work
from django_singlejob.running.outcomes import SKIPPED, Outcome, logged, raised, skipped
from django_singlejob.running.output import Output
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor, order_steps
from django_singlejob.running.values import stored_call, stored_value
from django_singlejob.signals import job_finished, job_skipped, job_started

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")


#: The kind of orders to run a registered job.
OF_JOB = f"{__name__}.work_of_job"
# How much of a failure's output a pass prints. Characters.
LAST_OUTPUT = 1_000
# After one of these, the caller cannot run another slot of the job.
FINAL = (JobInterrupted, DatabaseUnreachable, DatabaseUnusable, UnsafeTransaction)


def run(
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **terms: Any,
) -> Outcome:
    """Run the job in this process if its lock can be acquired. ``terms``: see ``Run``.

    Raises the job's own exception, unchanged; ``LeaseLost`` if the job ended without an error but not under its lock;
    ``LockHeld`` if the job has ``on_held="raise"``; ``UnsafeTransaction``; ``DatabaseUnreachable``.
    """
    return _carried_out(Run(job, args, kwargs, **terms))


def outcome_of(run: "Run", supervisor: Supervisor | None = None) -> Outcome:
    """The same, but what is raised is in the outcome. With a ``supervisor``, an executor runs the job."""
    pid = os.getpid()
    try:
        return supervisor.carry_out(_steps(run, supervisor)) if supervisor else _carried_out(run)
    except BaseException as error:
        if os.getpid() != pid:
            raise  # a forked child is exiting, and what follows belongs to its parent
        return raised(run.job.name, error, lease=run.granted)


def outcome_steps(run: "Run", supervisor: Supervisor | None) -> Steps[Outcome]:
    """The same in steps. Without a supervisor, this process carries out the run, at once."""
    if supervisor is None:
        return outcome_of(run)
    try:
        return (yield from _steps(run, supervisor))
    except BaseException as error:
        return raised(run.job.name, error, lease=run.granted)


def run_due(
    job: Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    supervisor: Supervisor | None = None,
    trigger: str = "schedule",
    **terms: Any,
) -> Iterator[Outcome]:
    """Run the job's due slot and, with ``catch_up="all"``, the slots after it, up to the maximum for catching up. With
    another ``trigger``, run the job once.

    ``terms``: see ``Run``. Yields at least one outcome, which may say that the job was skipped. Raises nothing but a
    Ctrl-C.
    """
    for count in range(most_slots(job) if trigger == "schedule" else 1):
        outcome = outcome_of(Run(job, args, kwargs, trigger=trigger, **terms), supervisor)
        if outcome.error and is_ctrl_c(outcome.error):
            raise outcome.error
        if not (outcome.refusal and count):
            yield outcome
        if outcome.refusal or is_shutdown_requested() or isinstance(outcome.error, FINAL):
            return


def most_slots(job: Job) -> int:
    """How many slots of the job may run in a row."""
    return slots.MAX_CATCH_UP if job.catch_up == "all" else 1


def waitless(job: Job) -> Job:
    """The job without waiting for its lock, for a caller that would keep other jobs waiting."""
    return replace(job, on_held="skip", wait=None)


def _carried_out(run: "Run") -> Outcome:
    if run.job.is_async:
        return async_to_sync(_run_in_loop)(run, of_this_thread())
    if refused := run.answered(acquire(run.of_lock())):
        return refused
    try:
        with run.surroundings():
            run.value = let_in(run.body)
    except BaseException as error:
        run.failure = interrupt_behind(error) or error
    return run.finish()


def _steps(run: "Run", supervisor: Supervisor) -> Steps[Outcome]:
    """Have an executor carry out the run. It logs the job's failure, while its frames are at hand."""
    acquisition = Acquisition(run.of_lock())
    while isinstance(answer := acquisition.ask(), float):
        with acquisition.waiting():
            yield answer
    if refused := run.answered(answer):
        return refused
    try:
        yield from run.run_in_child(supervisor)
    except NotBegun as why:
        if not run.is_stopped():
            return run.give_back(why, supervisor.pause)
        run.failure = JobStopped(run.lease.stopped_by)
    except BaseException as error:
        run.failure = error
    return run.finish(supervisor.pause)


def work_of_job(order: Order, lease: Lease, memory: SharedMemory) -> Work:
    """What an executor does for a run of a job that is registered. Raises ``UnknownJob``."""
    return work_of(registered(order), order, lease)


def registered(order: Order) -> Job:
    """The job that the order names. Raises ``UnknownJob``."""
    _discover_once()
    return registry.get(order.facts["job"])


@cache
def _discover_once() -> None:
    autodiscover()


def work_of(job: Job, order: Order, lease: Lease) -> Work:
    """The same for a job that its order does not name."""
    run = Run(job, order.facts["args"], order.facts["kwargs"])
    run.begin(lease)
    end = partial(run.end_in_child, keeps_value=order.facts["one_off"] is not None)
    body = run.body_in_loop if job.is_async else run.body
    return Work(body, end, lambda error: logged(raised(job.name, error, lease=lease)))


async def run_async(job: Job, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Outcome:
    """The same for an ``async def``. The job runs in the caller's event loop; only database queries use a thread."""
    return await _run_in_loop(Run(job, args, kwargs), of_this_thread())


async def _run_in_loop(run: "Run", signals: ReceivedSignals | None) -> Outcome:
    if refused := run.answered(await acquire_in_loop(run.of_lock())):
        return refused
    try:
        with run.surroundings():
            body = run.body_in_loop
            run.value = await (signals.call_async(body) if signals else body())
    except BaseException as error:
        run.failure = error
    return await finished(run.finish)


def _memory() -> SharedMemory:
    try:
        return SharedMemory()
    except OSError as error:
        raise NotBegun(f"No process could be started for it: {error}") from error


class Run:
    """One run of a job: what is requested, its lease, its body and how that ended.

    Attributes:
        value: what the body returned.
        failure: what the body raised. It is raised again once the lock is released.
        granted: the lease; ``None`` until the lock is granted.
    """

    def __init__(
        self,
        job: Job,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        trigger: str = "call",
        command: Sequence[str] | None = None,
        early: timedelta = ZERO,
        one_off: "OneOffJob | None" = None,
        slot: datetime | None = None,
        on_grant: Callable[[Lease], object] | None = None,
        kind: str = OF_JOB,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """With ``trigger="schedule"``, a slot of the job's schedule must be due, or be due within ``early``.

        ``command``: what is recorded as the command of this process. ``one_off``: the one-off that requests the run.
        ``slot``: the past slot that is run by hand. ``on_grant`` is called with the lease if the lock is granted.
        ``kind`` and ``facts``: how an executor finds the job, see ``Order``."""
        self.job, self.args, self.kwargs, self.kind, self.facts = job, args, kwargs or {}, kind, facts or {}
        #: Why it fails although its body is not called; ``None`` if it is.
        self.mistake: Exception | None = None
        self.value: Any = None
        self.failure: BaseException | None = None
        self.granted: Lease | None = None
        self._trigger, self._command, self._early = trigger, command, early
        self._one_off, self._slot, self._on_grant = one_off, slot, on_grant
        #: How the body ended, as its child process has reported; ``None`` if there was none, or no report.
        self._reported: Ending | None = None
        #: What it prints; ``None`` if that is not kept.
        self._output: Output | None = None
        self._asked_at = local_now()

    def of_lock(self) -> LockRequest:
        """The request for the lock, which comes first."""
        job, holder = self.job, this_process(self._command)
        is_for_others = not job.is_for(holder.hostname)
        if is_for_others and self._is_by_somebody:
            message = "The job %r runs on %s, although it is for %s."
            logger.warning(message, job.name, holder.hostname, listed(job.on), extra=about(job=job.name))
        return LockRequest.of(
            job.lock,
            lease=job.lease,
            heartbeat=job.heartbeat,
            wait=job.wait,
            holder=holder,
            job_name=job.name,
            min_interval=job.min_interval or ZERO,
            max_attempts=job.max_attempts,
            policy=job.policy if self._trigger == "schedule" else None,
            early=self._early,
            trigger=self._trigger,
            one_off=self._one_off,
            slot=self._slot,
            is_elsewhere=is_for_others and not self._is_by_somebody,
        )

    @property
    def _is_by_somebody(self) -> bool:
        """Whether a call in code, or ``--now``, wants this run, and not what runs on all servers."""
        return self._trigger in ("call", "manual")

    def answered(self, answer: Lease | Refusal) -> Outcome | None:
        """Begin, if the lock was granted: ``None``. Or else the outcome."""
        if isinstance(answer, Refusal):
            return self._skip(answer)
        self.begin(answer)
        return None

    def begin(self, lease: Lease) -> None:
        """Run under this lease from now on."""
        job, self.granted, slot = self.job, lease, lease.grant.slot_of_run
        self._run = CurrentRun(job=job, lease=lease, slot=slot, attempt=lease.grant.attempt)
        self._acquire_duration, self._started_at = since(self._asked_at), local_now()
        if job.max_runtime:
            lease.max_runtime = job.max_runtime.total_seconds()
            lease.runtime_ends_at = self._started_at + lease.max_runtime
        if self._on_grant:
            self._on_grant(lease)

    @property
    def lease(self) -> Lease:
        """The lease. There is one as soon as the lock is granted."""
        return self._run.lease

    def _skip(self, refusal: Refusal) -> Outcome:
        job, reason = self.job, refusal.reason
        extra = about(job=job.name, lock=job.lock, reason=reason)
        if reason == Reason.UNDECIDED:
            logger.warning("The job %r was skipped. %s", job.name, refusal.message(job.lock), extra=extra)
        else:
            logger.info("The job %r was skipped: %s.", job.name, in_english(reason.label), extra=extra)
        job_skipped.send_robust(sender=Job, name=job.name, reason=reason)
        if job.on_held == "raise" and refusal.may_be_held:
            raise LockHeld(refusal.message(job.lock))
        holder = refusal.lock.holder if refusal.lock else ""
        return skipped(reason, refusal.detail, name=job.name, holder=holder, next_slot=refusal.next_slot)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Keep the lease alive while the body runs, and have ``current_run()`` return this run."""
        with self._as_current(), renewing(self.lease):
            self._send_started()
            yield

    def run_in_child(self, supervisor: Supervisor) -> Steps[None]:
        """Have another process run the body.

        Raises ``NotBegun`` if it has not begun."""
        self.lease.prove()
        if isinstance(self.job.func, ShellCommand) and not self.mistake:
            yield from self._command_steps(self.job.func, supervisor)
            return
        if self.mistake:
            raise self.mistake
        self._reported = end = yield from self._ordered(supervisor)
        self.value, self.failure = end.value, end.failure

    def _command_steps(self, command: ShellCommand, supervisor: Supervisor) -> Steps[None]:
        memory = _memory()
        if not command.is_alone:  # what it leaves behind prints on when this process is over
            self._output = supervisor.output(self.job.name, memory, is_command=True)
        yield from command_steps(supervisor, self.lease, command, memory, self._output, self._begun)

    def _ordered(self, supervisor: Supervisor) -> Steps[Ending]:
        order = self._order(supervisor)
        while True:
            memory = _memory()
            self._output = supervisor.output(self.job.name, memory)
            try:
                steps = order_steps(supervisor, self.lease, memory, self._output, order, self._begun)
                return (yield from steps)
            except NotBegun as why:
                if self._output:
                    self._output.tell(None)
                if not why.was_idle:
                    raise

    def _order(self, supervisor: Supervisor) -> Order:
        facts = {
            **self.facts,
            "job": self.job.name,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
            "one_off": self._one_off.pk if self._one_off else None,
        }
        is_patient = supervisor.patience is not None
        return Order.of(self.kind, facts, self.lease, heeds_any_signal=not is_patient, is_last=supervisor.has_one_run)

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
        job_started.send_robust(sender=Job, name=self.job.name, run=self._run)

    def end_in_child(self, value: Any, failure: BaseException | None, *, keeps_value: bool) -> Ending:
        """How the body has ended, in its own process. ``keeps_value``: whether its value is needed."""
        end = self._ending_of(failure, is_ctrl_c=False)
        return end._replace(value=stored_value(value) if keeps_value and failure is None else None)

    def body(self) -> Any:
        """Call the job's function and return its value."""
        CURRENT.set(self._run)  # in a child, nothing else has
        self.lease.prove()
        if self.mistake:
            raise self.mistake
        value = self.job.func(*self.args, **self.kwargs)
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
            raise SingleJobError(
                f"The job {self.job.name!r} returned {value!r}, whose body would run later and without the lock. "
                "Decorate the function that does the work itself."
            )
        return value

    async def body_in_loop(self) -> Any:
        """The same for an ``async def``."""
        CURRENT.set(self._run)
        if self.lease.lost:
            await finished(self.lease.prove)
        if self.mistake:
            raise self.mistake
        return await self.job.func(*self.args, **self.kwargs)

    def finish(self, pause: Callable[[float], object] = sleep) -> Outcome:
        """Release the lock and send the signal. Then raise the job's own exception, or else ``LeaseLost`` if the lease
        was lost. ``pause`` waits before a release is tried again."""
        end = self._ending()
        if end.status == "skipped":
            self.value, self.failure = SKIPPED, None
        # A loss refers to the frames that raised it: the failure would keep the body's objects alive.
        status = self._release(end._replace(failure=None), pause)
        is_lost = self.lease.grant.run_id is None or why_skipped() is not None
        if self._output and (is_lost or status in ("failed", "interrupted")):
            self._output.tell(None if is_lost else LAST_OUTPUT)
        if not self.lease.is_inherited:
            job_finished.send_robust(
                sender=Job, name=self.job.name, run=self._run, status=status, duration=end.duration, error=self.failure
            )
        if self.failure:
            try:
                raise self.failure
            finally:
                # Its traceback refers to this frame: the reference cycle would keep the body's objects alive.
                self.failure = self._reported = None
                del end
        run_id, slot = self.lease.grant.run_id, self._run.slot
        why: dict[str, Any] = {"reason": Reason.ITSELF, "detail": end.error} if status == "skipped" else {}
        facts: dict[str, Any] = {"run_id": run_id, "duration": end.duration, "slot": slot, "name": self.job.name}
        return Outcome(status=status, value=self.value, **facts, **why)

    def is_stopped(self) -> bool:
        """Whether a user has stopped the run, as far as the database can be asked."""
        with suppress(Error, LeaseLost):
            self.lease.renew()
        return bool(self.lease.stopped_by)

    def give_back(self, why: NotBegun, pause: Callable[[float], object]) -> Outcome:
        """Release the lock of a run whose body has not begun: neither its slot, nor its one-off, nor an attempt at
        either is used. ``pause``: see ``finish``."""
        job, facts = self.job, self.lease.grant.facts
        try:
            loss = "" if self.lease.finish(NOT_BEGUN, pause=pause) else self.lease.why_lost()
        except LeaseLost as error:
            loss = str(error)
        if loss:
            message = "The job %r has not begun, and could not be given back: %s %s"
            logger.warning(message, job.name, why, loss, extra=facts(reason=why))
        elif not why.is_by_signal:
            logger.warning("The job %r has not begun, and was given back: %s", job.name, why, extra=facts(reason=why))
        reason, detail = (Reason.INTERRUPTED, "") if why.is_by_signal else (Reason.NOT_BEGUN, str(why))
        return skipped(reason, detail, name=job.name)

    def _ending(self) -> Ending:
        was_ctrl_c = self.failure is not None and is_ctrl_c(self.failure)
        end = self._reported or self._ending_of(self.failure, is_ctrl_c=was_ctrl_c)
        end = end._replace(
            acquire_duration=self._acquire_duration,
            value=stored_value(self.value) if self._one_off else None,
            output=self._output.text if self._output else "",
        )
        call = partial(stored_call, self.args, self.kwargs)
        return decided(end, self.job, self.lease.grant, call, is_stopped=bool(self.lease.stopped_by))

    def _ending_of(self, failure: BaseException | None, *, is_ctrl_c: bool) -> Ending:
        return ending(
            failure,
            is_ctrl_c=is_ctrl_c,
            duration=since(self._started_at),
            package=str(getattr(self.job.func, "__module__", "")).partition(".")[0],
        )

    def _release(self, end: Ending, pause: Callable[[float], object]) -> str:
        """Release the lock and return the run's status. If the run outlived its lease and nothing else went wrong, it
        has failed."""
        try:
            if self.lease.finish(end, pause=pause):
                return end.status
            loss = LeaseLost(self.lease.why_lost())
        except LeaseLost as unreleased:
            loss = unreleased
        if self.failure is None:
            self.failure = loss
            return "failed"
        message = "After the job %r had failed: %s"
        logger.error(message, self.job.name, loss, extra=self.lease.grant.facts(reason=loss))
        return end.status
