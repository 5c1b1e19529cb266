"""The place in the project's own code where a run went wrong: found while the exception is in hand, and recorded."""

import os
import re
from functools import cache
from pathlib import Path, PurePath
from traceback import FrameSummary, extract_tb
from typing import NamedTuple

import django

# What is installed, on whatever server and system the run is: packages and the standard library. They are compiled when
# they are needed.
_PACKAGES = r".*/(?:site|dist)-packages/"
_STANDARD = r"/lib(?:64)?/(?:python|pypy)\d[\d.]*t?/|/python\d+\.zip/|/Python[\d.-]*/Lib/"
_HERE = Path(__file__).parents[1]
_NOT_OURS = tuple(f"{PurePath(path).parent.as_posix()}/" for path in (os.__file__, django.__file__))


class Frame(NamedTuple):
    """A line of code. ``function`` and ``source`` may be empty."""

    path: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        """As it is recorded: one value a line."""
        return "\n".join(" ".join(str(value).split("\n")) for value in self)

    @classmethod
    def recorded(cls, text: str) -> "Frame | None":
        """The frame that was recorded like this; ``None`` if the text is none."""
        match text.split("\n"):
            case [path, line, function, source] if line.isdecimal() and len(line) < 10:
                return cls(path, int(line), function, source)
        return None


def own_frame(failure: BaseException, package: str = "") -> Frame | None:
    """The innermost frame of the project's own code in the traceback of this exception; ``None`` if there is none.

    ``package``: the top-level package of the job. It is the project's own even if it is installed like any other.
    """
    frames = [Frame(each.filename, each.lineno or 0, each.name, each.line or "") for each in _frames(failure)]
    own = [frame for frame in frames if is_own(frame.path, package)]
    return own[-1] if own else None


def _frames(failure: BaseException) -> list[FrameSummary]:
    frames = [*extract_tb(failure.__traceback__)]
    if isinstance(failure, SyntaxError) and failure.filename:
        source = (failure.text or "").strip()
        frames.append(FrameSummary(failure.filename, failure.lineno, "", lookup_line=False, line=source))
    return frames


def is_own(path: str, package: str = "") -> bool:
    """Whether it is a file of the project's own code. ``package``: see ``own_frame``."""
    path = path.replace("\\", "/")
    if path.startswith("<"):  # no file: part of the interpreter, or made while it runs
        return False
    if installed := re.match(_PACKAGES, path):
        return path[installed.end() :].partition("/")[0].removesuffix(".py") == package
    return not (re.search(_STANDARD, path) or path.startswith(_NOT_OURS) or is_ours(path))


def is_ours(path: str) -> bool:
    """Whether it is a module of this package, wherever that is on the server."""
    return path.rpartition(f"/{_HERE.name}/")[2] in _our_modules()


@cache
def _our_modules() -> frozenset[str]:
    return frozenset(module.relative_to(_HERE).as_posix() for module in _HERE.rglob("*.py"))
