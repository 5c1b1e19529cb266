"""The search: one schedule after another, those with the fewest preemptions first."""

from __future__ import annotations

import gc
import heapq
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from tests.simulation import baton, schedule as schedules
from tests.simulation.explore.findings import Bounds, Findings, lines_of
from tests.simulation.explore.observed import Database, ObservedWorld
from tests.simulation.explore.places import kinds_of
from tests.simulation.explore.scenarios import EXPLORED
from tests.simulation.faults import Fault
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.schedule import Result, Schedule, Theatre
from tests.simulation.stage import folder_in_memory, set_up

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence

    from tests.simulation.baton import Strand


class Branch(NamedTuple):
    """A schedule to carry out: what differs from the default, and where it leaves the one that it comes from."""

    #: The number of preemptions and faults together: schedules with fewer come first.
    deviations: int
    order: int
    preemptions: int
    choices: Mapping[int, int]
    faults: tuple[Fault, ...]
    #: The number of its last choice that was made for it.
    last: int
    #: What the state must be there.
    fingerprint: int


_DEFAULT = Branch(0, 0, 0, {}, (), -1, 0)


class Known(Exception):
    """The schedule has reached a state that is known."""


class Guide:
    """Makes the choices of one schedule, in the place of ``Choices``."""

    def __init__(self, search: Search, branch: Branch) -> None:
        self.count = 0
        self.made: dict[int, int] = dict(branch.choices)
        self.branched = 0
        self.world: ObservedWorld | None = None
        self._search = search
        self._branch = branch
        self._current: Strand | None = None
        #: The alternatives to the last step, which nobody was thought to notice, and what was noticed before it.
        self._put_off: list[Branch] = []
        self._noticed: tuple[Any, ...] = ()

    def latency(self, levels: int) -> int:
        """Steps take no time."""
        return 0

    def next_strand(self, ready: Sequence[Strand]) -> int:
        """Choose the next strand. Raises ``Known`` if the state is known."""
        here = self.world
        assert here is not None
        number, self.count = self.count, self.count + 1
        self._look_back(here)
        choice = self._branch.choices.get(number, 0)
        current = ready[0] if ready[0] is self._current else None
        if number == self._branch.last:
            assert here.fingerprint(current) == self._branch.fingerprint, "The code is not deterministic."
        if number > self._branch.last:
            fingerprint = here.fingerprint(current)
            if not self._search.arrive(fingerprint):
                raise Known
            # The process that comes last, when all others have ended, is alone.
            if len(here.scheduler.processes) <= self._search.processes:
                self._branch_off(number, ready, current, fingerprint)
        self._current = ready[choice]
        here.go_on(self._current)
        return choice

    def _look_back(self, here: ObservedWorld) -> None:
        """If others could notice the last step after all, others might have come before it."""
        if self._put_off and self._current and here.noticed(self._current.process) != self._noticed:
            self._search.add(self._put_off)
        self._put_off = []

    def _branch_off(self, number: int, ready: Sequence[Strand], current: Strand | None, fingerprint: int) -> None:
        here, branch = self.world, self._branch
        assert here is not None
        intent = here.intents.get(current) if current else None
        is_local = bool(current and intent and intent.is_local and not here.has_siblings(current))
        is_local = is_local and self._search.bounds.is_pruned
        others: list[Branch] = []
        same: list[Branch] = []
        for index, strand in enumerate(ready):
            preemptions = branch.preemptions + bool(index and current)
            choices = {**branch.choices, number: index} if index else branch.choices
            for faults in self._faults_of(strand, is_new=bool(index)):
                found = Branch(preemptions + len(faults), 0, preemptions, choices, faults, number, fingerprint)
                (others if index else same).append(found)
        self.branched += bool(same or (others and not is_local))
        self._search.add(same)
        if is_local and current:
            self._put_off, self._noticed = others, here.noticed(current.process)
        else:
            self._search.add(others)

    def _faults_of(self, strand: Strand, *, is_new: bool) -> Iterator[tuple[Fault, ...]]:
        """What may happen at the next step of the strand, together with what has happened before."""
        here, before = self.world, self._branch.faults
        assert here is not None
        if is_new:
            yield before
        intent, process = here.intents.get(strand), strand.process
        if intent is None or intent.is_begun or len(before) >= self._search.bounds.faults:
            return
        at = process.labels.get("", 0) + 1
        for each in self._search.kinds:
            if each.is_for(intent):
                yield (*before, Fault(each.kind, process.number, "", at, each.is_after, each.seconds))


