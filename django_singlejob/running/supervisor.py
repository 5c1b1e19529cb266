"""Has executors run bodies. The supervisor holds their leases, and ends each body when it must.

Its main thread does all that needs the database, see ``wait``. A second thread watches over the children, see
``watch``. What takes several steps, such as the run of a job, is a generator: so the main thread can look after many.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from math import inf
from typing import Self, TypeVar, cast

from django_singlejob.conf import options
from django_singlejob.database import transactions
from django_singlejob.exceptions import JobDied
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LONGEST_INTERVAL
from django_singlejob.process import messages, received_signals
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.code import Code
from django_singlejob.process.escaping import printable
from django_singlejob.process.progress import LINE_LENGTH
from django_singlejob.process.received_signals import ENDING_SIGNALS, blocked_signals, is_shutdown_requested
from django_singlejob.running.body_end import LOST, STOPPED, exception_for, for_caller, reported
from django_singlejob.running.executor import Executor, ExecutorRun, Executors, NotBegun
from django_singlejob.running.guarded import GuardedRuns
from django_singlejob.running.order import Order
from django_singlejob.running.output import Output, Printer, output_of
from django_singlejob.running.process import how_it_ended, is_stopped_by_terminal
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.waker import Waker, wait_for
from django_singlejob.running.watch import DAY, LAST_WORDS, Child, ChildWatch, Running

logger = logging.getLogger("django_singlejob")

T = TypeVar("T")
#: Goes on when a child is over, or after this number of seconds.
Steps = Generator[Child | float, None, T]

# Where the system cannot tell when a child ends, this is how often the supervisor looks. Seconds.
NAP = 0.05
# How often the supervisor looks whether receivers get on. Seconds.
_MOMENT = 1.0


def can_supervise() -> bool:
    """Whether this process can have another one run a body: not in a thread, and not if the other one would not see
    what this one has written."""
    return (
        hasattr(os, "waitid")
        and threading.current_thread() is threading.main_thread()
        and not transactions.is_private(transactions.alias())
    )


class Supervisor:
    """The children of this process, and the leases that it renews. Use it as a context manager, in the main thread.

    Attributes:
        patience: how long the children may go on after a signal. ``None``: they get it at once, and may take their time
            to clean up.
        waker: ends a wait of ``wait``.
    """

    def __init__(
        self,
        patience: timedelta | None = None,
        *,
        first: Executor | None = None,
        has_one_run: bool = True,
        has_terminal: bool = True,
        printer: Printer | None = None,
        touch: Callable[[], float] = lambda: inf,
        last: Callable[[], object] = lambda: None,
    ) -> None:
        """``first``: an executor that waits for an order already. ``has_one_run``: whether it gives only one.

        ``printer`` is for what the children print. ``touch`` is called before each wait, and returns by when to call
        it again, a value of ``local_now()``. ``last`` is called if the main thread hangs, and the process ends."""
        self.patience = patience
        self.has_one_run = has_one_run
        self._printer = printer or Printer()
        self._touch = touch
        self.waker = Waker()
        self._has_terminal = has_terminal
        self._watch = ChildWatch(self.waker, last)
        # Each with whether its lease is renewed only for it.
        self._children: dict[Child, bool] = {}
        self._heartbeats = Heartbeats(self._watch.wake)
        self._executors = Executors(first, has_terminal=has_terminal)
        self._guarded = GuardedRuns()
        self._code = Code()
        self._life = ExitStack()

    def __enter__(self) -> Self:
        self._life.enter_context(self._watch)
        return self

    def __exit__(self, *error: object) -> None:
        """Kill the children that are left."""
        for child in list(self._children):
            self.collect(child)
            self.let_go(child)
        self._executors.close()
        self._guarded.close()
        self._end_receivers()
        self._life.close()
        self.waker.close()

    def _end_receivers(self) -> None:
        """Wait until all receivers have returned. The watch ends this process if that takes too long."""
        self._watch.awaited = messages.receivers.thread if messages.receivers.is_busy else None
        while not messages.receivers.end(local_now(), local_now() + _MOMENT):
            self._watch.busy_since = max(self._watch.busy_since, messages.receivers.moved_at)
        self._watch.awaited = None

    def start(
        self,
        lease: Lease,
        memory: SharedMemory,
        begin: Callable[[], Running],
        *,
        child: Callable[..., Child] = Child,
        output: Output | None = None,
    ) -> Child:
        """Have ``begin`` start a process that is a body, with the lease's state in ``memory``, and renew the lease.
        ``output`` passes on what it prints.

        Raises ``JobInterrupted`` if a signal had come before, unless there is patience; ``OSError`` if the process, or
        its guard, cannot be started; ``JobDied`` if it has begun, but nothing can watch over it.
        """
        try:
            with blocked_signals():
                if received_signals.in_force and self.patience is None:
                    received_signals.in_force.raise_remembered()
                self._guarded.prepare()
                memory.begun_at = local_now()
                process = begin()
                try:
                    started = self._add(lease, memory, partial(child, process))
                except OSError as error:
                    process.kill()
                    process.collect()
                    # It may have done something, so it is not one that has not begun.
                    raise JobDied(f"It was killed as it began, because nothing could watch over it: {error}") from error
        finally:
            memory.close_descriptor()
            if output:
                output.let_go()
        self._heartbeats.add(lease)
        return started

    def _add(self, lease: Lease, memory: SharedMemory, child: Callable[..., Child]) -> Child:
        """Watch over a child that has begun, or will. Raises ``OSError`` if there are too many open files."""
        lease.share(memory)
        added = child(lease, memory, patience=self.patience)
        self._guarded.add(added)
        self._children[added] = lease not in self._heartbeats
        self._watch.add(added)
        return added

    def note_code(self) -> None:
        """Take note of the code as it is, for ``is_outdated``."""
        self._code.has_changed()

    @property
    def is_outdated(self) -> bool:
        """Whether the next order would need a new executor, and that would not be this program any more: its code has
        changed."""
        return not self._executors.has_one and self._code.has_changed()

    def order(
        self,
        lease: Lease,
        order: Order,
        memory: SharedMemory,
        *,
        child: type[Child] = Child,
        output: Output | None = None,
    ) -> Child:
        """Have an executor carry out the order, with the lease's state in ``memory``, and renew the lease. ``output``
        passes on what it prints.

        Raises ``NotBegun`` if there is no executor to be had, or if a signal had come before, unless there is patience.
        """
        try:
            if self.patience is None and is_shutdown_requested():
                raise NotBegun("A signal had come before.", is_by_signal=True)
            self._guarded.prepare()
            executor = self._executors.take(output)  # first, because it inherits which signals are blocked
            with blocked_signals(), ExitStack() as undone:
                undone.callback(self._executors.put_back, executor)
                started = self._add(lease, memory, partial(child, ExecutorRun(executor)))
                undone.callback(self.let_go, started)
                executor.order(order, memory, output)
                undone.pop_all()
        except OSError as error:
            raise NotBegun(f"No process could be started for it: {error}") from error
        finally:
            memory.close_descriptor()
            if output:
                output.let_go()
        self._heartbeats.add(lease)
        return started

    def output(self, title: str, memory: SharedMemory, *, is_command: bool = False) -> Output | None:
        """How to pass on and keep what a child will print, see ``output_of``."""
        return output_of(self._printer, title, memory, has_terminal=self._has_terminal, is_command=is_command)

    def collect(self, child: Child) -> int | None:
        """Kill the child, and what it has left behind, while the process group cannot be another's. Returns its exit
        code, see ``Process.collect``. Its lease is renewed until ``let_go``."""
        child.process.kill()
        self._guarded.remove(child)
        code = child.process.collect()
        child.memory.is_only_writer = False
        if isinstance(child.process, ExecutorRun) and child.process.is_executor_free:
            self._executors.put_back(child.process.executor)
        return code

    def _reap(self) -> None:
        """Collect what children have left behind. As process 1 of a container, this process is the parent of that."""
        ours = {child.process.pid for child in self._children} | self._executors.pids | self._guarded.pids
        with suppress(ChildProcessError):
            while (over := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and over.si_pid not in ours:
                os.waitpid(over.si_pid, 0)

    def _tell_of_terminal(self) -> None:
        """Say, once of each, which children a terminal has stopped."""
        for child in self._children:
            if not child.is_terminal_told and is_stopped_by_terminal(child.process.pid):
                child.is_terminal_told = True
                message = (
                    "%r was stopped by its terminal, which it reads or changes in the background, and keeps its lock "
                    "until it is ended. Start it without a terminal: with < /dev/null, or by setsid."
                )
                logger.warning(message, child.lease.name, extra=child.lease.grant.facts())

    def let_go(self, child: Child) -> None:
        """Watch over the child, and renew its lease, no longer."""
        self._guarded.remove(child)
        self._watch.remove(child)
        if self._children.pop(child, False):
            self._heartbeats.remove(child.lease)

    def end_within(self, patience: timedelta) -> None:
        """End all children, as after a signal, with that much patience."""
        self._watch.end_within(patience)

    @contextmanager
    def renewing(self, lease: Lease) -> Iterator[None]:
        """Renew a lease that has no child."""
        self._heartbeats.add(lease)
        try:
            yield
        finally:
            self._heartbeats.remove(lease)

    # --- waiting

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry out all steps, and return their value."""
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return cast("T", end.value)
            self.wait_until(
                self.wait_for_child if isinstance(step, Child) else _never, step if isinstance(step, float) else DAY
            )

    def wait(self, seconds: float) -> bool:
        """Renew all leases until a child is over, or until somebody wakes this process. Returns ``False`` if
        ``seconds`` pass without that."""
        return self.wait_until(self.wait_for_child, seconds)

    def pause(self, seconds: float) -> bool:
        """Renew all leases for ``seconds``. Returns ``False`` if the patience after a signal is over."""
        self.wait_until(_never, seconds)
        return not self._watch.is_over_after(self.patience)

    def wait_for_child(self, timeout: float) -> bool:
        """Wait until a child is over, or somebody wakes this process. Returns ``False`` if ``timeout`` seconds pass
        without that."""
        descriptors = [each for child in self._children for each in child.process.descriptors]
        ready = wait_for(
            [self.waker.descriptor, *self._guarded.descriptors, *(each for each in descriptors if each is not None)],
            min(timeout, NAP) if None in descriptors else timeout,
        )
        self.waker.taken()
        return bool(ready) or (None in descriptors and any(child.process.is_over() for child in self._children))

    def wait_until(self, wait: Callable[[float], bool], seconds: float) -> bool:
        """Renew all leases until ``wait``, which waits for at most the seconds that it is passed, returns ``True``.
        Returns ``False`` if ``seconds`` pass without that."""
        end, given = local_now() + seconds, options()
        # Nothing that others do should take longer than the time between two heartbeats.
        longest_wait = min(given.lease / given.heartbeats_per_lease, LONGEST_INTERVAL).total_seconds()
        while True:
            self._heartbeats.beat()  # first, so that the leases are renewed however much there is to do
            if os.getpid() == 1:
                self._reap()
            self._tell_of_terminal()
            tended = self._touch(), self._executors.tidy(), self._guarded.tend(), messages.look(longest_wait)
            next_at = min(end, self._heartbeats.next_at, *tended)
            self._watch.busy_since = inf
            try:
                if wait(max(0.0, next_at - local_now())):
                    return True
            finally:
                self._watch.busy_since = local_now()
            if local_now() >= end:
                return False


