"""The scheduler: it owns time, and passes one baton between the strands of all processes."""

from __future__ import annotations

import _thread
from contextvars import Context
from typing import TYPE_CHECKING, Any

from tests.simulation.clocks import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.choices import Choices

FOREVER = float("inf")
#: The usual duration of a step, in seconds, and what it may take instead.
STEP = 0.001
LATENCIES = (STEP, 0.02, 0.3, 2.5)


class Killed(BaseException):
    """Raised in the strands of a process that is dead, and when the schedule is over, so that their threads end."""


class Stuck(Exception):
    """Nothing can go on, or the schedule does not end."""


class Process:
    """A simulated process: its clocks, its strands, its connections and its memory."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"P{number}"
        self.monotonic = Clock()
        self.utc = Clock()
        self.strands: list[Strand] = []
        self.is_dead = False
        #: Whether it has ended by itself.
        self.is_ended = False
        self.stopped_until = 0.0
        self.cut_off_until = 0.0
        #: The open connections, each with a method ``cut``.
        self.connections: list[Any] = []
        #: What its copies of the package's global variables contain, see ``memory``.
        self.memory: list[Any] = []
        self.tokens = 0
        self.jitter = 1.0
        self.labels: dict[str, int] = {}


class Strand:
    """A thread of a process."""

    def __init__(self, process: Process, name: str, act: Callable[[], object], number: int) -> None:
        self.process = process
        self.name = name
        self.act = act
        self.number = number
        #: When it goes on by itself, in true time.
        self.wake_at = 0.0
        #: What it waits for; ``None`` if only for the time.
        self.poll: Callable[[], bool] | None = None
        self.hand: _Hand | None = None
        self.is_over = False

    def is_ready(self, now: float) -> bool:
        """Whether it can go on now."""
        return self.process.stopped_until <= now and (self.wake_at <= now or self._is_called())

    def _is_called(self) -> bool:
        return self.poll is not None and self.poll()

    @property
    def next_at(self) -> float:
        """When it goes on at the latest."""
        return max(self.wake_at, self.process.stopped_until)


class _Hand:
    """A real thread, used for one strand after another, because it takes long to start one."""

    def __init__(self, clean: Callable[[], None]) -> None:
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.strand: Strand | None = None
        self.scheduler: Scheduler | None = None
        self._clean = clean
        _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        while True:
            self.baton.acquire()
            strand, scheduler = self.strand, self.scheduler
            assert strand is not None
            assert scheduler is not None
            scheduler.carry_out(strand)
            self._clean()
            scheduler.leave(self, strand)


class Hands:
    """The real threads, shared by all schedules of this program. ``clean`` is called in each after each strand."""

    def __init__(self, clean: Callable[[], None]) -> None:
        self._clean = clean
        self._idle: list[_Hand] = []

    def take(self) -> _Hand:
        return self._idle.pop() if self._idle else _Hand(self._clean)

    def give_back(self, hand: _Hand) -> None:
        self._idle.append(hand)


class Scheduler:
    """Decides which strand goes on, and when."""

    def __init__(self, choices: Choices, hands: Hands, most_steps: int = 30_000) -> None:
        self.now = 0.0
        self.steps = 0
        self.processes: list[Process] = []
        self.strands: list[Strand] = []
        self.current: Strand | None = None
        self.is_over = False
        self.failure: BaseException | None = None
        #: Called when the baton goes to another process, with the former and the new one.
        self.on_switch: Callable[[Process | None, Process], None] = lambda before, after: None
        #: Called at each step.
        self.on_step: Callable[[], None] = lambda: None
        #: What happens by itself, on the server, for example: when, and what.
        self.events: list[tuple[float, Callable[[], None]]] = []
        self._choices = choices
        self._hands = hands
        self._most_steps = most_steps
        self._driver = _thread.allocate_lock()
        self._driver.acquire()
        self._in_memory: Process | None = None
        self._count = 0

    # --- for the code that sets the scene

    def start(self, process: Process, name: str, act: Callable[[], object]) -> Strand:
        """Start a thread of the process."""
        strand = Strand(process, name, act, self._count)
        self._count += 1
        strand.hand = self._hands.take()
        strand.hand.strand, strand.hand.scheduler = strand, self
        strand.wake_at = self.now
        process.strands.append(strand)
        self.strands.append(strand)
        return strand

    def run(self) -> None:
        """Run until all strands have ended. Raises what went wrong in the simulation itself."""
        self._pass_on()
        if self.failure:
            raise self.failure

    def unwind(self) -> None:
        """End the threads of the processes that are dead. Nothing that they do has an effect any more."""
        self.is_over = True
        for strand in [strand for process in self.processes for strand in process.strands if not strand.is_over]:
            self._switch_to(strand)
            self._driver.acquire()

    def close(self) -> None:
        """Let what is still under way happen, and close all connections."""
        for _, happen in self.events:
            happen()
        for process in self.processes:
            for connection in list(process.connections):
                connection.cut()

    # --- for the strand that has the baton

    def pause(self, seconds: float = 0.0) -> None:
        """Pass the baton on, and come back no sooner than in ``seconds``."""
        strand = self._here
        strand.wake_at, strand.poll = self.now + seconds, None
        self._yield(strand)

    def wait_until(self, poll: Callable[[], bool], deadline: float) -> None:
        """Pass the baton on until ``poll`` is true, or until the deadline, in true time."""
        strand = self._here
        strand.wake_at, strand.poll = deadline, poll
        self._yield(strand)
        strand.poll = None

    def step(self) -> None:
        """Let others go first, perhaps. A step takes a moment."""
        self.now += LATENCIES[self._choices.latency(len(LATENCIES))]
        self.pause()

    def kill(self, process: Process) -> None:
        """End the process now. Its strands never go on; its connections break."""
        process.is_dead = True
        for connection in list(process.connections):
            connection.cut()
        self.strands = [strand for strand in self.strands if strand.process is not process]

    @property
    def here(self) -> Process:
        """The process that has the baton."""
        return self._here.process

    @property
    def _here(self) -> Strand:
        if self.current is None:
            raise AssertionError("No strand has the baton.")
        if self.is_over or self.current.process.is_dead:
            raise Killed
        return self.current

    def check(self) -> None:
        """Raise ``Killed`` if the strand that has the baton is dead."""
        assert not self._here.is_over

    def _yield(self, strand: Strand) -> None:
        self._pass_on(strand)
        if self.is_over or strand.process.is_dead:
            raise Killed

    # --- the baton

    def _pass_on(self, strand: Strand | None = None) -> None:
        """Choose who goes next, and wait for the baton to come back. Without a strand: that of the driver."""
        mine = self._driver if strand is None else self._baton_of(strand)
        if (chosen := self._chosen(strand)) is strand and strand is not None:
            return
        if chosen is None:
            if strand is not None:
                self.current = None
                self._driver.release()
                mine.acquire()
            return
        self._switch_to(chosen)
        mine.acquire()

    def _chosen(self, strand: Strand | None) -> Strand | None:
        try:
            return self._next(strand)
        except Exception as problem:  # to be raised in the driver
            self.failure = self.failure or problem
            return None

    def _next(self, strand: Strand | None) -> Strand | None:
        """The strand that goes next; ``None``: the driver."""
        self.steps += 1
        self.on_step()
        if self.failure is not None:
            return None
        if self.steps > self._most_steps:
            raise Stuck(f"It has not ended after {self._most_steps} steps.")
        ready = self._ready()
        if not ready:
            return None
        if strand in ready[1:]:
            ready.remove(strand)
            ready.insert(0, strand)
        return ready[self._choices.next_strand(ready)]

    def _ready(self) -> list[Strand]:
        while self.strands:
            self._let_events_happen()
            if ready := [strand for strand in self.strands if strand.is_ready(self.now)]:
                return ready
            later = min(strand.next_at for strand in self.strands)
            later = min([later, *(instant for instant, _ in self.events)])
            if later == FOREVER:
                raise Stuck("Each strand waits for another.")
            self.now = max(later, self.now)
            self.on_step()
        return []

    def _let_events_happen(self) -> None:
        for event in sorted(self.events, key=lambda event: event[0]):
            if event[0] <= self.now:
                self.events.remove(event)
                event[1]()

    def _switch_to(self, strand: Strand) -> None:
        if self._in_memory is not strand.process:
            self.on_switch(self._in_memory, strand.process)
            self._in_memory = strand.process
        self.current = strand
        self._baton_of(strand).release()

    @staticmethod
    def _baton_of(strand: Strand) -> _thread.LockType:
        assert strand.hand is not None
        return strand.hand.baton

    # --- in the threads themselves

    def carry_out(self, strand: Strand) -> None:
        """Run the strand to its end."""
        try:
            if not self.is_over:
                Context().run(strand.act)
        except Killed:
            pass
        except BaseException as problem:
            # What an actor may raise is caught in the scenario: this is a mistake in the simulation.
            self.failure = self.failure or problem

    def leave(self, hand: _Hand, strand: Strand) -> None:
        """Pass the baton on for good."""
        strand.is_over = True
        if strand in self.strands:
            self.strands.remove(strand)
        self._hands.give_back(hand)
        chosen = None if self.is_over else self._chosen(None)
        if chosen is None:
            self.current = None
            self._driver.release()
        else:
            self._switch_to(chosen)
