"""A shell command that runs under a lock, with all processes that it starts, as with ``flock(1)``.

It is the child of a supervisor, like a job. But the processes that it leaves behind hold its lock too: nobody kills
them, until a signal comes or the lease is lost.
"""

import errno
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, cast

from django_singlejob.exceptions import JobDied, JobInterrupted, SingleJobError
from django_singlejob.locking.lease import Lease
from django_singlejob.process import messages, received_signals
from django_singlejob.process.clock import local_now
from django_singlejob.process.received_signals import ENDING_SIGNALS
from django_singlejob.running.body_end import LOST, STOPPED, TIMEOUT, exception_for, for_caller
from django_singlejob.running.descendants import Group, Pipe
from django_singlejob.running.executor import NotBegun
from django_singlejob.running.in_child import die_with
from django_singlejob.running.output import Output
from django_singlejob.running.process import Process, leave_connections, leave_terminal_without_input
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.supervisor import Steps, Supervisor, passed_on
from django_singlejob.running.watch import LAST_WORDS, Child

# The exit statuses that a shell uses.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
# The exit status for one that cannot be known.
UNKNOWN = 1
# The system has no room for another process, or another open file.
_NO_RESOURCES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}

# A terminal sends these to all that run in its foreground.
_SENT_BY_TERMINAL = (signal.SIGINT, signal.SIGQUIT)

# How many seconds what the command has left behind runs on before the user hears of it.
TICK = 1.0

LEFT_BEHIND = (
    "The command has exited, but processes that it started are still running. The lock is held until they exit (see "
    "--close of run_singleton)."
)
OUT_OF_REACH = (
    "Processes that the command started are still running and cannot be killed from here. The lock is held until they "
    "exit."
)
UNLOCKED = "Processes that the command started are still running, without the lock."


