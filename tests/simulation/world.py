"""The world of one schedule: its processes, its clocks, its faults, and what the backend reports of each step."""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation import faults as kinds
from tests.simulation.baton import FOREVER, Process, Scheduler
from tests.simulation.clocks import Clock, in_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from tests.simulation.baton import Hands
    from tests.simulation.choices import Choices
    from tests.simulation.faults import Fault
    from tests.simulation.history import History
    from tests.simulation.oracle import Oracle

T = TypeVar("T")

#: The profiles: SQLite as it is, and SQLite's storage behind the code for a server with several clients.
ONE_HOST, SERVERS = "one_host", "servers"
#: How far a clock that runs by itself may be off, as a part of the time that passes.
_DRIFT = 0.0002
#: How long a statement waits for others, in seconds.
_LOCK_TIMEOUTS = {ONE_HOST: 5.0, SERVERS: 2.0}


class World:
    """What the simulated processes share. There is at most one at a time: ``world.current``."""

    def __init__(
        self,
        *,
        seed: int,
        profile: str,
        faults: Sequence[Fault],
        choices: Choices,
        hands: Hands,
        oracle: Oracle,
        history: History,
    ) -> None:
        self.seed = seed
        self.profile = profile
        self.oracle = oracle
        self.history = history
        self.trace = oracle.trace
        self.scheduler = Scheduler(choices, hands)
        self.scheduler.on_step = self._on_step
        self.database_clock = Clock()
        self.lock_timeout = _LOCK_TIMEOUTS[profile]
        #: How often a writer has ended its transaction: those that wait for it may try again.
        self.releases = 0
        self.fired: list[Fault] = []
        #: Each fault that happened, by what it would be if it were counted from the beginning.
        self.fired_at: list[tuple[Fault, Process, int]] = []
        self._unfired = list(faults)
        self._left: list[int] = []
        self._random = Random(f"world of {seed}")
        self._arm()

    # --- processes

    def add_process(self) -> Process:
        """A new process, with clocks of its own unless all processes are on one host."""
        process = Process(len(self.scheduler.processes) + 1)
        random = Random(f"process {process.number} of {self.seed}")
        process.jitter = random.random()
        if self.profile == SERVERS:
            process.monotonic = Clock(random.uniform(0, 1e6), 1 + random.uniform(-_DRIFT, _DRIFT))
            process.utc = Clock(random.uniform(-0.5, 0.5), 1 + random.uniform(-_DRIFT, _DRIFT))
        else:
            process.monotonic, process.utc = Clock(1000.0), self.database_clock
        self.scheduler.processes.append(process)
        return process

    @property
    def here(self) -> Process:
        """The process that has the baton."""
        return self.scheduler.here

    @property
    def now(self) -> float:
        """True time."""
        return self.scheduler.now

    def in_true_time(self, seconds: float) -> float:
        """How much true time passes while the clock of the process that has the baton counts these seconds."""
        return max(0.0, seconds) / self.here.monotonic.rate

    @property
    def database_now(self) -> datetime:
        """What the database's clock shows."""
        return in_utc(self.database_clock.at(self.now))

    # --- steps

    @contextmanager
    def step(self, label: str, connection: Any) -> Iterator[bool]:
        """A step of the process that has the baton: others may go first, and faults may happen before and after it.

        Yields whether the connection will be lost after it.
        """
        scheduler, process = self.scheduler, self.here
        scheduler.step()
        due = self._due(process, label)
        self._suffer([fault for fault in due if not fault.is_after], process, connection)
        after = [fault for fault in due if fault.is_after]
        yield any(fault.kind in (kinds.CUT, kinds.LATE) for fault in after)
        if after:
            self._suffer(after, process, connection)

    def carry_out(self, act: Callable[[], T], is_busy: Callable[[BaseException], bool]) -> T:
        """Carry out a statement. While another transaction is in the way, others go on until it ends."""
        deadline = self.now + self.lock_timeout
        while True:
            releases = self.releases
            try:
                return act()
            except Exception as error:
                if not is_busy(error) or self.now >= deadline:
                    raise
            self.scheduler.wait_until(lambda releases=releases: self.releases != releases, deadline)  # type: ignore[misc]

    def tell(self, event: str, **facts: Any) -> None:
        """Have the trace note an event of no process."""
        if self.trace:
            self.trace.event(event, **facts)

    def _on_step(self) -> None:
        self.oracle.look()

    # --- faults

    def _arm(self) -> None:
        self._left = [fault.at for fault in self._unfired]

    def heal(self) -> None:
        """Let no more faults happen."""
        self._unfired.clear()
        for process in self.scheduler.processes:
            process.cut_off_until = process.stopped_until = 0.0

    def _due(self, process: Process, label: str) -> list[Fault]:
        """Count this step. Returns the faults that happen at it."""
        process.labels[label] = process.labels.get(label, 0) + 1
        process.labels[""] = process.labels.get("", 0) + 1
        if not self._unfired:
            return []
        due: list[Fault] = []
        for index, fault in enumerate(self._unfired):
            if fault.process in (0, process.number) and fault.on in ("", label) and not self._is_behind(index):
                self._left[index] -= 1
                if self._left[index] == 0:
                    due.append(fault)
        for fault in due:
            index = self._unfired.index(fault)
            del self._unfired[index], self._left[index]
            self.fired.append(fault)
            self.fired_at.append((fault, process, process.labels[fault.on]))
        return due

    def _is_behind(self, index: int) -> bool:
        """Whether this fault is counted from the one before it, which has not happened yet."""
        return self._unfired[index].is_chained and index > 0

    def _suffer(self, faults: Sequence[Fault], process: Process, connection: Any) -> None:
        for fault in faults:
            self.history.note(process.name, f"FAULT {fault}")
            if fault.kind != kinds.DIE:
                self.oracle.fault_happened(process, fault.kind, fault.seconds)
            self._carry_out(fault, process, connection)
        if process.cut_off_until > self.now and connection is not None and self.profile == SERVERS:
            connection.cut()
            raise connection.lost("The server cannot be reached.")

    def _carry_out(self, fault: Fault, process: Process, connection: Any) -> None:
        scheduler = self.scheduler
        match fault.kind:
            case kinds.PAUSE:
                process.stopped_until = max(process.stopped_until, self.now + fault.seconds)
                scheduler.pause()
            case kinds.SLOW:
                scheduler.pause(fault.seconds)
            case kinds.DIE:
                self.oracle.process_died(process)
                scheduler.kill(process)
                scheduler.pause()
            case kinds.DATABASE_CLOCK:
                self.database_clock.step(fault.seconds)
            case kinds.UTC_CLOCK:
                process.utc.step(fault.seconds)
            case _:
                self._disconnect(fault, process, connection)

    def _disconnect(self, fault: Fault, process: Process, connection: Any) -> None:
        match fault.kind:
            case kinds.PARTITION:
                process.cut_off_until = self.now + fault.seconds
            case kinds.ISOLATION:
                process.cut_off_until = self.now + fault.seconds
                for session in list(process.connections):
                    session.cut()
            case kinds.CUT | kinds.LATE if connection is not None:
                self._cut(fault, connection)

    def _cut(self, fault: Fault, connection: Any) -> None:
        if fault.kind == kinds.LATE and not fault.is_after:
            finish = connection.let_go()
            self.scheduler.events.append((self.now + fault.seconds, finish))
        else:
            connection.cut()
        raise connection.lost("The connection was cut.")

    # --- time, as the package sees it

    def sleep(self, seconds: float) -> None:
        """What ``time.sleep`` does."""
        with self.step("sleep", None):
            self.history.step(self.here.name, "sleep", f"{seconds:.3f} s")
            self.scheduler.pause(self.in_true_time(seconds))

    def wait_for(self, poll: Callable[[], bool], seconds: float) -> None:
        """Wait until ``poll`` is true, or until this number of seconds has passed."""
        deadline = FOREVER if seconds == FOREVER else self.now + self.in_true_time(seconds)
        self.scheduler.wait_until(poll, deadline)

    def monotonic(self) -> float:
        """The clock of this process that never steps."""
        here = self.here
        return here.monotonic.at(self.now)

    def time_of_day(self) -> float:
        """The time of day that this process sees."""
        return in_utc(self.here.utc.at(self.now)).timestamp()


#: The world that is simulated at the moment; ``None``: none is, and the backend works as usual.
current: World | None = None
