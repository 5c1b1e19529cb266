"""What ties the tests to the inside of the package: how many of its modules they import, how often, and how many of its
private names they set.

`python -m tests.ties` prints it.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tests.children import ROOT
from tests.mirror import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ties(NamedTuple):
    modules: int
    imports: int
    private_names_set: int


#: What the documentation tells people to import.
PUBLIC = {
    f"django_singlejob{module}"
    for module in ("", ".backends", ".exceptions", ".integrations.sentry", ".models", ".signals", ".testing")
}
#: They may only shrink.
LIMITS = Ties(modules=111, imports=914, private_names_set=38)


def ties() -> Ties:
    imported: list[str] = []
    private_names_set = 0
    for path in TESTS.rglob("*.py"):
        file = nodes(ast.parse(path.read_text()))
        imported += imports_of(file)
        private_names_set += len([*settings_of(file)])
    return Ties(len({*imported}), len(imported), private_names_set)


def nodes(tree: ast.AST) -> list[ast.AST]:
    """Like `ast.walk`, but without a call for each node, which a coverage tool would trace."""
    found = [tree]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def imports_of(file: list[ast.AST]) -> Iterator[str]:
    """The private module of the package that each import names, once for each statement and module."""
    for node in file:
        named: set[str] = set()
        if isinstance(node, ast.ImportFrom):
            named = {module_of(f"{node.module}.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.Import):
            named = {alias.name for alias in node.names}
        yield from (name for name in named - PUBLIC if name.partition(".")[0] == "django_singlejob")


@cache
def module_of(name: str) -> str:
    """The module itself if the name is that of one, or else the one that has the name."""
    path = ROOT.joinpath(*name.split("."))
    return name if path.is_dir() or path.with_suffix(".py").is_file() else name.rpartition(".")[0]


def settings_of(file: list[ast.AST]) -> Iterator[ast.Call]:
    """Each `setattr(thing, "_name", ...)` and the like, as `monkeypatch` has it."""
    for node in file:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if any(is_private(name.rpartition(".")[2]) for name in names[:1]):
                yield node


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


if __name__ == "__main__":
    print("Tests are tied to the inside of the package:", ties())
