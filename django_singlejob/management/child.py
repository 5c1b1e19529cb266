"""A shell command that runs under a lock, with all processes that it starts.

Signals are forwarded to it, and it does not outlive the lock.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from django_singlejob.clock import local_now, sleep
from django_singlejob.exceptions import JobInterrupted, SingleJobError
from django_singlejob.interrupt import Window
from django_singlejob.logs import about, about_grant
from django_singlejob.management.descendants import Group, Pipe
from django_singlejob.received_signals import ReceivedSignals
from django_singlejob.runner import current_run

logger = logging.getLogger("django_singlejob")

# The exit statuses that a shell uses.
NOT_EXECUTABLE, NOT_FOUND = 126, 127

# Seconds between two checks, normally and during the grace.
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


def _grace() -> float:
    """Seconds between SIGTERM and SIGKILL. No other caller takes over before two more heartbeats have been missed."""
    run = current_run()
    interval = run.lease.grant.request.heartbeat_interval if run else None
    return interval.total_seconds() if interval else 0.0


class ChildFailed(SingleJobError):
    """The command did not exit with status 0. ``status`` is the one that a shell would report."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Child:
    """The command, to be called once under the lock.

    ``notify`` is called with messages for the user while the command runs. ``is_alone`` means that only the command
    itself holds the lock: processes that it leaves behind run without it. ``status`` is the exit status that a shell
    would report.
    """

    def __init__(
        self, command: Sequence[str], signals: ReceivedSignals, notify: Callable[[str], None], *, is_alone: bool = False
    ) -> None:
        self._command = list(command)
        self._signals = signals
        self._notify = notify
        self._is_alone = is_alone
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._group: Group | None = None
        # A signal that came while the command was being started. The command must get each signal once, because it may
        # take a second one as a demand to exit at once.
        self._unsent: int | None = None
        self._forwarded_at = float("-inf")
        # In a process group of its own, the command's children get the signals too. At a terminal the command must stay
        # in the terminal's group.
        self._has_group = not os.isatty(0)
        self._is_cut_short = False
        self.status = 0

    def __call__(self) -> None:
        self._signals.forward = self._forward
        try:
            # If the lease is lost during the start, the interrupt waits until there is a process to end.
            with Window():
                process = self._start()
            self._wait(process)
        except BaseException:
            # The lock is released next, so the command must not go on, whatever the error was.
            self._end()
            raise
        finally:
            self._signals.forward = None
            if self._pipe:
                self._pipe.close()
        if self._signals.received and (self.status or self._is_cut_short):
            raise JobInterrupted(self._signals.received)
        if self.status:
            raise ChildFailed(f"The command exited with status {self.status}.", self.status)

    def _start(self) -> "subprocess.Popen[bytes]":
        process = self._popen()
        self._group = Group(process.pid) if self._has_group else None
        self._process = process
        if self._unsent:
            self._send(self._unsent)
        return process

    def _popen(self) -> "subprocess.Popen[bytes]":
        try:
            self._pipe = None if self._is_alone else Pipe()
            return subprocess.Popen(
                self._command,
                process_group=0 if self._has_group else None,
                pass_fds=[self._pipe.write] if self._pipe else [],
            )
        except FileNotFoundError as error:
            raise ChildFailed(f"The command was not found: {error}", NOT_FOUND) from error
        except OSError as error:
            raise ChildFailed(f"The command cannot be executed: {error}", NOT_EXECUTABLE) from error
        finally:
            if self._pipe:
                self._pipe.let_go()

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until the command and all other processes that hold the lock have exited."""
        code = process.wait()
        self.status = 128 - code if code < 0 else code
        if self._pipe:
            self._outlast(self._pipe)

    def _outlast(self, pipe: Pipe) -> None:
        """Wait for the processes that the command left behind, without limit until a signal comes.

        After a signal they have the grace, then they are killed. A process that cannot be killed still holds the lock.
        """
        was_signalled = bool(self._signals.received)
        if not was_signalled:
            self._linger(pipe, LEFT_BEHIND, until_signal=True)
        if self._signals.received:
            is_over = self._is_over_within_grace()
            self._is_cut_short = not (was_signalled and is_over)
            self._send(signal.SIGKILL)
            self._linger(pipe, OUT_OF_REACH)

    def _linger(self, pipe: Pipe, message: str, *, until_signal: bool = False) -> None:
        is_said = False
        while not pipe.is_at_end(TICK):
            if until_signal and self._signals.received:
                return
            if not is_said:
                self._notify(message)
                is_said = True
            if self._group:
                self._group.is_empty()  # once it is, it gets no more signals

    def _is_over_within_grace(self) -> bool:
        began_at, grace = local_now(), _grace()
        while not self._is_over():
            is_hurried = self._signals.is_repeated and self._forwarded_at > began_at
            if is_hurried or local_now() >= began_at + grace:
                return False
            sleep(SHORT_TICK)
        return True

    def _is_over(self) -> bool:
        """Whether the command has exited, and with it all processes that hold its lock. These include processes in its
        group that have closed the pipe."""
        if self._process and self._process.poll() is None:
            return False
        return self._pipe is None or (self._pipe.is_at_end() and (self._group is None or self._group.is_empty()))

    def _forward(self, signum: int) -> None:
        self._forwarded_at = local_now()
        if self._process is None:
            self._unsent = signum
            return
        # A terminal has already sent SIGINT to the whole group.
        if self._has_group or signum != signal.SIGINT:
            self._send(signum)

    def _send(self, signum: int) -> None:
        if self._process is None:
            return
        try:
            if self._group:
                self._group.send(signum)
            else:
                self._process.send_signal(signum)
        except ProcessLookupError:
            pass  # it has just exited
        except PermissionError as error:  # for example sudo; raised here, it would end the wait for the command
            message = (
                "The command did not get signal %s, because this user may not send it one. The command goes on, and "
                "its lock is held until it exits."
            )
            run = current_run()
            extra = about_grant(run.lease.grant, reason=error) if run else about(reason=error)
            logger.warning(message, signum, extra=extra)

    def _end(self) -> None:
        if self._process is None:
            return
        self._send(signal.SIGTERM)
        self._is_over_within_grace()
        self._send(signal.SIGKILL)
        self._process.wait()
        if self._pipe and not self._pipe.is_at_end(TICK):
            self._notify(UNLOCKED)