class CommandFailed(SingleJobError):
    """The command did not exit with status 0. ``status`` is the one that a shell would report."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.status)


class ShellCommand:
    """The words of a command.

    Attributes:
        notify: called with messages for the user while the command runs.
        is_alone: whether only the command itself holds the lock, and not the processes that it leaves behind.
        has_input: whether it reads what this program may read.
        status: the exit status that a shell would report, once it has ended.
    """

    def __init__(
        self, words: Sequence[str], notify: Callable[[str], object], *, is_alone: bool = False, has_input: bool = True
    ) -> None:
        self.words, self.notify, self.is_alone, self.has_input = list(words), notify, is_alone, has_input
        self.status = 0

    def __call__(self) -> None:
        """Run it where it has no supervisor. What it leaves behind does not hold the lock."""
        try:
            popen = subprocess.Popen(self.words, stdin=None if self.has_input else subprocess.DEVNULL)
        except OSError as error:
            raise _not_started(error) from error
        process = Process(popen.pid, popen)  # subprocess itself takes a status that it does not get for 0
        try:
            code = process.collect()
        except BaseException:
            process.kill()
            process.collect()
            raise
        self.end(code)

    def end(self, code: int | None) -> None:
        """Take note of its exit code. Raises ``CommandFailed`` unless that is 0. ``None``: it is unknown."""
        if code is None:
            self.status = UNKNOWN
            raise CommandFailed(
                "The exit status of the command is unknown: this program ignores SIGCHLD, or has collected the status "
                "itself. Remove what does that.",
                UNKNOWN,
            )
        self.status = code if code >= 0 else 128 - code
        if self.status:
            raise CommandFailed(f"The command exited with status {self.status}.", self.status)


def _not_started(error: OSError) -> CommandFailed:
    if isinstance(error, FileNotFoundError):
        return CommandFailed(f"The command was not found: {error}", NOT_FOUND)
    return CommandFailed(f"The command cannot be executed: {error}", NOT_EXECUTABLE)


def _not_found(name: str) -> CommandFailed:
    return _not_started(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name))


def command_steps(
    supervisor: Supervisor,
    lease: Lease,
    command: ShellCommand,
    memory: SharedMemory,
    output: Output | None,
    begun: Callable[[], object],
) -> Steps[None]:
    """Run the command under the lease, and wait for all processes that hold its lock. ``output`` passes on what they
    print. ``begun`` is called when it has begun.

    Raises ``CommandFailed`` if it did not succeed; ``JobInterrupted``, ``JobStopped``, ``JobTimeout`` or ``LeaseLost``
    if that was why;
    ``NotBegun`` if the system cannot start a process.
    """
    with ExitStack() as block:
        try:
            pipe = None if command.is_alone else block.enter_context(closing(Pipe()))
            begin = partial(_CommandProcess, command, pipe, output)
            try:
                child = supervisor.start(lease, memory, begin, child=_CommandChild, output=output)
            finally:
                if pipe:
                    pipe.let_go()
        except OSError as error:
            raise NotBegun(f"No process could be started for it: {error}") from error
        except (CommandFailed, JobDied):
            begun()
            raise
        begun()
        yield from _CommandRun(supervisor, command, cast("_CommandChild", child), pipe, output).steps()


class _CommandRun:
    """Looks after one command, and then after what it has left behind."""

    def __init__(
        self,
        supervisor: Supervisor,
        command: ShellCommand,
        child: "_CommandChild",
        pipe: Pipe | None,
        output: Output | None,
    ) -> None:
        self._supervisor, self._command, self._child, self._pipe = supervisor, command, child, pipe
        self._memory, self._output = child.memory, output
        self._process = cast("_CommandProcess", child.process)
        # What is said to the user about what was left behind, and when.
        self._notice, self._notice_at = "", 0.0

    def steps(self) -> Steps[None]:
        """Raises how it ended, unless it succeeded."""
        try:
            code, was_signalled = yield from self._wait()
            failure = self._failure(code, is_cut_short=self._child.has_killed or not was_signalled)
            yield from passed_on(self._output, self._child)
        finally:
            self._supervisor.let_go(self._child)
        if failure:
            raise failure

    def _wait(self) -> Steps[tuple[int | None, bool]]:
        """Wait until the lock is free. Returns the command's exit code, see ``Process.collect``, and whether a signal
        had come by its end."""
        try:
            while not self._process.is_over():
                yield self._child
            was_signalled = self._child.signum is not None
            code = self._process.collect()
            self._child.limit()
            while not self._is_lock_free():
                yield self._child
        except BaseException:
            self._process.kill()
            raise
        return code, was_signalled

    def _is_lock_free(self) -> bool:
        """Whether no process holds the lock any more, or waiting for one would protect nothing."""
        is_ending = bool(self._memory.reason) and not self._child.has_killed
        if self._pipe is None:
            if self._memory.reason == LOST:
                self._process.kill()
            return True
        if self._pipe.is_at_end():  # which a process in its group may have closed
            return not is_ending or self._process.is_group_empty()
        return not is_ending and self._is_told()

    def _is_told(self) -> bool:
        """Tell the user about a process that goes on. Returns whether it goes on without the lock."""
        has_lost = self._child.has_killed and self._memory.reason == LOST
        notice = UNLOCKED if has_lost else OUT_OF_REACH if self._child.has_killed else LEFT_BEHIND
        if notice != self._notice:
            self._notice, self._notice_at = notice, local_now() + TICK
        if local_now() < self._notice_at:
            return False
        self._notice_at = float("inf")
        self._command.notify(notice)
        return has_lost

    def _failure(self, code: int | None, *, is_cut_short: bool) -> BaseException | None:
        signum = self._child.signum
        try:
            self._command.end(code)
        except CommandFailed as failure:
            if not self._memory.reason:
                return failure
        if self._memory.reason in (LOST, STOPPED, TIMEOUT):
            return for_caller(exception_for(self._memory.reason, self._child.lease))
        return JobInterrupted(signum) if signum and (self._command.status or is_cut_short) else None


class _CommandProcess(Process):
    """The command, and what it has started in its process group. One that may read from a terminal stays in the
    terminal's."""

    def __init__(self, command: ShellCommand, pipe: Pipe | None, output: Output | None) -> None:
        """Start it. It holds ``pipe``, and prints to ``output``. Raises ``CommandFailed`` if it cannot be executed, and
        ``OSError`` if the system cannot start it."""
        leads_group = not (command.has_input and os.isatty(0))
        popen = _started(command, pipe, output, leads_group=leads_group)
        super().__init__(popen.pid, popen)
        self._group = Group(self.pid) if leads_group else None

    @property
    def descriptors(self) -> list[int | None]:
        """When it has ended, nothing tells what its descendants do."""
        return [None] if self._is_collected else super().descriptors

    def send(self, signum: int) -> None:
        """Send a signal to its group, and to the command if it has left that. At a terminal, which has sent SIGINT
        or SIGQUIT already, to the command alone."""
        is_sent_alone = self._has_left_group() if self._group else signum not in _SENT_BY_TERMINAL
        if is_sent_alone:
            super().send(signum)
        if self._group:
            self._group.send(signum)

    def _has_left_group(self) -> bool:
        """Whether the command itself has moved to another group."""
        with self._mutex, suppress(ProcessLookupError, PermissionError):
            return not self._is_collected and os.getpgid(self.pid) != self.pid
        return False

    def kill(self) -> None:
        """The same, and after ``collect``, what is left in its group."""
        super().kill()
        if self._group:
            with suppress(ProcessLookupError, PermissionError):
                self._group.send(signal.SIGKILL)

    def is_group_empty(self) -> bool:
        """Whether nothing is left in its group. Call this after ``collect``."""
        return self._group is None or self._group.is_empty()


