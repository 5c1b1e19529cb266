"""The thread that ends children in time. It waits for nothing but signals and the clock: so a driver that hangs hides
nothing, and a body is over before anybody else may begin, whatever it is doing.

A body first gets a signal, which raises an exception in it, and then SIGKILL.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Protocol, Self

from django_singlejob.conf import ZERO
from django_singlejob.locking.lease import Lease
from django_singlejob.process import messages
from django_singlejob.process.clock import local_now, wait
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import ENDING_SIGNALS, SECOND_SIGNAL, start_thread
from django_singlejob.running.body_end import LOST, STOPPED, TIMEOUT
from django_singlejob.running.in_child import grace_of
from django_singlejob.running.process import is_stopped_by_terminal
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.waker import Waker, wait_for

logger = logging.getLogger("django_singlejob")

# Seconds between a second signal, or the end of the patience with it, and SIGKILL.
LAST_GRACE = 3.0
# A wait that is as good as endless.
DAY = 86_400.0
# How many seconds a process may take until the body begins, and how soon to look again whether it has.
LONGEST_START, NAP = 120.0, 0.1
# Seconds for the main thread to record the end of a child that was killed.
RECORDING = 1.0
# If the main thread of a supervisor works for this many seconds without a wait, it hangs, and keeps no lease.
LONGEST_CALL = 120.0
# The last message may delay the exit for this long, if nothing reads it. Seconds.
LAST_WORDS = 0.5
# The exit status without a signal, of sysexits.h: the database is unreachable.
EX_UNAVAILABLE = 69


class Running(Protocol):
    """A process that runs a body, or will: one that was forked, or an executor."""

    @property
    def pid(self) -> int: ...

    @property
    def descriptors(self) -> list[int | None]:
        """Are ready to be read when something has happened to it; ``None``: the system cannot tell."""

    def send(self, signum: int) -> None:
        """Send a signal to it alone. Raises ``ProcessLookupError`` or ``PermissionError`` if that fails."""

    def kill(self) -> None:
        """Kill it, and what it has started."""

    def is_over(self) -> bool:
        """Whether the body is over, and what it has left behind in the process, too."""

    def collect(self) -> int | None:
        """Wait for that. Returns the exit code of the process; -n if signal n has killed it, ``None`` if that is
        unknown."""


class Child:
    """A child process that runs a body under a lease, and when it has to end.

    Attributes:
        signum: the last signal that has come for it; ``None`` if none has.
        has_killed: whether it was killed.
        is_terminal_told: whether it was said that a terminal has stopped it.
        patience: how long a first signal waits before it is passed on. ``None``: it does not wait, and the child may
            take its time to clean up, until there is a second one.
        last_grace: how many seconds after such a wait it is killed.
    """

    #: The signals of which a second one kills. A job may take SIGHUP for "read the configuration again".
    insistent = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})

    def __init__(
        self,
        process: Running,
        lease: Lease,
        memory: SharedMemory,
        *,
        patience: timedelta | None = None,
    ) -> None:
        self.process, self.lease, self.memory = process, lease, memory
        self.grace = grace_of(lease)
        self.signum: int | None = None
        self.has_killed = self.is_terminal_told = False
        self.last_grace = LAST_GRACE
        self.patience = patience
        self._is_timeout_told = False
        self._begin_by = local_now() + LONGEST_START
        self._pass_on_at = self._kill_at = self._kill_for_loss_at = float("inf")
        self._is_loss_told = self._is_stop_told = False
        self._first_signal_at = float("inf")

    def end_within(self, patience: timedelta) -> None:
        """End the child as after a signal, with that much patience. A signal that comes later is still the first."""
        self.signum = signal.SIGTERM
        pass_on_at = min(self._pass_on_at, local_now() + patience.total_seconds())
        self.kill_by(pass_on_at + self.last_grace)
        self._pass_on_at = pass_on_at

    def kill_by(self, instant: float) -> None:
        """Kill the child at this instant, a value of ``local_now()``, unless it has ended by then."""
        self._kill_at = min(self._kill_at, instant)

    # --- in the watch's thread

    @property
    def next_at(self) -> float:
        """When there is something to do."""
        deadline = float("inf") if self._is_loss_told or self.lease.is_over else self.lease.deadline
        instants = deadline, self._timeout_at, self._look_again_at, self._pass_on_at
        return min(*instants, self._kill_at, self._kill_for_loss_at)

    @property
    def _timeout_at(self) -> float:
        """When the ``max_runtime`` is over, which counts from the beginning of the body."""
        begun_at = self.memory.begun_at
        return begun_at + self.lease.max_runtime if begun_at and not self._is_timeout_told else float("inf")

    @property
    def _look_again_at(self) -> float:
        """When to look again whether the body has begun."""
        if self.memory.begun_at:
            return float("inf")
        return self._begin_by if self.lease.max_runtime == float("inf") else local_now() + NAP

    def receive(self, signum: int, now: float) -> None:
        """Pass on a signal that has come, once the patience with the child is over. A second one, not of the same
        burst, ends it at once."""
        self.signum, is_second = signum, False
        if signum in self.insistent:
            self._first_signal_at = min(self._first_signal_at, now)
            is_second = now - self._first_signal_at >= SECOND_SIGNAL
        waits = ZERO if is_second or self.patience is None else self.patience
        pass_on_at = min(self._pass_on_at, now + waits.total_seconds())
        self.limit_after_signal(pass_on_at, is_second=is_second)
        self._pass_on_at = pass_on_at

    def limit_after_signal(self, pass_on_at: float, *, is_second: bool) -> None:
        """Decide by when to kill the child after a signal that is passed on at that instant."""
        if is_second:
            self.kill_by(pass_on_at + LAST_GRACE)
        elif self.patience is not None:
            self.kill_by(pass_on_at + self.last_grace)

    def look(self, now: float) -> None:
        """Do what it is time for."""
        if now >= self._pass_on_at and self.signum:
            self._pass_on_at, self.memory.reason = float("inf"), self.signum
            self._send(self.signum)
        if not self.memory.begun_at and now >= self._begin_by:
            self._begin_by = float("inf")
            self.kill_by(now)
        if now >= self._timeout_at:
            self._is_timeout_told = True
            self._end(TIMEOUT)
            self.kill_by(now + self.grace)
        if self.lease.stopped_by and not self._is_stop_told:
            self._is_stop_told = True
            self._end(STOPPED)
            self.kill_by(now + self.grace)
        self._look_at_lease(now)
        if now >= min(self._kill_at, self._kill_for_loss_at):
            self._kill_at = self._kill_for_loss_at = float("inf")
            self.has_killed = True
            self.process.kill()

    def _look_at_lease(self, now: float) -> None:
        is_lost = self.lease.lost and not self.lease.is_over
        if is_lost and not self._is_loss_told:
            self._end(LOST)
            self._kill_for_loss_at = now + self.grace
        elif not is_lost:
            self._kill_for_loss_at = float("inf")  # a late heartbeat got through, so nobody else can begin
        self._is_loss_told = is_lost

    def _end(self, reason: int) -> None:
        self.memory.reason = reason
        self._send(signal.SIGTERM)

    def _send(self, signum: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the latter for example of sudo
            self.process.send(signum)
            if is_stopped_by_terminal(self.process.pid):  # it would not hear of it
                self.process.send(signal.SIGCONT)


class ChildWatch:
    """Watches over the children of this process. Use it as a context manager, in the main thread."""

    def __init__(self, woken: Waker, last: Callable[[], object]) -> None:
        """``last`` is called if the main thread hangs, and the process ends."""
        # A dict, because the main thread adds to it and takes from it at any time.
        self._children: dict[Child, None] = {}
        #: Is woken when a signal has come.
        self._woken = woken
        self._last = last
        #: The thread that the main thread waits for; ``None`` if it does not.
        self.awaited: threading.Thread | None = None
        #: Since when the main thread has not waited; infinite while it waits.
        self.busy_since = float("inf")
        self._signum: int | None = None
        self._first_at = self._second_at = float("inf")
        # When the patience of ``end_within`` is over.
        self._ends_at = float("inf")
        self._is_over = False
        self._former = -1

    def __enter__(self) -> Self:
        self._waker = Waker()
        self.busy_since = local_now()
        self._thread = start_thread(self._run, "watch over jobs")
        self._former = signal.set_wakeup_fd(self._waker.writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *error: object) -> None:
        """Send nothing to any child any more."""
        self._is_over = True
        self.wake()
        self._thread.join()
        signal.set_wakeup_fd(self._former)
        self._waker.close()

    def add(self, child: Child) -> None:
        """Watch over this one too."""
        self._children[child] = None
        if self._signum:  # looked at last, because the thread sets it first
            child.receive(self._signum, local_now())
        self.wake()

    def remove(self, child: Child) -> None:
        """Send nothing to it any more."""
        self._children.pop(child, None)

    def end_within(self, patience: timedelta) -> None:
        """End all children, as after a signal, with that much patience."""
        self._ends_at = local_now() + patience.total_seconds()
        for child in list(self._children):
            child.end_within(patience)
        self.wake()

    def is_over_after(self, patience: timedelta | None) -> bool:
        """Whether everything should have ended by now, with that much patience after a signal."""
        ends_at = float("inf") if patience is None else self._first_at + patience.total_seconds()
        return local_now() >= min(ends_at, self._ends_at)

    def wake(self) -> None:
        """Have the thread look at the children."""
        self._waker.wake()

    # --- in the thread

    def _run(self) -> None:
        while not self._is_over:
            signums = self._hear()
            now = local_now()
            self._note(signums, now)
            for child in list(self._children):
                for signum in signums:
                    child.receive(signum, now)
                child.look(now)
            if signums:
                self._woken.wake()
            if now >= self._gives_up_at:
                self._end_process()

    def _note(self, signums: list[int], now: float) -> None:
        for signum in signums:
            self._signum = signum
            if signum in Child.insistent:
                self._first_at = min(self._first_at, now)
                if now - self._first_at >= SECOND_SIGNAL:
                    self._second_at = min(self._second_at, now)

    @property
    def _gives_up_at(self) -> float:
        """When this process ends if its main thread does not come back: a call to a database may never return."""
        # Children were killed by then, and there is some time to record that.
        after_second = max(self._second_at, self.busy_since) + LAST_GRACE + RECORDING
        return min(after_second, self.busy_since + LONGEST_CALL)

    def _end_process(self) -> None:
        # Not logged in this thread: the main thread may hold a lock that logging needs.
        what = messages.doing(self.awaited or threading.main_thread())
        log = partial(_log_end, what, self._last, has_signal=self._second_at < float("inf"))
        writer = start_thread(log, "last words")
        wait(writer.join, LAST_WORDS)
        for child in list(self._children):
            child.process.kill()
        os._exit(128 + self._signum if self._signum else EX_UNAVAILABLE)

    def _hear(self) -> list[int]:
        """The signals that have come by now. Waits until there may be something to do."""
        next_at = min([self._gives_up_at, *(child.next_at for child in list(self._children))])
        ready = wait_for([self._waker.descriptor], min(next_at - local_now(), DAY))
        signums = self._waker.taken().strip(b"\0") if ready else b""
        if signums and self._former != -1:
            with suppress(OSError):
                os.write(self._former, signums)
        return [signum for signum in signums if signum in ENDING_SIGNALS]


def _log_end(what: str, last: Callable[[], object], *, has_signal: bool) -> None:
    last()
    when = "After a second signal" if has_signal else f"For {LONGEST_CALL:.0f} seconds"
    message = (
        "%s, %s did not return, so the process ends. If it was a COMMIT, its outcome is unknown. "
        "A lock that was not released is left to expire."
    )
    logger.error(message, when, what, extra=about())
    messages.end()
