"""What the backends of PostgreSQL and MariaDB have in common: statements that wait for a lock, and sessions that end.

The server decides which statement waits for which lock. This module finds out from the server itself, through a
connection beside the simulated ones, so that a slow machine changes nothing:

* A statement that waits for a lock goes on waiting, and its strand passes the baton on. It is ready again when the
  server has answered.
* Whenever a transaction may have released locks, each statement that waits is given the time to end, or to wait again,
  before anything else happens.
* Time-outs are those of simulated time. The package's settings are kept from the server, which counts real seconds.

What is not simulated here:

* If several statements wait for one row, PostgreSQL decides which of them goes on first when all are woken at once.
  It is nearly always the one that has waited longest, so a replay is nearly always the same. The summary counts these
  events.
* On PostgreSQL, the victim of a deadlock is always the statement that closes the circle.
* An answer reaches a process that is cut off while its statement waits.
* No time passes on the server while a statement does not wait for a lock, so it never takes too long.
"""

from __future__ import annotations

import re
import select
import time
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import world
from tests.simulation.backend.stepping import Session
from tests.simulation.baton import FOREVER, Stuck

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.simulation.baton import Process

#: In milliseconds: a statement that takes longer is looked at. In seconds: what the server has for anything.
_MOMENT = 15
_PATIENCE = 60.0
#: How long a session may outlive its client, in seconds. 0: the client's system tells the server at once.
LINGERING = (0.0, 0.0, 0.0, 0.5, 5.0, 20.0, 45.0)
_WRITES = re.compile(r"\s*(?:INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


class Line:
    """A driver's connection with what is known of its session on the server: put it before the driver's class."""

    #: What the server calls the session.
    number: int
    server: Server

    def begin(self, server: Server, number: int) -> None:
        """Begin a session."""
        self.server, self.number = server, number
        #: The package's time-outs, in simulated seconds.
        self.limits: dict[str, float] = {}
        #: The error that a statement ends with if the simulation cancels it.
        self.verdict: str | None = None
        self.process: Process | None = None
        self.is_hung_up = False
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket."""
        raise NotImplementedError

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the driver knows."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Have the driver lose its connection, whose session has ended."""
        raise NotImplementedError

    @property
    def commits_itself(self) -> bool:
        """Whether each statement is a transaction."""
        raise NotImplementedError

    def has_answered(self, milliseconds: int = 0) -> bool:
        """Whether an answer of the server, or the end of the connection, is there to be read."""
        if self.is_hung_up:
            return True
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(milliseconds))

    # --- time-outs

    def set_timer(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        """Do something later, in simulated time."""
        self.stop_timer(name)
        if world.current is not None:
            scheduler = world.current.scheduler
            self._timers[name] = (scheduler.now + seconds, act)
            scheduler.events.append(self._timers[name])

    def stop_timer(self, name: str) -> None:
        """Do not do it."""
        timer = self._timers.pop(name, None)
        if timer and world.current is not None and timer in world.current.scheduler.events:
            world.current.scheduler.events.remove(timer)

    def stop_timers(self) -> None:
        """Do nothing later."""
        for name in list(self._timers):
            self.stop_timer(name)


class Server:
    """A database server, seen through a connection of its own."""

    def __init__(self) -> None:
        #: The sessions whose statements have not ended, by their numbers.
        self.under_way: dict[int, Line] = {}
        #: The sessions whose clients are gone, and whether they end with their statement.
        self.orphans: dict[int, tuple[Line, bool]] = {}
        self._asleep: set[int] = set()
        #: Open sessions that no process uses.
        self.idle: list[Line] = []

    # --- what each kind of server does in its own way

    def waiting(self, numbers: Collection[int]) -> set[int]:
        """Those of these sessions that wait for a lock."""
        raise NotImplementedError

    def has_deadlock(self, number: int) -> bool:
        """Whether this session waits, through others, for itself. Only if the server does not find out by itself."""
        return False

    def cancel(self, number: int) -> None:
        """End the statement of this session."""
        raise NotImplementedError

    def terminate(self, number: int) -> None:
        """End this session."""
        raise NotImplementedError

    def is_gone(self, number: int) -> bool:
        """Whether this session has ended, with all its locks."""
        raise NotImplementedError

    # --- waiting for locks

    def await_answer(self, line: Line) -> None:
        """Wait until the server has answered. While the statement waits for a lock, others go on."""
        self.under_way[line.number] = line
        end = time.monotonic() + _PATIENCE
        while not line.has_answered(_MOMENT):
            if _is_simulated() and self.waiting([line.number]):
                self._park(line)
                end = time.monotonic() + _PATIENCE
            elif time.monotonic() > end:
                raise Stuck("The server does not answer.")
        self.under_way.pop(line.number, None)
        self.settle()

    def _park(self, line: Line) -> None:
        """Let others go on until the server has answered."""
        here = world.current
        assert here is not None
        here.oracle.counts["waits for locks"] += 1
        here.history.note(here.here.name, "waits for a lock")
        if self.has_deadlock(line.number):
            here.oracle.counts["deadlocks"] += 1
            here.history.note(here.here.name, "is the victim of a deadlock")
            self.give_up(line, "deadlock")
            return
        for name in ("lock_timeout", "statement_timeout"):
            if limit := line.limits.get(name):
                line.set_timer(name, limit, lambda name=name: self.give_up(line, name))  # type: ignore[misc]
        try:
            here.scheduler.wait_until(line.has_answered, FOREVER)
        finally:
            for name in ("lock_timeout", "statement_timeout"):
                line.stop_timer(name)

    def give_up(self, line: Line, verdict: str) -> None:
        """Cancel a statement that waits."""
        if not line.has_answered():
            line.verdict = verdict
            self.cancel(line.number)
            self._await(line.has_answered, "A cancelled statement does not end.")
            self.settle()

    def settle(self) -> None:
        """Wait until each statement that is under way has ended, or waits for a lock."""
        self._await(self._is_settled, "Statements neither end nor wait.")
        self._count_races()
        for line, ends_with_statement in list(self.orphans.values()):
            if ends_with_statement and line.has_answered():
                has_committed = line.commits_itself
                self.end(line)
                if has_committed and world.current is not None:
                    world.current.oracle.committed(line.process, "late")
                self.settle()
                return

    def _count_races(self) -> None:
        """Count what the server alone decides: the order of statements that were woken at once."""
        asleep = {number for number, line in self.under_way.items() if not line.has_answered()}
        if len(self._asleep - asleep) > 1 and world.current is not None:
            world.current.oracle.counts["waits that ended at once"] += 1
        self._asleep = asleep

    def _is_settled(self) -> bool:
        # First who has answered, then who waits: a statement may wake another one before it ends.
        numbers = {number for number, line in self.under_way.items() if not line.has_answered()}
        return not numbers or self.waiting(numbers) == numbers

    @staticmethod
    def _await(is_so: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not is_so():
            if time.monotonic() > end:
                raise Stuck(problem)
            time.sleep(0.0005)

    # --- the end of sessions

    def leave(self, line: Line, process: Process | None) -> None:
        """The client is gone. Its session ends, at once or later."""
        here = world.current
        seconds = self._lingering(process)
        if here is None or not (seconds or line.number in self.under_way):
            self.end(line)
            return
        # A server does not notice while a statement waits for a lock.
        here.oracle.counts["sessions that outlived their clients"] += 1
        here.history.note(process.name if process else "", f"leaves its session behind ({seconds:g} s)")
        line.process = process
        self.orphans[line.number] = line, not seconds
        if seconds:
            line.set_timer("linger", seconds, lambda: self.end(line))

    @staticmethod
    def _lingering(process: Process | None) -> float:
        here = world.current
        if here is None or process is None or process.is_ended:
            return 0.0
        return Random(f"end of a session at {process.labels.get('', 0)} of {process.name} in {here.seed}").choice(
            LINGERING
        )

    def end(self, line: Line) -> None:
        """End the session. Its transaction is rolled back, and its locks are free."""
        line.stop_timers()
        self.orphans.pop(line.number, None)
        self.under_way.pop(line.number, None)
        self.terminate(line.number)
        self._await(lambda: self.is_gone(line.number), "A session does not end.")
        line.is_hung_up = True
        line.hang_up()
        if world.current is not None and line.process is not None:
            world.current.history.note(line.process.name, "its session ends on the server")
        self.settle()

    def clear(self) -> None:
        """End all sessions that no schedule uses any more."""
        self._asleep.clear()
        for line in [*self.under_way.values(), *(line for line, _ in self.orphans.values())]:
            if line.number in self.under_way or line.number in self.orphans:
                self.end(line)

    def close_idle(self) -> None:
        """Close the sessions that are kept open."""
        while self.idle:
            raw: Any = self.idle.pop()
            raw.close()


def _is_simulated() -> bool:
    return world.current is not None and world.current.scheduler.current is not None


class ServerSession(Session):
    """A connection to a server, as a process sees it."""

    server: Server

    def __init__(self, raw: Any, process: Process | None, server: Server) -> None:
        super().__init__(raw, process)
        self.server = server
        self.has_changed = False

    def is_inside(self, raw: Any) -> bool:
        return bool(raw.is_in_transaction)

    def end(self, raw: Any) -> None:
        if world.current is None:
            self.server.end(raw)
        else:
            self.server.leave(raw, self.process)

    def let_go(self) -> Callable[[], None]:
        raw, server, process = self.take(), self.server, self.process
        raw.process = process
        server.orphans[raw.number] = raw, False
        if limit := raw.limits.get("idle_timeout"):
            raw.set_timer("idle", limit, lambda: server.end(raw))

        def finish() -> None:
            if raw.number not in server.orphans:
                return  # the server has ended it in the meantime
            raw.commit()
            server.settle()
            if world.current is not None:
                world.current.oracle.committed(process, "late")
            server.end(raw)

        return finish

    def close(self) -> None:
        if self.raw is None:
            return
        raw = self.take()
        raw.stop_timers()
        if world.current is None or raw.is_in_transaction or raw.number in self.server.under_way:
            self.server.end(raw)
        else:
            raw.limits.clear()
            self.server.idle.append(raw)

    def commit(self) -> None:
        self._open.stop_timer("idle")
        self._open.commit()
        self._is_over()

    def rollback(self) -> None:
        self._open.stop_timer("idle")
        self._open.rollback()
        self._is_over()

    def _is_over(self) -> None:
        self._open.limits.clear()
        self.server.settle()

    # --- statements

    def execute(self, sql: str, execute: Callable[[], Any]) -> Any:
        """Carry out a statement."""
        raw = self._open
        raw.stop_timer("idle")
        was_in_transaction = raw.is_in_transaction
        try:
            result = execute()
        finally:
            self._watch_idleness(raw)
        if raw.is_in_transaction and not was_in_transaction and self.process is not None and world.current is not None:
            world.current.oracle.began(self.process)
        self.has_changed = self.has_changed or bool(_WRITES.match(sql))
        return result

    def _watch_idleness(self, raw: Line) -> None:
        if raw is self.raw and "idle_timeout" in raw.limits and raw.is_in_transaction:
            raw.set_timer("idle", raw.limits["idle_timeout"], self._is_idle_too_long)

    def limit_idleness(self, seconds: float) -> None:
        """End the session if its transaction is idle for this many seconds."""
        raw = self._open
        raw.stop_timer("idle")
        raw.limits["idle_timeout"] = seconds
        self._watch_idleness(raw)

    def _is_idle_too_long(self) -> None:
        if world.current is not None and self.process is not None:
            world.current.oracle.counts["sessions that were idle too long"] += 1
            world.current.history.note(self.process.name, "has been idle in its transaction for too long")
        if self.raw is not None:
            self.server.end(self.take())

    def has_written(self) -> bool:
        """Whether there were writes outside of a transaction since the last call."""
        if self.raw is None or self.raw.is_in_transaction:
            return False
        before, self.has_changed = self.has_changed, False
        return before
