"""The structure of the package, as its imports have it: rooms, floors, arrows and circles.

`python -m tests.house` prints it. Imports that only types need count as well, because a reader follows them too.
"""

from __future__ import annotations

import ast
import tokenize
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from tests.mirror import PACKAGE, modules
from tests.ties import module_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: What is not code: comments, and where lines end or blocks begin.
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def rooms() -> set[str]:
    """The entries at the top of the package: its folders, and its modules that are in none."""
    return {module.partition("/")[0] for module in modules()}


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports of the package. A folder stands for its `__init__`."""
    return {module: {*imported(PACKAGE / f"{module}.py")} - {module} for module in modules()}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE.name:
            for alias in node.names:
                yield module_of(f"{node.module}.{alias.name}").removeprefix(f"{PACKAGE.name}.").replace(".", "/")


def arrows() -> dict[str, set[str]]:
    """From which room to which others imports lead."""
    found = defaultdict[str, set[str]](set)
    for module, others in imports().items():
        here = module.partition("/")[0]
        found[here] |= {other.partition("/")[0] for other in others} - {here, PACKAGE.name}
    return found


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """How many floors are below each node, and its own. Raises `CycleError`, which names a circle, if there is one."""
    found: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        found[node] = 1 + max((found[below] for below in graph.get(node, ())), default=0)
    return found


def circle() -> list[str]:
    """Modules that import each other in a circle; empty if none do."""
    try:
        floors(imports())
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def lines_of_code(path: Path) -> int:
    """Without comments, docstrings and empty lines."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in _NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def main() -> None:
    by_room = floors(arrows())
    for floor in sorted({*by_room.values()}, reverse=True):
        print(floor, "  ".join(sorted(room for room in by_room if by_room[room] == floor)))
    sizes = {module: lines_of_code(PACKAGE / f"{module}.py") for module in modules()}
    print(f"{len(sizes)} modules in {len(rooms())} rooms, {sum(map(len, arrows().values()))} arrows.")
    print(f"{sum(sizes.values())} lines of code without migrations, {max(sizes.values())} in the largest module.")
    print(f"A circle: {' > '.join(circle())}" if circle() else "No circle.")


if __name__ == "__main__":
    main()
