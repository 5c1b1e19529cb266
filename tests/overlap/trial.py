"""A trial: a command begins a run, something happens to it, and another command waits for the lock."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from django_singlejob.models import JobLock
from tests.overlap.bodies import BODIES, REPORT, SHELL, SHELL_COMMAND
from tests.processes.witness import descendants, guard_of
from tests.processes.workers import one_off
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Child, Spawn
    from tests.overlap.judge import Judge
    from tests.proxy import Proxy

#: The lease, in seconds: short, so that a successor begins soon; or so that a busy machine renews it in time, and
#: writes the history.
SHORT, LASTING = 3, 6
#: Another command gets the lock of a dead holder within four thirds of a lease. But after ten leases, the database ends
#: a fenced transaction of which nothing is heard.
WAIT = ["--wait", "45"]


class Trial:
    """
    Attributes:
        body: its name in `BODIES`.
        command: `run_singleton` or `singleton_worker`, which begins the run.
        env: the environment of that command, beyond that of all others.
        proxy: between that command and the database, if there is one.
        first: that command, which is the supervisor.
        second: the other command, once it is started.
    """

    first: Child
    second: Child | None = None

    def __init__(
        self,
        spawn: Spawn,
        judge: Judge,
        body: str,
        command: str,
        env: dict[str, str],
        proxy: Proxy | None,
        lease: int = SHORT,
    ) -> None:
        self._spawn, self.judge, self.proxy = spawn, judge, proxy
        self.body, self.command = body, command
        self._of_all = {"OVERLAP_LEASE": str(lease)}
        self._options = ["--lease", str(lease)]  # of a shell command, which has no decorator
        self.env = env | self._of_all
        self._guards: set[int] = set()

    @property
    def lock(self) -> str:
        return "nightly" if self.body == SHELL else "overlap"

    def begin(self) -> None:
        """Start the first command, and wait until all of the run has reported."""
        self.first = self._first()
        eventually(self._has_begun)
        assert self.judge.are_all_alive(), self.first.output

    def _first(self) -> Child:
        if self.body == SHELL:
            return self._spawn.command("run_singleton", self.lock, *self._options, "--", *SHELL_COMMAND, **self.env)
        if self.command == "run_singleton":
            words = ["run_singleton", "overlap", "--now", "--args", f'["{self.body}"]']
            return self._spawn.command(*words, **self.env)
        row = one_off("overlap", self.body)
        row.max_attempts = 1
        row.save()
        return self._spawn.command("singleton_worker", "--processes", "2", "--interval", "0.2", **self.env)

    def _has_begun(self) -> bool:
        assert self.first.poll() is None, self.first.output
        body = BODIES[self.body]
        expected = {"body": 1, "part": body.parts, "stray": body.strays}
        return all(len(self.judge.reported(what)) == number for what, number in expected.items())

    def end(self) -> None:
        """Kill what would not end with the first command."""
        self.first.kill_all()
        for pid in self._guards:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def await_heartbeats(self, number: int = 1) -> None:
        """Wait until the supervisor has sent that many heartbeats, so that it is not in the middle of one."""
        if BODIES[self.body].has_heartbeats():
            sent = self._heartbeats()
            eventually(lambda: self._heartbeats() >= sent + number)

    def _heartbeats(self) -> int:
        return JobLock.objects.get(name=self.lock).heartbeats

    def guard(self, *, other_than: int = 0) -> int:
        """The process number of the supervisor's guard."""
        guard = eventually(partial(self._guard, other_than))
        self._guards.add(guard)
        return guard

    def _guard(self, other_than: int) -> int:
        assert self.first.poll() is None, self.first.output
        guard = guard_of(self.first)
        return guard if guard != other_than else 0

    def processes(self) -> list[int]:
        """The first command, and all that it has started."""
        started = descendants(self.first.pid)
        return [self.first.pid, *started, *({each.pid for each in self.judge.alive()} - {*started})]

    def start_successor(self) -> None:
        """Start the second command, which waits for the lock."""
        words = ["successor", "--now", *WAIT]
        if self.body == SHELL:
            words = [self.lock, "--now", *WAIT, *self._options, "--", *REPORT, "successor"]
        self.second = self._spawn.command("run_singleton", *words, **self._of_all)

    def succeed(self) -> None:
        """Wait until the body of the second command has begun."""
        if not self.second:
            self.start_successor()
        assert self.second
        assert self.second.finish() == 0, self.second.output
        assert self.judge.reported("successor"), self.second.output
