"""A shell command that runs under a lock: signals are forwarded to it, and it does not outlive the lease."""

import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from django_singlejob.exceptions import JobInterrupted, SingleJobError
from django_singlejob.interrupt import Signals
from django_singlejob.runner import current_run

logger = logging.getLogger("django_singlejob")

# What a shell says of these.
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def _grace() -> float:
    """Seconds to be polite in: nobody else is let in before two more heartbeats have been missed."""
    run = current_run()
    interval = run.lease.grant.heartbeat_interval if run else None
    return interval.total_seconds() if interval else 0.0


class ChildFailed(SingleJobError):
    """The command did not end with 0. ``status``: as a shell would say it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Child:
    """The command, to be called once under the lock. ``status``: how it ended, as a shell would say it."""

    def __init__(self, command: Sequence[str], signals: Signals) -> None:
        self._command = list(command)
        self._signals = signals
        self._process: subprocess.Popen[bytes] | None = None
        # What came while it was being started. It must get each signal once: a second one may mean "at once" to it.
        self._unsent: int | None = None
        # In a group of its own its children get the signals too; at a terminal the group must stay the terminal's.
        self._has_group = not os.isatty(0)
        self.status = 0

    def __call__(self) -> None:
        self._signals.forward = self._forward
        try:
            self._process = self._start()
            if self._unsent:
                self._send(self._unsent)
            self.status = self._wait(self._process)
        except BaseException:
            # Whatever ends this run, the lock is given back behind it: the command must not go on.
            self._end()
            raise
        finally:
            self._signals.forward = None
        if self.status and self._signals.received:
            raise JobInterrupted(self._signals.received)
        if self.status:
            raise ChildFailed(f"The command ended with status {self.status}.", self.status)

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(self._command, process_group=0 if self._has_group else None)
        except FileNotFoundError as error:
            raise ChildFailed(f"The command was not found: {error}", NOT_FOUND) from error
        except OSError as error:
            raise ChildFailed(f"The command cannot be executed: {error}", NOT_EXECUTABLE) from error

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        code = process.wait()
        return 128 - code if code < 0 else code

    def _forward(self, signum: int) -> None:
        if self._process is None:
            self._unsent = signum
            return
        # A terminal has sent its own signal to the whole group.
        if self._has_group or signum != signal.SIGINT:
            self._send(signum)

    def _send(self, signum: int) -> None:
        if self._process is None:
            return
        try:
            if self._has_group:
                os.killpg(self._process.pid, signum)
            else:
                self._process.send_signal(signum)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:  # as of sudo; never to be raised into the wait for it
            logger.warning("The command may not be sent signal %s: it goes on, and so does its lock.", signum)

    def _end(self) -> None:
        if self._process is None:
            return
        self._send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_grace())
        self._send(signal.SIGKILL)
        self._process.wait()
