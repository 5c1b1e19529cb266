"""The place in the project's own code where a run went wrong, found in the text of its traceback.

The text is not to be trusted: a message may contain lines that look like frames. So only what Python itself wrote
counts: the lines from the last heading to the last message. If it is not clear where the message begins, there is no
frame.
"""

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

import django

from django_singlejob.escaping import printable
from django_singlejob.results import ERROR_LENGTH, TRACEBACK_LENGTH

# In the traceback of a group of exceptions, Python draws a line beside the group's own frames.
_HEADING = re.compile(r"(?:  [+|] )?(?:Exception Group )?Traceback \(most recent call last\):")
_FRAME = re.compile(r'(?:  \| )?  File "(.+)", line (\d{1,9})(?:, in (.+))?')
_SOURCE = re.compile(r"(?:  \| )? {4}(\S.*)")
# What is installed, on whatever server and system the run was: packages and the standard library.
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD = re.compile(r"/lib(?:64)?/(?:python|pypy)\d[\d.]*t?/|/python\d+\.zip/|/Python[\d.-]*/Lib/")
_HERE = Path(__file__).parent.parent
_NOT_OURS = tuple(f"{PurePath(path).parent.as_posix()}/" for path in (os.__file__, django.__file__))


class Frame(NamedTuple):
    """A line of code. ``function`` and ``source`` may be empty."""

    path: str
    line: int
    function: str
    source: str


def own_frame(traceback: str, error: str, package: str = "") -> Frame | None:
    """The innermost frame of the project's own code in the traceback of this error; ``None`` if there is none.

    ``package``: the top-level package of the job. It is the project's own even if it is installed like any other.
    """
    lines = traceback.split("\n")
    end = _begin_of_message(lines, error)
    if end is None:
        return None
    begin = max((number for number in range(end) if _HEADING.fullmatch(lines[number])), default=-1)
    own = [frame for frame in _frames(lines[begin + 1 : end]) if _is_own(frame.path, package)]
    return own[-1] if own else None


def _begin_of_message(lines: Sequence[str], error: str) -> int | None:
    """The line on which the message of the last exception begins; ``None`` if several might be that."""
    name, _, words = error.partition(": ")
    if not name:
        return None
    kind = re.compile(rf"(?:  \| )?(?:[^\s:]+\.)?{re.escape(name)}(?::|$)")
    found = {number: match.end() for number, line in enumerate(lines) if (match := kind.match(line))}
    exact = [number for number, end in found.items() if _says("\n".join(lines[number:])[end:], words)]
    if len("\n".join(lines)) >= TRACEBACK_LENGTH:
        # The beginning is missing, and that of the message may be a part of it, unless the error has the whole message.
        candidates = exact if len(error) < ERROR_LENGTH else []
    else:
        # Some messages are recorded in other words than the traceback has.
        candidates = exact or list(found)
    return candidates[0] if len(candidates) == 1 else None


def _says(rest: str, words: str) -> bool:
    return printable(rest[:ERROR_LENGTH], ERROR_LENGTH).strip().startswith(words)


def _frames(lines: Sequence[str]) -> Iterator[Frame]:
    for number, line in enumerate(lines):
        if match := _FRAME.fullmatch(line):
            path, at, function = match.groups()
            source = _SOURCE.fullmatch("".join(lines[number + 1 : number + 2]))
            yield Frame(path, int(at), function or "", source[1] if source else "")


def _is_own(path: str, package: str) -> bool:
    path = path.replace("\\", "/")
    if path.startswith("<"):  # no file: part of the interpreter, or made while it runs
        return False
    if installed := _PACKAGES.match(path):
        return path[installed.end() :].partition("/")[0].removesuffix(".py") == package
    return not (_STANDARD.search(path) or path.startswith(_NOT_OURS) or _is_ours(path))


def _is_ours(path: str) -> bool:
    """Whether it is a module of this package, wherever that is on the server."""
    return path.rpartition(f"/{_HERE.name}/")[2] in _our_modules()


@cache
def _our_modules() -> frozenset[str]:
    return frozenset(module.relative_to(_HERE).as_posix() for module in _HERE.rglob("*.py"))