class Search:
    """A search through all schedules of one scenario."""

    def __init__(self, theatre: Theatre, database: Database, scenario: str, profile: str, bounds: Bounds) -> None:
        self.bounds = bounds
        self.kinds = kinds_of(profile) if bounds.kinds is None else bounds.kinds
        self.processes = 2
        self.findings = Findings(scenario, profile, bounds)
        self._theatre = theatre
        self._database = database
        self._queue: list[Branch] = []
        self._known: set[int] = set()
        self._count = 0

    def add(self, branches: Sequence[Branch]) -> None:
        """Carry these out later, unless they are beyond the bound."""
        for branch in branches:
            if self.bounds.preemptions is None or branch.preemptions <= self.bounds.preemptions:
                self._count += 1
                # The newest first: it keeps the queue short.
                heapq.heappush(self._queue, branch._replace(order=-self._count))

    def arrive(self, fingerprint: int) -> bool:
        """Whether to go on from this state: it is new, or nothing is left out."""
        is_new = fingerprint not in self._known
        self._known.add(fingerprint)
        return is_new or not self.bounds.is_pruned

    def run(self) -> Findings:
        """Search until all is known, the time is over, or there are enough violations."""
        found, begun_at, cpu = self.findings, time.monotonic(), time.process_time()
        # What the code finds out once, it knows from then on.
        play(self._theatre, self._database, self._schedule_of(_DEFAULT))
        self._queue = [_DEFAULT]
        with _frozen():
            self._search_until(begun_at + self.bounds.seconds)
        found.left, found.states = len(self._queue), len(self._known)
        found.seconds, found.cpu = time.monotonic() - begun_at, time.process_time() - cpu
        return found

    def _search_until(self, end: float) -> None:
        found = self.findings
        while self._queue and len(found.violations) < self.bounds.most_violations:
            if time.monotonic() > end:
                return
            branch = heapq.heappop(self._queue)
            found.complete = branch.deviations - 1
            self._carry_out(branch)
        found.is_whole = not self._queue

    def _carry_out(self, branch: Branch) -> None:
        found = self.findings
        guide = Guide(self, branch)
        found.levels[branch.preemptions, len(branch.faults)] += 1
        try:
            result = play(self._theatre, self._database, self._schedule_of(branch), guide)
        except Known:
            found.pruned += 1
        else:
            found.executed += 1
            assert guide.world is not None
            found.outcomes.add((result.violation, guide.world.reports(), self._database.outcome()))
            if result.violation:
                found.violations.append((result.schedule, result.violation))
        assert guide.world is not None
        found.steps += guide.world.scheduler.steps
        found.depth = max(found.depth, guide.count)
        found.branched = max(found.branched, guide.branched)
        found.switches = max(found.switches, len(branch.choices))

    def _schedule_of(self, branch: Branch) -> Schedule:
        found = self.findings
        return Schedule(
            seed=0,
            scenario=found.scenario,
            profile=found.profile,
            processes=self.processes,
            faults=branch.faults,
            choices=branch.choices,
        )


@contextmanager
def _frozen() -> Iterator[None]:
    """Have the garbage collector leave alone what there is before the block."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def play(
    theatre: Theatre, database: Database, schedule: Schedule, guide: Any = None, *, is_kept: bool = False
) -> Result:
    """Carry out one schedule of a search."""
    guide = guide or _Follower(schedule.choices or {})

    def make_world(**given: Any) -> ObservedWorld:
        made = ObservedWorld(database=database, **given)
        guide.world = made
        return made

    scenario = EXPLORED[schedule.scenario]
    begun = replace(scenario, prepare=partial(database.begin_with, scenario.prepare))
    with (
        patch.dict(SCENARIOS, {scenario.name: begun}),
        patch.object(schedules, "Choices", lambda *_: guide),
        patch.object(schedules, "World", make_world),
    ):
        return theatre.play(schedule, is_kept=is_kept)


class _Follower:
    """Makes the choices of a schedule again."""

    def __init__(self, choices: Mapping[int, int]) -> None:
        self.made = dict(choices)
        self.count = 0
        self.world: ObservedWorld | None = None

    def latency(self, levels: int) -> int:
        return 0

    def next_strand(self, ready: Sequence[Strand]) -> int:
        number, self.count = self.count, self.count + 1
        return self.made.get(number, 0)


@contextmanager
def exploring() -> Iterator[tuple[Theatre, Database]]:
    """A theatre for searches."""
    with ExitStack() as stack:
        database = Database(stack.enter_context(folder_in_memory()))
        stack.callback(database.close)
        stack.enter_context(patch.object(baton, "LATENCIES", (0.0,)))
        stack.enter_context(set_up(database.settings))
        yield Theatre(database), database


def explore(scenario: str, profile: str, bounds: Bounds) -> Findings:
    """Search through all schedules of a scenario."""
    with exploring() as (theatre, database):
        return Search(theatre, database, scenario, profile, bounds).run()


def search_all(given: Namespace) -> int:
    """What ``--exhaustive`` does: each scenario gets ``--seconds``. Returns the exit status."""
    if given.replay:
        result = history_of(Schedule.from_json(given.replay))
        print(result.history, result.violation, sep="\n")
        return int(bool(result.violation))
    names = list(EXPLORED) if given.exhaustive == "all" else [given.exhaustive]
    if given.exhaustive not in ("all", *EXPLORED):
        print(f"--exhaustive is one of: all, {', '.join(EXPLORED)}")
        return 2
    bounds = Bounds(
        preemptions=given.preemptions, faults=given.faults, seconds=given.seconds, most_violations=given.violations
    )
    is_broken = False
    for name in names:
        for profile in [given.profile] if given.profile else EXPLORED[name].is_for:
            findings = explore(name, profile, bounds)
            print(*lines_of(findings), sep="\n", flush=True)
            for schedule, _ in findings.violations[:1]:
                print(history_of(schedule).history)
            is_broken = is_broken or bool(findings.violations)
    return int(is_broken)


def history_of(schedule: Schedule) -> Result:
    """Carry out a schedule that a search found, and keep its history."""
    with exploring() as (theatre, database):
        return play(theatre, database, schedule, is_kept=True)