def _never(timeout: float) -> bool:
    sleep(timeout)
    return False


def passed_on(output: Output | None, child: Child) -> Iterator[Child]:
    """Pass on what the child, which is over, has printed, until that is done; not for long once it has to end. Each
    step is a moment."""
    seconds, give_up_at = NAP, inf
    while output and not output.end(seconds) and local_now() < give_up_at:
        if child.has_killed or child.memory.reason:
            give_up_at = min(give_up_at, local_now() + LAST_WORDS)
        seconds = 0.0
        yield child


def order_steps(
    supervisor: Supervisor,
    lease: Lease,
    memory: SharedMemory,
    output: Output | None,
    order: Order,
    begun: Callable[[], object],
) -> Steps[Ending]:
    """Have an executor carry out the order under the lease, and return how its body ended. ``begun`` is called when the
    body has begun.

    Raises ``NotBegun`` if it has not and never will; ``JobDied``,
    ``LeaseLost``, ``JobTimeout``, ``JobStopped`` or ``JobInterrupted`` if the body ended without a word.
    """
    child = supervisor.order(lease, order, memory, output=output)
    is_told = False
    try:
        try:
            while not child.process.is_over():
                if memory.begun_at and not is_told:
                    is_told = True
                    begun()
                yield child
        finally:
            code = supervisor.collect(child)
        has_killed, reason = child.has_killed, memory.reason
        yield from passed_on(output, child)
    finally:
        supervisor.let_go(child)
    if not memory.begun_at:
        raise _not_begun(child, code)
    if not is_told:
        begun()
    return _ended(child, code, reason, has_killed=has_killed)


