"""The table of mutants fits the code, and one of them is really noticed. `make mutants` tries them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.children import ROOT
from tests.databases import DATABASES
from tests.mutants.copies import DoesNotApply, Edit, copied
from tests.mutants.mutant import SERVERS, SIMULATION, Mutant, Simulation, Witness
from tests.mutants.mutants import MUTANTS, OF_THE_PROTOCOL, REVERTED_REPAIRS
from tests.mutants.trials import CannotBeTried, Result, environment, result_of, results_in
from tests.mutants.verdicts import is_noticed, judge
from tests.simulation.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.timeout(300)]

RELEASE = "tests/contract/test_loss.py::test_each_write_on_its_own_finds_nothing_of_the_successors[release]"
LOCKS = "django_singlejob/models/locks.py"
EACH = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


def named(name: str) -> Mutant:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    return mutant


def broken(old: str, new: str, test: str = RELEASE) -> Mutant:
    """A mutant that is none of the table's."""
    return Mutant(name="", breaks="", edits=(Edit(LOCKS, old, new),), tests=(Witness(test),))


# --- the table


@EACH
def test_each_edit_still_applies_to_the_code(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        texts[edit.path] = edit.applied_to(texts.get(edit.path) or (ROOT / edit.path).read_text())
    for path, text in texts.items():
        compile(text, path, "exec")
        assert text != (ROOT / path).read_text()


@EACH
def test_each_is_explained_and_noticed_by_a_test(mutant: Mutant) -> None:
    assert mutant.breaks.endswith(".")
    assert mutant.tests
    assert sum(mutant.name == other.name for other in MUTANTS) == 1


@EACH
def test_each_simulation_has_a_scenario_or_a_reason(mutant: Mutant) -> None:
    if isinstance(mutant.simulation, Simulation):
        assert mutant.simulation.profile in SCENARIOS[mutant.simulation.scenario].is_for
        assert mutant.simulation.schedules > 0
    elif mutant in (*OF_THE_PROTOCOL, *REVERTED_REPAIRS):
        assert mutant.simulation.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_each_named_test_is_one_of_those_that_ci_runs_there(database: str) -> None:
    if database == "mysql":
        pytest.importorskip("MySQLdb")  # only `make test` with MYSQL_URL installs it
    tests = {test for mutant in MUTANTS for test in mutant.tests_on(database)}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--database", database, *sorted(tests)]
    nowhere = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "MYSQL_URL": "mysql://nobody@127.0.0.1:1/none"}
    env = {**environment(ROOT), **nowhere}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    found = {line for line in done.stdout.splitlines() if "::" in line}
    assert tests <= found | {test.partition("[")[0] for test in found}, done.stdout[-3000:]
    assert done.returncode == 0


def test_an_edit_replaces_a_text() -> None:
    assert Edit(LOCKS, "stale", "late").applied_to("is it stale?") == "is it late?"


@pytest.mark.parametrize("text", ["is it live?", "stale and stale"])
def test_a_text_that_is_not_there_once_does_not_apply(text: str) -> None:
    with pytest.raises(DoesNotApply, match=f"in {LOCKS}, not once"):
        Edit(LOCKS, "stale", "late").applied_to(text)


# --- what counts as noticed


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("<testcase/>", Result.PASSED),
        ("<testcase><skipped/></testcase>", Result.SKIPPED),
        ("<testcase><failure message='assert 1 == 2'/></testcase>", Result.FAILED),
        ("<testcase><failure message='Failed: Timeout (&gt;60.0s) from pytest-timeout.'/></testcase>", Result.HUNG),
        ("<testcase><failure message='NameError: no such name'/></testcase>", Result.UNUSABLE),
        ("<testcase><failure message='ImportError: no such module'/></testcase>", Result.UNUSABLE),
        ("<testcase><error message='failed on setup'/></testcase>", Result.UNUSABLE),
    ],
)
def test_a_result_is_read_from_the_report(case: str, result: Result) -> None:
    assert result_of(ET.fromstring(case)) is result


def test_a_test_that_hangs_counts_only_where_that_is_expected() -> None:
    mutant = named("no-gate")
    assert not is_noticed({Result.HUNG, Result.PASSED}, mutant)
    assert not is_noticed({Result.UNUSABLE, Result.SKIPPED}, mutant)
    assert is_noticed({Result.FAILED, Result.PASSED}, mutant)
    may_hang = Mutant(name="", breaks="", edits=(), tests=(), may_hang=True)
    assert is_noticed({Result.HUNG}, may_hang)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with copied() as folder:
        yield folder


@pytest.mark.slow
def test_one_is_noticed(tree: Path) -> None:
    mutant = named("release-by-name")
    verdict = judge(mutant, "sqlite", tree)
    assert not verdict.problem
    assert verdict.noticed_by == list(mutant.tests_on("sqlite"))
    assert "noticed by tests/contract/" in str(verdict)


@pytest.mark.slow
def test_one_is_found_by_the_simulation(tree: Path) -> None:
    verdict = judge(named("no-gate"), SIMULATION, tree)
    assert not verdict.problem
    assert "noticed by schedule" in str(verdict)


@pytest.mark.slow
def test_one_that_changes_nothing_survives(tree: Path) -> None:
    verdict = judge(broken("def stale(self) ->", "def stale(self)  ->"), "sqlite", tree)
    assert verdict.problem.startswith("SURVIVED")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ("def stale(self) -> nonsense nonsense", "SyntaxError"),
        ("from nowhere import nothing\n    def stale(self) ->", "ModuleNotFoundError"),
        ("def unstale(self): return no_such_name\n    def stale(self) ->", "has no no_such_name"),
    ],
)
def test_code_that_cannot_be_used_proves_nothing(tree: Path, new: str, problem: str) -> None:
    verdict = judge(broken("def stale(self) ->", new), "sqlite", tree)
    assert verdict.problem.startswith("CANNOT BE TRIED")
    assert problem in verdict.problem
    assert not verdict.noticed_by


@pytest.mark.slow
def test_nor_does_a_text_that_is_gone(tree: Path) -> None:
    assert "occurs 0 times" in judge(broken("nothing like this", ""), "sqlite", tree).problem


@pytest.mark.slow
def test_nor_does_a_test_that_is_gone(tree: Path) -> None:
    with pytest.raises(CannotBeTried, match="status 4"):
        results_in(tree, [RELEASE.replace("[release]", "[nothing]")], "sqlite")


def test_servers_are_not_tried_where_a_test_is_not_for_them() -> None:
    assert named("heartbeat-writes-the-gate").tests_on("sqlite") == ()
    assert all(named("heartbeat-writes-the-gate").tests_on(database) for database in SERVERS)
