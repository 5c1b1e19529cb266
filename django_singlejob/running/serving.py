"""The process that is an executor: it carries out the orders of its supervisor, one after the other, until there are no
more, or until a run has left something behind. Then it ends as any program does, and as a part of that run."""

import atexit
import contextvars
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence, Set as AbstractSet
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

from django.utils.module_loading import import_string

import django_singlejob
from django_singlejob.conf import options
from django_singlejob.database.errors import interrupt_behind
from django_singlejob.locking.lease import Lease
from django_singlejob.process import program, received_signals
from django_singlejob.process.clock import local_now, sleep, wait
from django_singlejob.process.program import Invitation
from django_singlejob.process.received_signals import NoThread
from django_singlejob.running import order as orders
from django_singlejob.running.body_end import LOST, for_caller, report
from django_singlejob.running.in_child import (
    BodySignals,
    RecordsApart,
    end_own_group,
    exit_at_once,
    grace_of,
    kill_own_group,
    status_after,
    tell_loss,
)
from django_singlejob.running.leftovers import Leftovers
from django_singlejob.running.order import Order, Received, Work
from django_singlejob.running.process import leave_connections, leave_terminal_without_input
from django_singlejob.running.shared import SharedMemory, flush_streams
from django_singlejob.running.waker import Waker

logger = logging.getLogger("django_singlejob")

# What an executor says: the body has begun; the run is over, and it can carry out another order.
BEGUN, FREE = b"b", b"f"
# How long threads that Python waits for may go on after a body that had its grace. Seconds.
_LAST_GRACE = 3.0
# Of Linux: makes this process the parent of what its children leave behind.
_PR_SET_CHILD_SUBREAPER = 36


class _EndOfExecutor(BaseException):
    """Ends this process. A program may catch ``SystemExit``, and go on as if it were the command."""


def serve_if_invited() -> None:
    """Carry out the orders of a supervisor, and exit, if this process is an executor. Otherwise, do nothing."""
    if program.invitation:
        try:
            _Server(program.invitation).serve()
        except SystemExit as why:
            if isinstance(why.code, str):
                sys.stderr.write(f"{why.code}\n")
        sys.excepthook = partial(_excepthook, sys.excepthook)
        # Python now waits for threads, and calls what is registered for its exit: that is still part of the last run.
        raise _EndOfExecutor


def _excepthook(otherwise: Callable[..., object], kind: type[BaseException], *error: Any) -> None:
    if kind is not _EndOfExecutor:
        otherwise(kind, *error)


def serve_as_program(channel: int) -> NoReturn:
    """In a process that a supervisor has forked: carry out its orders, and then end as the program that it is. If none
    comes, this process is not needed, and the supervisor goes on as the program."""
    try:
        server = _Server(Invitation(channel, -1, -1, django_singlejob.__version__), is_program=True)
    except NoThread:  # the supervisor starts another one, or has none either
        os._exit(1)
    server.serve()
    if not server.has_served:
        os._exit(0)
    sys.exit()


# What is closed only with the process: its supervisor would take that for the end.
_kept: list[socket.socket] = []