def _started(
    command: ShellCommand, pipe: Pipe | None, output: Output | None, *, leads_group: bool
) -> "subprocess.Popen[bytes]":
    words = command.words
    if not words[0]:  # each folder in PATH would have it
        raise _not_found(words[0])
    messages.drain(LAST_WORDS)  # before what it prints
    leave_connections()  # MySQL's would be inherited
    printed = output.descriptors if output else [None]
    with warnings.catch_warnings():
        # Python warns of other threads. What it calls in the child only calls the system.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return subprocess.Popen(
                words,
                stdin=None if command.has_input else subprocess.DEVNULL,
                stdout=printed[0],
                stderr=printed[-1],
                close_fds=False,  # it has what this program has inherited
                process_group=0 if leads_group else None,
                preexec_fn=partial(_prepare, os.getpid(), pipe),  # noqa: PLW1509  (it takes no lock)
            )
        except ValueError:  # no program has such a name
            raise _not_found(words[0]) from None
        except OSError as error:
            if error.errno in _NO_RESOURCES:
                raise
            raise _not_started(error) from error


def _prepare(supervisor: int, pipe: Pipe | None) -> None:
    """In the process that becomes the command."""
    signal.set_wakeup_fd(-1)  # it is the supervisor's
    die_with(supervisor)  # the guard does not know it yet
    if pipe:
        os.set_inheritable(pipe.write, True)
    leave_terminal_without_input()
    received_signals.handle_all(signal.SIG_DFL)
    received_signals.unblock()


class _CommandChild(Child):
    """A command may take its time after any signal, but not in a worker, which has to end. What it has left behind has
    the grace."""

    insistent = frozenset(ENDING_SIGNALS)
    _is_limited = False

    def limit(self) -> None:
        """Have signals end what is left, now that the command itself has ended."""
        self._is_limited = True
        if self.signum:
            told_at = local_now() if self._pass_on_at == float("inf") else self._pass_on_at
            self.kill_by(told_at + self.grace)

    def limit_after_signal(self, pass_on_at: float, *, is_second: bool) -> None:
        if self.patience is not None:
            super().limit_after_signal(pass_on_at, is_second=is_second)
        if self._is_limited:
            self.kill_by(pass_on_at if is_second else pass_on_at + self.grace)
