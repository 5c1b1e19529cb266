"""Keeps the leases of this process alive while their bodies run, and interrupts a body whose lease is lost.

There is one keeper in each process. It only looks at the clock, and waits for nothing else: not for a database, nor for
a log, nor for a receiver of a signal. Other threads send the heartbeats and report the losses. So whatever hangs cannot
hide a loss, and cannot hold up the interrupt of another lease.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar
from weakref import ref

from django_singlejob.clock import local_now, sleep, wait
from django_singlejob.exceptions import JobTimeout, LeaseLost
from django_singlejob.locking.crew import Crew
from django_singlejob.locking.heartbeat import Heartbeats, Pulse
from django_singlejob.locking.lease import Lease
from django_singlejob.logs import about, about_grant
from django_singlejob.received_signals import start_thread
from django_singlejob.signals import lease_lost

logger = logging.getLogger("django_singlejob")
T = TypeVar("T")

# A loss is logged before its body is interrupted, unless that takes longer. Seconds.
LOG_PATIENCE = 0.2
# The most threads that report losses, and after how many seconds another one joins.
MOST_REPORTERS = 6
REPORTER_PATIENCE = 1.0
# The keeper looks at the clock at least this often, in seconds. Without any lease, its thread ends then.
LONGEST_WAIT = 60.0
# After an error, it looks again this much later.
PAUSE = 0.1


class Interruptible(Protocol):
    """What is interrupted when the lease is lost: a window, or several."""

    def fire(self, exception: type[BaseException], /) -> None:
        """Raise ``exception`` in the window's body."""


@contextmanager
def kept_alive(lease: Lease, window: Interruptible, max_runtime: timedelta | None = None) -> Iterator[None]:
    """Send heartbeats during the block. If the lease is lost or ``max_runtime`` is over, interrupt the window."""
    keeper = _keeper
    kept = Kept(lease, window, max_runtime, keeper.wake)
    try:
        keeper.watch(kept)
        yield
    finally:
        keeper.leave(kept)


class Kept:
    """A lease that is kept alive while its body runs."""

    def __init__(
        self, lease: Lease, window: Interruptible, max_runtime: timedelta | None, wake: Callable[[], object]
    ) -> None:
        self.lease = lease
        self.window = window
        self.pulse = Pulse(lease, wake)
        #: Whether an error in watching it was reported.
        self.is_in_trouble = False
        self._loss: _Loss | None = None
        self._timeout_at = local_now() + max_runtime.total_seconds() if max_runtime else float("inf")
        self._longest_wait = lease.grant.request.lease.total_seconds() / 4

    @property
    def has_deadline(self) -> bool:
        """Whether there is anything to watch. No other process can take over a private lease."""
        return not self.lease.is_private or self._timeout_at < float("inf")

    @property
    def next_at(self) -> float:
        """When to look at the clock again, at the latest."""
        if self._is_done:
            return float("inf")
        if self.lease.is_over:  # it has no more heartbeats, and its deadline means nothing
            return self._timeout_at
        deadline = self._loss.interrupt_at if self._loss else self.lease.deadline
        return min(self.pulse.due_at, self._timeout_at, deadline, local_now() + self._longest_wait)

    @property
    def _is_done(self) -> bool:
        # If its own holder released a lease early, that is not a loss.
        return self.pulse.is_left or (self.lease.is_over and self._timeout_at == float("inf"))

    def look_at_the_clock(self) -> "_Loss | None":
        """Interrupt the body if its time is over. Returns a loss that is new, and has to be reported."""
        if self._is_done:
            return None
        if local_now() >= self._timeout_at:
            self._timeout_at = float("inf")
            self.window.fire(JobTimeout)
        if self.lease.is_over or not self.lease.lost:
            self._loss = None
        elif self._loss is None:
            self._loss = _Loss(self)
            return self._loss
        elif local_now() >= self._loss.interrupt_at:
            self._loss.interrupt()
        return None


class _Loss:
    """A lease can no longer be trusted, and its body has to end."""

    def __init__(self, kept: Kept) -> None:
        #: When the keeper interrupts the body, even if the loss has not been logged by then.
        self.interrupt_at = local_now() + LOG_PATIENCE
        self._lease, self._pulse, self._window = kept.lease, kept.pulse, kept.window
        self._error = LeaseLost(kept.lease.why_lost())
        # What may be taken once. A worker's window is open for one body after another.
        self._interrupts = [LeaseLost]

    def report(self) -> None:
        """Log it, interrupt the body, and tell the receivers of ``lease_lost``."""
        try:
            logger.error("%s", self._error, extra=about_grant(self._lease.grant, reason=self._error))
        finally:
            self.interrupt()
        lease_lost.send_robust(sender=Lease, name=self._lease.name, lease=self._lease)

    def interrupt(self) -> None:
        """Interrupt the body, once."""
        self.interrupt_at = float("inf")
        try:
            interrupt = self._interrupts.pop()
        except IndexError:  # the keeper has, or the thread that reports
            return
        if not self._pulse.is_left:
            self._window.fire(interrupt)