def _ended(child: Child, code: int | None, reason: int, *, has_killed: bool) -> Ending:
    """How the body of a child that is over has ended. Raises why, if the child has not said it."""
    lease, memory = child.lease, child.memory
    # What was too slow in the child, such as a handler that waits for a mail server, would be too slow here.
    is_logged = memory.has_logged or has_killed
    ended = reported(memory, is_logged=is_logged)
    was_killed = has_killed if code is None else code < 0
    # If it was killed after a success, it has left threads behind, which had not ended.
    if ended and (ended.failure or not was_killed):
        return ended
    signum = -code if code else signal.SIGKILL
    if has_killed or reason == LOST or signum in ENDING_SIGNALS:
        failure = for_caller(exception_for(reason or signum, lease))
    else:
        failure = JobDied(f"Its process {how_it_ended(code)}{'' if was_killed else ' before the job had ended'}.")
    raise failure


def _not_begun(child: Child, code: int | None) -> BaseException:
    """Why the body of a child that is over has not begun. A user who has stopped it meanwhile does not want it to begin
    later."""
    if child.memory.reason == STOPPED:
        return for_caller(exception_for(STOPPED, child.lease))
    words = printable(child.lease.progress.line, LINE_LENGTH)
    why = f"Its process {how_it_ended(code)} before that{f': {words}' if words else '.'}"
    is_by_signal = child.memory.reason in ENDING_SIGNALS or (child.signum is not None and child.patience is None)
    was_idle = isinstance(child.process, ExecutorRun) and child.process.was_idle and not child.memory.reason
    return NotBegun(why, was_idle=was_idle and not is_by_signal, is_by_signal=is_by_signal)
