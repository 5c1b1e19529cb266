"""Tests wait, and measure durations, only as `tests/waiting.py` does. So none of them fails on a slow machine."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

# It reads files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")

TESTS = ROOT / "tests"
_HARNESS = "a harness, which measures or waits for a living"
_TIMING = "tests the machinery of signals, heartbeats and time-outs, whose subject is time itself; run without load"
#: The modules and folders that do it themselves, and why they may.
EXEMPT = {
    "waiting.py": "where it is done for all the others",
    "benchmarks": _HARNESS,
    "chaos": _HARNESS,
    "clusters": _HARNESS,
    "mutants": _HARNESS,
    "overlap/judge.py": _HARNESS,
    "overlap/report.py": _HARNESS,
    "simulation": _HARNESS,
    "under_load.py": _HARNESS,
    "processes/test_hung_database.py": _TIMING,
    "processes/test_interrupts.py": _TIMING,
    "processes/test_signal_rounds.py": _TIMING,
    "running/test_guard.py": "the guard's own clock",
    "test_time_outs.py": _TIMING,
    "testing/test_testing_clocks.py": "tests what moves clocks",
}


def test_only_one_module_sleeps_and_reads_clocks() -> None:
    assert {module: found for module, found in offences().items() if not entries(module) & EXEMPT.keys()} == {}


def test_the_table_lists_no_module_that_does_not_need_it() -> None:
    exempt = {entry for module in offences() for entry in entries(module) & EXEMPT.keys()}
    assert EXEMPT.keys() - exempt == set()


@cache
def offences() -> dict[str, list[str]]:
    """What each module under tests/ does, with its line."""
    found = {}
    for path in TESTS.rglob("*.py"):
        source = path.read_text()
        if IN_QUESTION.search(source) and (some := sorted({*offences_in(ast.parse(source))})):
            found[path.relative_to(TESTS).as_posix()] = [f"line {line}: {what}" for line, what in some]
    return found


def entries(module: str) -> set[str]:
    """The entries of a table that stand for this module: its own, and those of its folders."""
    parts = module.split("/")
    return {"/".join(parts[: number + 1]) for number in range(len(parts))}


_CLOCKS = {"clock_gettime", "monotonic", "perf_counter", "process_time", "thread_time", "time"}
#: The names that no other module may use, by module.
FORBIDDEN = {
    "time": {"sleep"} | _CLOCKS | {f"{name}_ns" for name in _CLOCKS},
    "asyncio": {"sleep"},
    "threading": {"active_count"},
}
#: What returns an instant, by this machine's clocks.
INSTANTS = {"local_now", "now", "sent_now", "utc_now", "utcnow"} | FORBIDDEN["time"] - {"sleep"}
#: What returns a duration.
SPANS = {"seconds_of", "since"}
#: What a module has that may offend. Reading all of them closely takes minutes on a machine that is busy.
IN_QUESTION = re.compile(rf"\b({'|'.join({'sleep', 'active_count'} | INSTANTS | SPANS)})\b(?! *=)(?=[ ,()\n.])")


def offences_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    nodes = [*ast.walk(tree)]
    modules = dict(imported_modules(nodes))
    yields = {id(call.func) for call in nodes if isinstance(call, ast.Call) and is_of_zero(call)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names} & FORBIDDEN.get(node.module or "", set())
            yield from ((node.lineno, f"from {node.module} import {name}") for name in names)
        elif isinstance(node, ast.Attribute):
            module = modules.get(name_of(node.value), "")
            is_yield = module == "asyncio" and id(node) in yields
            if node.attr in FORBIDDEN.get(module, set()) and not is_yield:
                yield node.lineno, f"{module}.{node.attr}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from bounds_in(node)


def imported_modules(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """The modules in question, by the names that they have here."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names if alias.name in FORBIDDEN)


def is_of_zero(call: ast.Call) -> bool:
    """Whether the only argument is 0, as of an `asyncio.sleep` that lets the others go on and does not wait."""
    return [each.value if isinstance(each, ast.Constant) else None for each in call.args] == [0]