class Keeper:
    """The leases that are kept alive, and the thread that looks at the clock for them.

    Leases come and go in all threads, and in the middle of signal handlers and interrupts. So coming and going is one
    operation on a dict, and waits for nobody.
    """

    def __init__(self) -> None:
        # Weak, so that a lease is not kept for ever if an interrupt cuts its leaving short.
        self._kept: dict[Pulse, ref[Kept]] = {}
        # Not an event: a signal handler may run a job while it interrupts a call. Up to CPython 3.12, a signal may keep
        # get() waiting for ever, but this thread gets none.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        # When the keeper looks again by itself. If a lease needs it sooner, it has to be called.
        self._looks_at = float("inf")
        self._heartbeats = Heartbeats()
        self._reports: deque[Callable[[], object]] = deque()
        self._reporters = Crew("reports of leases", self._report, lambda: bool(self._reports), MOST_REPORTERS)
        # ``None`` if there is none, or if it is about to end.
        self._thread: threading.Thread | None = None
        # Identifies the thread that came last. Others end: two may start at once, or an interrupt may keep us from
        # remembering one.
        self._watcher: object = None

    def watch(self, kept: Kept) -> None:
        """Keep this lease alive from now on. Raises ``RuntimeError`` if the keeper's thread cannot be started."""
        if not kept.has_deadline:
            return
        self._kept[kept.pulse] = ref(kept)
        if not self._is_watching:
            self._thread = start_thread(self._watch, "keeper of leases")
        elif kept.next_at < self._looks_at:
            self.wake()

    def leave(self, kept: Kept) -> None:
        """Keep this lease alive no longer."""
        kept.pulse.is_left = True
        self._kept.pop(kept.pulse, None)

    def wake(self) -> None:
        """Have the keeper look at the clock at once."""
        self._calls.put(True)

    @property
    def _is_watching(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # --- in the keeper's thread

    def _watch(self) -> None:
        self._watcher = watcher = object()
        is_needed = True
        while self._watcher is watcher and (is_needed or not self._may_end()):
            try:
                is_needed = self._watch_once()
            except Exception as error:  # whatever goes wrong, the leases must be watched
                self._reports.append(partial(_log_error, "The keeper of the leases goes on after an error", error))
                sleep(PAUSE)
        # If another thread came meanwhile, this one may have taken its call.
        self.wake()

    def _may_end(self) -> bool:
        """Whether this thread may end. A process that holds no leases any more has none of our threads."""
        self._thread = None
        # A lease that came before relies on this thread. Each that comes now starts another one.
        return not self._kept

    def _watch_once(self) -> bool:
        """Look at the clock, and wait. ``False`` if there was no lease, and none came."""
        # The order matters: no call may be lost. While the keeper looks, every lease that comes calls it, since it may
        # be too late to be seen. A call stays until the next look, which answers all calls that have come.
        self._looks_at = float("inf")
        self._forget_calls()
        self._looks_at = looks_at = self._look()
        is_needed = bool(self._kept or self._reports)
        return self._is_called(max(0.0, min(looks_at - local_now(), LONGEST_WAIT))) or is_needed

    def _forget_calls(self) -> None:
        with suppress(Empty):
            while True:
                self._calls.get_nowait()

    def _is_called(self, seconds: float) -> bool:
        """Wait for a call. ``False``: none came."""
        try:
            return wait(partial(self._calls.get, True), seconds)
        except Empty:
            return False

    def _look(self) -> float:
        """Look at the clock for all leases. Returns when to look again."""
        all_kept = list(self._all())
        for kept in all_kept:
            if loss := self._carefully(kept, kept.look_at_the_clock):
                self._reports.append(loss.report)
        beats_at = self._send([kept.pulse for kept in all_kept])
        return min([beats_at, self._see_to_reports(), *map(self._next_at, all_kept)])

    def _all(self) -> Iterator[Kept]:
        for pulse, weak in list(self._kept.items()):
            if kept := weak():
                yield kept
            else:
                self._kept.pop(pulse, None)

    def _next_at(self, kept: Kept) -> float:
        next_at = self._carefully(kept, lambda: kept.next_at)
        return local_now() + PAUSE if next_at is None else next_at

    def _carefully(self, kept: Kept, look: Callable[[], T]) -> T | None:
        """What ``look`` returns. ``None`` after an error: the other leases must be watched all the same."""
        try:
            return look()
        except Exception as error:
            if not kept.is_in_trouble:
                kept.is_in_trouble = True
                self._reports.append(partial(_log_error, f"Watching the lease on {kept.lease.name!r} failed", error))
            return None

    def _send(self, pulses: list[Pulse]) -> float:
        try:
            return self._heartbeats.send(pulses)
        except RuntimeError as error:  # no more threads are available
            if not self._reports:
                self._reports.extend(partial(pulse.log_failure, error) for pulse in pulses if pulse.is_waiting)
            return local_now() + PAUSE

    def _see_to_reports(self) -> float:
        try:
            return self._reporters.see_to_it(REPORTER_PATIENCE)
        except RuntimeError:  # meanwhile the keeper itself interrupts the bodies
            return local_now() + PAUSE

    # --- in the threads that report

    def _report(self) -> None:
        try:
            report = self._reports.popleft()
        except IndexError:  # another one was faster
            return
        report()


def _log_error(what: str, error: Exception) -> None:
    logger.error("%s.", what, exc_info=error, extra=about(reason=error))


# A forked child has no such thread, and watches no lease of its parent.
_keeper = Keeper()


def _begin_anew() -> None:
    global _keeper  # noqa: PLW0603  (there is one in each process)
    _keeper = Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
