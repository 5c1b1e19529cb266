"""What a mutant is, and what has to notice it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from tests.databases import DATABASES

if TYPE_CHECKING:
    from tests.mutants.copies import Edit

SERVERS = ("postgresql", "mysql")
#: Where tests run that do not depend on the database: `tests/selection.py`.
ONCE = ("sqlite",)
SIMULATION = "simulation"
# Django 5.2 has no tasks, so the tests of batches are skipped there.
WITH_TASKS = DATABASES if find_spec("django.tasks") else ()


class Witness(NamedTuple):
    """A test that fails if the mutant is there, on each of these databases."""

    node: str
    databases: tuple[str, ...] = DATABASES


class Simulation(NamedTuple):
    """Schedules among which the simulation finds one that breaks a promise: `tests/simulation/` explains the words."""

    scenario: str
    profile: str
    schedules: int


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One way in which the protocol may be wrong.

    Attributes:
        name: what is broken, in a few words.
        breaks: what is broken, in a sentence.
        edits: how the copy of the tree differs.
        tests: the tests that have to notice it. Each of them fails on each of its databases.
        simulation: the schedules that have to find it; or why none does; or empty, if that was not tried.
        may_hang: whether a test that does not end counts as one that notices.
    """

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    tests: tuple[Witness, ...]
    simulation: Simulation | str = ""
    may_hang: bool = False

    def tests_on(self, database: str) -> tuple[str, ...]:
        """The tests that have to notice it on this database."""
        return tuple(test.node for test in self.tests if database in test.databases)

    @property
    def is_out_of_reach(self) -> bool:
        """Whether the simulation cannot find it."""
        return isinstance(self.simulation, str) and bool(self.simulation)

    def is_tried_in(self, place: str) -> bool:
        """Whether something has to notice it there: on a database, or in the simulation."""
        return isinstance(self.simulation, Simulation) if place == SIMULATION else bool(self.tests_on(place))
