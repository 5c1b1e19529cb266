"""Copies of the tree, and the edits that break them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What the tests need. Some of them read the pages of the documentation.
NEEDED = ("django_singlejob", "docs", "example_project", "tests", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.sqlite3", "*.png", ".*")


class Edit(NamedTuple):
    """One change to a file of the package: `old` occurs there exactly once."""

    path: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        """The changed text. Raises `DoesNotApply` if the code has changed since the edit was written."""
        if (count := text.count(self.old)) != 1:
            raise DoesNotApply(
                f"This text occurs {count} times in {self.path}, not once. Adapt the mutant to the code as it is now:\n"
                f"{self.old}"
            )
        return text.replace(self.old, self.new)

    @property
    def module(self) -> str:
        """The dotted name of the file's module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class DoesNotApply(Exception):
    """The text to be replaced is not in its file exactly once."""


@contextmanager
def copied(edits: Iterable[Edit] = (), tree: Path = ROOT) -> Iterator[Path]:
    """A folder with a copy of the tree in which these edits are made. It is deleted after the block."""
    with tempfile.TemporaryDirectory(prefix="singlejob-mutant-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for needed in NEEDED:
            if (tree / needed).is_dir():
                shutil.copytree(tree / needed, folder / needed, ignore=LEFT_OUT)
            else:
                shutil.copy2(tree / needed, folder / needed)
        for edit in edits:
            path = folder / edit.path
            path.write_text(edit.applied_to(path.read_text()))
        yield folder
