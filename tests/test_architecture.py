"""The structure of the package: its layers, and what ties the tests to it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT
from tests.house import arrows, circle, floors, lines_of_code
from tests.mirror import PACKAGE, TESTS, mirrors_of, modules
from tests.ties import LIMITS, nodes, ties

if TYPE_CHECKING:
    from collections.abc import Iterator

# It reads files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")


DECISIONS = (ROOT / "docs" / "contributors" / "decisions.md").read_text()


def test_a_module_imports_only_from_floors_below_its_own() -> None:
    """The floors are defined in pyproject.toml. A module without a floor is an error too."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ", 0 broken" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_no_modules_import_each_other_not_even_for_their_types() -> None:
    assert circle() == []


def test_no_module_is_long() -> None:
    sizes = {module: lines_of_code(PACKAGE / f"{module}.py") for module in modules()}
    assert {module: size for module, size in sizes.items() if size > 400} == {}


def test_the_house_is_as_it_is_drawn() -> None:
    drawn = re.search(r"```text\n(.*?)```", DECISIONS, re.DOTALL)
    assert drawn
    lines = [line.replace("/", " ").split() for line in drawn[1].splitlines()]
    assert {room: int(floor) for floor, *line in lines for room in line} == floors(arrows())


#: What reads a clock, or waits for a limited time. Waits without a limit are allowed anywhere.
TIME = re.compile(
    r"^(?:import|from) (?:time|sched)\b|\b(?:datetime|timezone)\.(?:now|utcnow)\b|\bdate\.today\b|\bTimer\b|\btimeout="
    r"|\basyncio\.(?:sleep|wait_for|timeout)\b|(?<!acquisition)(?<!pool)(?<!supervisor)\.wait\([^)]|\.select\(",
    re.MULTILINE,
)


def test_only_the_clock_tells_the_time_and_waits() -> None:
    # The guard imports nothing of the package.
    others = modules() - {"process/clock", "running/guard"}
    sources = {module: (PACKAGE / f"{module}.py").read_text() for module in others}
    assert {module: found for module, source in sources.items() if (found := TIME.findall(source))} == {}


def test_the_tests_of_a_change_are_found() -> None:
    changed = [
        "django_singlejob/admin/locks.py",
        "django_singlejob/locking/recording.py",
        "tests/test_docs.py",
        "tests/proxy.py",
    ]
    found = mirrors_of([*changed, "docs/index.md", "tests/test_that_was_deleted.py"])
    assert found >= {"tests/admin/test_admin_locks.py", "tests/contract/test_record.py", "tests/test_docs.py"}
    assert not found & {"tests/test_conf.py", "tests/test_that_was_deleted.py"}


@pytest.mark.slow
def test_the_tests_are_tied_to_no_more_names_of_the_package_than_before() -> None:
    """They freeze the house. If there are fewer now, lower the limits in tests/ties.py."""
    assert ties() == LIMITS


def test_no_two_test_modules_share_a_name() -> None:
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_wing_says_what_it_is_for() -> None:
    for folder in {(PACKAGE / module).parent for module in modules()} - {PACKAGE}:
        if folder.name != "commands":
            assert (folder / "__init__.py").read_text().startswith('"""'), folder


#: What fails if something unexpected is seen. The last two are methods: of a child, and of the stage for browsers.
ASSERTIONS = {
    *("assert", "assert_scheduled", "expect", "fail", "raises", "warns"),
    *("django_assert_num_queries", "wait_for", "visit"),
}
Place = tuple[Path, str]


@pytest.mark.slow
def test_every_test_asserts_something() -> None:
    """It asserts itself, or through a function of tests/ that it names. Otherwise it would pass whatever the result."""
    words = defaultdict[Place, set[str | Place]](set)
    for path in TESTS.rglob("*.py"):
        for place, word in words_of(path):
            words[place].add(word)
    asserting: set[str | Place] = {*ASSERTIONS}
    while more := {place for place in words if words[place] & asserting} - asserting:
        asserting |= more
    tests = {(path, name) for path, name in words if path.name.startswith("test_") and name.startswith("test_")}
    assert tests - asserting == set()


def words_of(path: Path) -> Iterator[tuple[Place, str | Place]]:
    """Each name in each function in the file, and its file if it is a function of tests/."""
    file = nodes(ast.parse(path.read_text()))
    origins = {
        alias.name: ROOT.joinpath(*(node.module or "").split(".")).with_suffix(".py")
        for node in file
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for function in file:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in nodes(function):
                if isinstance(node, ast.Assert):
                    yield (path, function.name), "assert"
                elif isinstance(node, ast.Attribute):
                    yield (path, function.name), node.attr
                elif isinstance(node, ast.Name):
                    yield (path, function.name), node.id
                    yield (path, function.name), (origins.get(node.id, path), node.id)
