"""One schedule: what is decided beforehand, how it is carried out, and what came of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from django_singlejob.conf import options
from django_singlejob.locking.at_exit import release_at_exit
from tests.simulation import world
from tests.simulation.aims import aimed_at
from tests.simulation.baton import Hands, Stuck
from tests.simulation.choices import Choices
from tests.simulation.faults import OF_ONE_HOST, OF_SERVERS, Fault, drawn
from tests.simulation.history import History
from tests.simulation.oracle import Oracle, Violation
from tests.simulation.scenarios import LEASE, SCENARIOS, Actor, come_last, introduce
from tests.simulation.stage import exchange_memory, forget_connection, models
from tests.simulation.world import ONE_HOST, SERVERS, World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.simulation.baton import Process
    from tests.simulation.storage import Storage
    from tests.simulation.trace import Trace

#: How long after the end of all processes each lock must be free: a lease until it is stale, the watch, one more lease
#: and its margin if the clocks disagree, a step of the database's clock that is shorter than a lease, and a moment.
BOUND = LEASE.total_seconds() * 2 + 20 + 20 + 60 + 20

# One of these for all theatres, because its threads never end.
_HANDS = Hands(forget_connection)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What decides a history.

    Attributes:
        processes: how many there are. Those whose numbers are in ``absent`` do nothing.
        switches: how likely it is that another strand goes on, at each step.
        choices: those that are replayed; ``None``: they are drawn from the seed.
    """

    seed: int
    scenario: str
    profile: str
    processes: int
    absent: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()
    switches: float = 0.3
    choices: Mapping[int, int] | None = None

    @classmethod
    def of(cls, seed: int, scenario: str = "", profile: str = "") -> Schedule:
        """The schedule of this seed. It draws its scenario from those that are aimed at nothing."""
        random = Random(f"schedule {seed}")
        profile = profile or random.choice((ONE_HOST, SERVERS))
        names = [name for name, each in SCENARIOS.items() if profile in each.is_for and not each.aims]
        processes = random.choice((2, 2, 3, 3, 4))
        scenario = scenario or random.choice(names)
        aims = SCENARIOS[scenario].aims.get(profile)
        kinds = OF_ONE_HOST if profile == ONE_HOST else OF_SERVERS
        return cls(
            seed=seed,
            scenario=scenario,
            profile=profile,
            processes=processes,
            faults=aimed_at(aims, random) if aims else drawn(random, kinds, processes),
            switches=random.choice((0.05, 0.3, 0.7)),
        )

    def as_json(self) -> str:
        """A text that ``from_json`` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The schedule that ``as_json`` wrote."""
        given: dict[str, Any] = json.loads(text)
        faults = tuple(Fault(**fault) for fault in given.pop("faults"))
        choices = given.pop("choices")
        absent = tuple(given.pop("absent", ()))
        made = None if choices is None else {int(number): choice for number, choice in choices.items()}
        return cls(**given, faults=faults, choices=made, absent=absent)


@dataclass
class Result:
    """What came of a schedule.

    Attributes:
        schedule: the schedule, with all its choices, and its faults counted from the beginning.
        violation: the promise that was broken; empty if none was.
        fired: the faults that happened, in their order.
    """

    schedule: Schedule
    violation: str
    fired: Sequence[Fault]
    steps: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    history: History = field(default_factory=History)


class Theatre:
    """Carries out schedules, one after another, on one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tables = [model._meta.db_table for model in models()]

    def play(self, schedule: Schedule, *, is_kept: bool = False, trace: Trace | None = None) -> Result:
        """Carry out the schedule. ``is_kept``: keep its history. ``trace``: where to write its events."""
        scenario = SCENARIOS[schedule.scenario]
        self._storage.empty(self._tables)
        scenario.set_up(Random(f"rows of {schedule.seed}"))
        choices = Choices(schedule.seed, schedule.choices, schedule.switches)
        oracle, history = Oracle(self._storage.read, may_overlap=scenario.may_overlap), History(is_kept=is_kept)
        oracle.trace = trace
        here = World(
            seed=schedule.seed,
            profile=schedule.profile,
            faults=schedule.faults,
            choices=choices,
            hands=_HANDS,
            oracle=oracle,
            history=history,
        )
        oracle.world, history.clock = here, lambda: here.now
        here.scheduler.on_switch = exchange_memory
        world.current = here
        try:
            violation = self._carried_out(here, schedule)
        finally:
            try:
                here.scheduler.unwind()
            finally:
                world.current = None
                here.scheduler.close()
        faults = tuple(
            replace(fault, process=process.number, at=at, is_chained=False) for fault, process, at in here.fired_at
        )
        return Result(
            schedule=replace(schedule, choices=dict(choices.made), faults=faults),
            violation=violation,
            fired=here.fired,
            steps=here.scheduler.steps,
            seconds=here.now,
            counts=oracle.counts,
            history=history,
        )

    def _carried_out(self, here: World, schedule: Schedule) -> str:
        try:
            interval = LEASE / options().heartbeats_per_lease
            here.tell(
                "schedule",
                seed=schedule.seed,
                scenario=schedule.scenario,
                profile=schedule.profile,
                processes=schedule.processes,
                locks=list(SCENARIOS[schedule.scenario].names),
                lease=LEASE.total_seconds(),
                interval=interval.total_seconds(),
            )
            for number in range(1, schedule.processes + 1):
                process = here.add_process()
                if number not in schedule.absent:
                    self._send_in(here, process, SCENARIOS[schedule.scenario].act_of)
            here.scheduler.run()
            here.heal()
            here.tell("over")
            self._send_in(here, here.add_process(), lambda actor: come_last(actor, self._left, BOUND))
            here.scheduler.run()
            self._look_at_the_rest(here.oracle)
            here.tell("end")
        except Violation as violation:
            return str(violation)
        except Stuck as stuck:
            here.history.note("", f"VIOLATION {stuck}")
            return str(stuck)
        return here.oracle.violations[0] if here.oracle.violations else ""

    def _send_in(self, here: World, process: Process, act: Any) -> None:
        actor = Actor(here, process)
        introduce(actor)

        def live() -> None:
            exchange_memory(None, process)
            act(actor)
            self._exit(here, process)

        here.scheduler.start(process, "main", live)

    def _exit(self, here: World, process: Process) -> None:
        """What happens when a process ends by itself."""
        release_at_exit()
        process.is_ended = True
        here.oracle.process_ended(process)
        here.scheduler.kill(process)

    def _left(self) -> list[str]:
        return sorted(self._storage.read(0).locks)

    def _look_at_the_rest(self, oracle: Oracle) -> None:
        for table, where, sentence in (
            ("django_singlejob_joblock", "1 = 1", "locks are left"),
            ("django_singlejob_jobrun", "status = 'running'", "runs have no end in the history"),
            ("django_singlejob_oneoffjob", "status = 'in_progress'", "one-offs are left in progress"),
        ):
            if count := self._storage.count(table, where):
                oracle.violate(f"{count} {sentence}.")
