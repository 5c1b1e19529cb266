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
from typing import cast

from django_singlejob.exceptions import JobDied, JobInterrupted, JobStopped, LeaseLost, SingleJobError
from django_singlejob.locking.lease import Lease
from django_singlejob.process import received_signals
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.received_signals import ENDING_SIGNALS
from django_singlejob.running.descendants import Group, Pipe
from django_singlejob.running.executor import NotBegun
from django_singlejob.running.in_child import LOST, STOPPED, die_with
from django_singlejob.running.output import Output
from django_singlejob.running.process import Process, leave_connections
from django_singlejob.running.shared import SharedMemory, flush_streams
from django_singlejob.running.supervisor import NAP, Supervisor, passed_on
from django_singlejob.running.watch import DAY, Child

# The exit statuses that a shell uses.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
# The exit status for one that cannot be known.
UNKNOWN = 1
# The system has no room for another process, or another open file.
_NO_RESOURCES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}

# Seconds between two looks at what the command has left behind, normally and during the grace.
TICK, SHORT_TICK = 1.0, 0.05

LEFT_BEHIND = (
    "The command has exited, but processes that it started are still running. The lock is held until they exit (see "
    "--close)."
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


class ShellCommand:
    """The words of a command.

    Attributes:
        notify: called with messages for the user while the command runs.
        is_alone: whether only the command itself holds the lock, and not the processes that it leaves behind.
        status: the exit status that a shell would report, once it has ended.
    """

    def __init__(self, words: Sequence[str], notify: Callable[[str], object], *, is_alone: bool = False) -> None:
        self.words, self.notify, self.is_alone = list(words), notify, is_alone
        self.status = 0

    def __call__(self) -> None:
        """Run it where it has no supervisor. What it leaves behind does not hold the lock."""
        try:
            code = subprocess.run(self.words, check=False).returncode
        except OSError as error:
            raise _not_started(error) from error
        self.end(None if received_signals.forgets_how_children_end() else code)

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


def supervise_command(
    supervisor: Supervisor,
    lease: Lease,
    command: ShellCommand,
    memory: SharedMemory,
    output: Output | None,
    begun: Callable[[], object],
) -> None:
    """Run the command under the lease, and wait for all processes that hold its lock. ``output`` passes on what they
    print. ``begun`` is called when it has begun.

    Raises ``CommandFailed`` if it did not succeed; ``JobInterrupted``, ``JobStopped`` or ``LeaseLost`` if that was why;
    ``NotBegun`` if the system cannot start a process.
    """
    with ExitStack() as block:
        try:
            pipe = None if command.is_alone else block.enter_context(closing(Pipe()))
            run = _CommandRun(supervisor, lease, command, memory, output, pipe)
        except OSError as error:
            raise NotBegun(f"No process could be started for it: {error}") from error
        except (CommandFailed, JobDied):
            begun()
            raise
        begun()
        run.run()


class _CommandRun:
    """Looks after one command, and then after what it has left behind."""

    def __init__(
        self,
        supervisor: Supervisor,
        lease: Lease,
        command: ShellCommand,
        memory: SharedMemory,
        output: Output | None,
        pipe: Pipe | None,
    ) -> None:
        self._supervisor, self._lease, self._command, self._pipe = supervisor, lease, command, pipe
        self._memory, self._output = memory, output
        begin = partial(_CommandProcess, command.words, pipe, output)
        try:
            started = supervisor.start(lease, memory, begin, child=_CommandChild, output=output)
        finally:
            if pipe:
                pipe.let_go()
        self._child = cast("_CommandChild", started)
        self._process = cast("_CommandProcess", started.process)
        # What is said to the user about what was left behind, and when.
        self._notice, self._notice_at = "", 0.0

    def run(self) -> None:
        """Raises how it ended, unless it succeeded."""
        try:
            code, was_signalled = self._wait()
            try:
                self._raise_end(code, is_cut_short=self._child.has_killed or not was_signalled)
            finally:
                for _ in passed_on(self._output, self._child):
                    self._supervisor.pause(NAP)
        finally:
            self._supervisor.let_go(self._child)

    def _wait(self) -> tuple[int | None, bool]:
        """Wait until the lock is free. Returns the command's exit code, see ``Process.collect``, and whether a signal
        had come by its end."""
        try:
            while not self._process.is_over():
                self._supervisor.keep(DAY)
            code = self._process.collect()
            was_signalled = self._child.signum is not None
            self._child.limit()
            while not self._supervisor.keep_until(self._is_lock_free, DAY):
                pass
        except BaseException:
            self._process.kill()
            raise
        return code, was_signalled

    def _is_lock_free(self, timeout: float) -> bool:
        """Whether no process holds the lock any more, or waiting for one would protect nothing. Waits for that for at
        most ``timeout`` seconds."""
        is_ending = bool(self._memory.reason) and not self._child.has_killed
        if self._pipe is None:
            if self._memory.reason == LOST:
                self._process.kill()
            return True
        if self._pipe.is_at_end(min(timeout, SHORT_TICK if is_ending else TICK)):
            if not is_ending or self._process.is_group_empty():
                return True
            sleep(SHORT_TICK)  # a process in its group has closed the pipe
        elif not is_ending:
            return self._is_told()
        return False

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

    def _raise_end(self, code: int | None, *, is_cut_short: bool) -> None:
        signum = self._child.signum
        try:
            self._command.end(code)
        except CommandFailed:
            if not self._memory.reason:
                raise
        if self._memory.reason == LOST:
            raise LeaseLost(self._lease.why_lost())
        if self._memory.reason == STOPPED:
            raise JobStopped(self._lease.stopped_by)
        if signum and (self._command.status or is_cut_short):
            raise JobInterrupted(signum)


class _CommandProcess(Process):
    """The command, and what it has started in its process group. One that may read from a terminal stays in the
    terminal's."""

    def __init__(self, words: Sequence[str], pipe: Pipe | None, output: Output | None) -> None:
        """Start it. It holds ``pipe``, and prints to ``output``. Raises ``CommandFailed`` if it cannot be executed, and
        ``OSError`` if the system cannot start it."""
        leads_group = not os.isatty(0)
        popen = _started(words, pipe, output, leads_group=leads_group)
        super().__init__(popen.pid, popen)
        self._group = Group(self.pid) if leads_group else None

    def send(self, signum: int) -> None:
        """Send a signal to its group, and to the command if it has left that. At a terminal, which has sent SIGINT
        already, to the command alone."""
        is_sent_alone = self._has_left_group() if self._group else signum != signal.SIGINT
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
    words: Sequence[str], pipe: Pipe | None, output: Output | None, *, leads_group: bool
) -> "subprocess.Popen[bytes]":
    if not words[0]:  # each folder in PATH would have it
        raise _not_found(words[0])
    flush_streams()  # before what it prints
    leave_connections()  # MySQL's would be inherited
    printed = output.descriptors if output else [None]
    with warnings.catch_warnings():
        # Python warns of other threads. What it calls in the child only calls the system.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return subprocess.Popen(
                list(words),
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
    received_signals.handle_all(signal.SIG_DFL)
    received_signals.unblock()


class _CommandChild(Child):
    """A command may take its time after any signal. What it has left behind has the grace."""

    insistent = frozenset(ENDING_SIGNALS)
    _is_limited = False

    def limit(self) -> None:
        """Have signals end what is left, now that the command itself has ended."""
        self._is_limited = True
        if self.signum:
            self.kill_by(local_now() + self.grace)

    def limit_after_signal(self, pass_on_at: float, *, is_second: bool) -> None:
        if self._is_limited:
            self.kill_by(pass_on_at if is_second else pass_on_at + self.grace)
