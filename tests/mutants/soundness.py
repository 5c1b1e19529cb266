"""Checks that a broken copy is wrong rather than unusable: `python -m tests.mutants.soundness MODULE...`

Its modules can be imported, and the global names that their functions use exist. Otherwise any test would notice.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import sys
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(modules: list[str]) -> None:
    django.setup()
    for name in modules:
        module = importlib.import_module(name)
        path = Path(module.__file__ or "")
        if not path.is_relative_to(Path.cwd()):
            sys.exit(f"{name} was imported from {path}, not from the copy.")
        known = {*vars(module), *vars(builtins)}
        if missing := {*globals_of(compile(path.read_text(), path, "exec"))} - known:
            sys.exit(f"{name} has no {', '.join(sorted(missing))}.")


def globals_of(code: CodeType) -> Iterator[str]:
    """The global names that this code uses, and all code inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_of(constant)


if __name__ == "__main__":
    main(sys.argv[1:])