def bounds_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """The assertions that something takes less than a number of seconds, unless the function stops the clock."""
    nodes = [*ast.walk(function)]
    if any(isinstance(node, ast.Call) and name_of(node.func) == "stop_the_clock" for node in nodes):
        return
    spans = set[str]()
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value and is_span(node.value, spans):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            spans |= {target.id for target in targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assert):
            compared = (each for each in ast.walk(node.test) if isinstance(each, ast.Compare))
            if any(is_bound(less, more, spans) for each in compared for less, more in ordered(each)):
                yield node.lineno, ast.unparse(node)


def ordered(compare: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What has to be less than what."""
    sides = [compare.left, *compare.comparators]
    for left, operator, right in zip(sides, compare.ops, sides[1:], strict=False):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left, right
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right, left


def is_bound(less: ast.expr, more: ast.expr, spans: set[str]) -> bool:
    """Whether a duration has to be less than anything but another duration."""
    return is_span(less, spans) and not is_span(more, spans)


def is_span(expression: ast.expr, spans: set[str]) -> bool:
    """Whether this is computed from a duration: from one of these names, or from the difference of two instants."""
    for node in ast.walk(expression):
        if (isinstance(node, ast.Name) and node.id in spans) or calls(node, SPANS):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and is_difference(node):
            return True
    return False


def is_difference(node: ast.BinOp) -> bool:
    """An instant minus a constant is an instant as well."""
    is_constant = all(name.isupper() or name == "timedelta" for name in names_in(node.right))
    left, right = ([each for each in ast.walk(side) if calls(each, INSTANTS)] for side in (node.left, node.right))
    return bool(right) or (bool(left) and not is_constant)


def names_in(expression: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]


def name_of(expression: ast.expr) -> str:
    return expression.id if isinstance(expression, ast.Name) else ""


def calls(node: ast.AST, names: set[str]) -> bool:
    """Whether it calls a function or method of such a name."""
    if not isinstance(node, ast.Call):
        return False
    return (node.func.attr if isinstance(node.func, ast.Attribute) else name_of(node.func)) in names


@pytest.mark.parametrize(
    "code",
    [
        *("import time\ntime.sleep(1)", "import time as t\nt.monotonic()", "import time\npatch(clock, time.time_ns)"),
        *("from time import sleep", "from time import monotonic as now", "def act():\n    from time import time"),
        *("import asyncio\nasyncio.sleep(0.1)", "import asyncio\nact(asyncio.sleep)", "from asyncio import sleep"),
        *("import threading\nthreading.active_count()", "from threading import active_count, get_ident"),
        "def test():\n    assert local_now() - begun_at < 5",
        "def test():\n    assert abs(datetime.now(UTC) - row.created_at) < MINUTE",
        "def test():\n    assert MINUTE > row.ended_at - utc_now()",
        "def test():\n    assert SECOND <= since(begun_at) < 2 * SECOND",
        "def test():\n    assert done and seconds_of(act) <= 0.1",
        "def test():\n    took = seconds_of(act)\n    assert not took > 1 or took < 3",
    ],
)
def test_refused_is(code: str) -> None:
    assert [*offences_in(ast.parse(code))]


@pytest.mark.parametrize(
    "code",
    [
        *("import time\npatch(time, 'sleep')", "import asyncio\nasyncio.sleep(0)", "time.sleep(1)", "days.time()"),
        *(
            "from threading import get_ident",
            "from tests.waiting import eventually",
            "from django_singlejob import clock",
        ),
        "def test():\n    assert seconds_of(act) < 2 * seconds_of(act_twice)",
        "def test():\n    assert seconds_of(wait) >= 0.2",
        "def test():\n    assert before <= row.created_at <= datetime.now(UTC)",
        "def test():\n    assert row.created_at < datetime.now(UTC) - 2 * HOUR",
        "def test():\n    assert row.ended_at - row.started_at < HOUR",
    ],
)
def test_allowed_is(code: str) -> None:
    assert [*offences_in(ast.parse(code))] == []