class _Server:
    """The executor.

    Attributes:
        has_served: whether an order has come.
    """

    def __init__(self, invitation: Invitation, *, is_program: bool = False) -> None:
        if invitation.version != django_singlejob.__version__:
            sys.exit(
                f"This process has django-singlejob {django_singlejob.__version__}, and the one that has started it "
                f"{invitation.version}. Restart that one."
            )
        received_signals.remember_how_children_end()
        leave_terminal_without_input()
        atexit.register(end_own_group)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._channel = socket.socket(fileno=invitation.channel)
        _kept.append(self._channel)
        self._descriptors = {number: _file_of(number) for number in invitation[:3] if int(number) >= 0}
        self._streams = {} if is_program else {1: invitation.stdout, 2: invitation.stderr}
        self._is_program, self.has_served = is_program, False
        self._watch = _LeaseWatch()
        self._memory: SharedMemory | None = None
        self._records = RecordsApart()
        self._leftovers: Leftovers | None = None

    def serve(self) -> None:
        received_signals.attend_to_forks()
        received_signals.handle_all(self._end_unless_told)
        received_signals.unblock()
        for left in reversed(range(options().runs_per_process)):
            received = orders.receive(self._channel)
            if received is None:
                return
            self.has_served, is_last = True, left == 0 or received.order.is_last
            self._carry_out(received, is_last=is_last)
            if is_last or not self._is_free(received.order):
                return

    def _is_free(self, order: Order) -> bool:
        """Whether this process can carry out another order, and says so."""
        if any(_file_of(number) != file for number, file in self._descriptors.items()):
            return False  # the body has closed what was not its own
        leave_connections()
        _flush_everything()
        received_signals.handle_all(self._end_unless_told)
        if self._memory is None or self._memory.reason or self._is_unclean(order):
            if self._memory:
                received_signals.handle_all(_Leaving(self._memory, heeds_any=order.heeds_any_signal))
            return False
        self._be_free()
        return True

    def _is_unclean(self, order: Order) -> bool:
        """Whether the next run needs another process."""
        if left := self._leftovers.found() if self._leftovers else []:
            message = "The last run has left something behind, so this process ends: %s."
            logger.info(message, ", ".join(left), extra=order.grant.facts())
        return bool(left)

    def _be_free(self) -> None:
        for stream, own in self._streams.items():
            os.dup2(own, stream)
        self._records.memory = None
        if self._memory and self._memory.output_waker:
            self._memory.output_waker.close()
        self._watch.end()
        with suppress(OSError):  # nobody is there any more, as the next look for an order will find
            self._channel.send(FREE)

    def _end_unless_told(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal between two runs. One that was meant for the last run may come late."""
        if self._is_program and not self.has_served:
            os._exit(0)
        if self._memory is None or not self._memory.reason:
            sys.exit()

    def _carry_out(self, received: Received, *, is_last: bool) -> None:
        order, memory = received.order, SharedMemory(received.memory)
        self._memory = memory
        self._print_to(received.others, order.streams, memory)
        lease = Lease.of_supervisor(order.grant, memory)
        if (mine := list(orders.database_of_locks())) != list(order.database):
            sys.exit(f"The settings of this process name another database: {mine} instead of {list(order.database)}.")
        work: Work = import_string(order.kind)(order, lease, memory)
        if not (is_last or self._leftovers):
            self._leftovers = _leftovers({*self._streams.values()})  # now that all modules with jobs are imported
        signals = BodySignals(memory, lease, heeds_any=order.heeds_any_signal)
        received_signals.in_force = signals
        received_signals.handle_all(signals.handle)
        if lease.lost or memory.reason or self._is_abandoned():
            sys.exit("It was too late to begin.")
        memory.begun_at = local_now()
        with suppress(OSError):
            self._channel.send(BEGUN)
        self._watch.begin(lease, memory)
        _run(work, memory, lease, signals)
        # Not by way of the default, which would end this process as if the run had failed.
        received_signals.in_force = None
        received_signals.handle_all(_Leaving(memory, heeds_any=order.heeds_any_signal))

    def _is_abandoned(self) -> bool:
        """Whether the supervisor is gone."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _print_to(self, pipes: Sequence[int], streams: int, memory: SharedMemory) -> None:
        """Print what follows to these pipes, if there are any; behind them is what wakes their reader."""
        flush_streams()
        for text in sys.stdout, sys.stderr:
            with suppress(Exception):  # the project may have replaced it
                text.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        if streams:
            os.dup2(pipes[0], 1)
            os.dup2(pipes[streams - 1], 2)
            for pipe in pipes[:streams]:
                os.close(pipe)
            memory.output_waker = Waker(pipes[streams])
            self._records.memory = memory


def _run(work: Work, memory: SharedMemory, lease: Lease, signals: BodySignals) -> None:
    """Call the body, and say how it has ended."""
    pid = os.getpid()
    value, failure = None, None
    try:
        call = partial(signals.call, work.body) if work.is_interruptible else work.body
        value = contextvars.copy_context().run(call)
    except BaseException as error:
        if os.getpid() != pid:
            exit_at_once(status_after(error))  # a process that the body has forked
        failure = for_caller(interrupt_behind(error) or error)
    if os.getpid() != pid:
        exit_at_once()
    report(work.end(value, failure), work.log, memory)
    if not work.is_interruptible:
        received_signals.start_thread(_end_soon, "end")


def _end_soon() -> NoReturn:
    """End this process even if Python waits for threads that do not end. They have had their grace."""
    sleep(_LAST_GRACE)
    exit_at_once()


def _leftovers(ours: AbstractSet[int]) -> Leftovers:
    # The first finalizer registers a hook, and so does this module when a body first needs a pool of processes.
    weakref.finalize(_Server, int).detach()
    import_module("multiprocessing.util")
    return Leftovers(ours)


class _Leaving:
    """Handles signals while the process ends: one that the supervisor has given a reason for ends it at once."""

    def __init__(self, memory: SharedMemory, *, heeds_any: bool) -> None:
        self._memory, self._heeds_any = memory, heeds_any

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._memory.reason == LOST:
            kill_own_group()  # the supervisor may be stopped
        if self._heeds_any or self._memory.reason:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """What the descriptor refers to; ``None``: it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _flush_everything() -> None:
    flush_streams()
    with suppress(Exception):  # what code in C has buffered
        ctypes.CDLL(None).fflush(None)


class _LeaseWatch:
    """Ends this process when the lease of its run is lost. The supervisor does, unless it is stopped. One thread serves
    all runs."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        self._current: tuple[Lease, SharedMemory] | None = None
        received_signals.start_thread(self._watch, "watch over a lease")

    def begin(self, lease: Lease, memory: SharedMemory) -> None:
        self._current = lease, memory
        self._changed.set()

    def end(self) -> None:
        self._current = None

    # --- in the thread

    def _watch(self) -> NoReturn:
        while True:
            self._changed.clear()
            if current := self._current:
                self._look(*current)
            else:
                self._changed.wait()

    def _look(self, lease: Lease, memory: SharedMemory) -> None:
        left = lease.deadline - local_now()
        if left > 0:
            wait(self._changed.wait, min(left, lease.grant.request.lease.total_seconds()))
            return
        if not self._is_of(lease):
            return
        tell_loss(memory)
        wait(self._changed.wait, grace_of(lease))
        if self._is_of(lease) and lease.deadline <= local_now():
            kill_own_group()
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_of(self, lease: Lease) -> bool:
        """Whether the run of this lease is still under way."""
        current = self._current
        return current is not None and current[0] is lease and not lease.is_over
