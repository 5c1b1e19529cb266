"""What the project and its runs leave for the test: a line of JSON for each note, in a file that is closed at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Note(NamedTuple):
    """`process`: a random number that only this program's memory has. A fork has its parent's."""

    about: str
    pid: int
    process: str
    value: Any


def leave(folder: Path, note: Note) -> None:
    with (folder / "notes").open("a") as file:
        file.write(json.dumps(note) + "\n")


def read(folder: Path) -> list[Note]:
    return [Note(*json.loads(line)) for line in lines(folder / "notes")]


def lines(file: Path) -> list[str]:
    """The lines of a file that have come to their end; none if there is no file."""
    return file.read_text().split("\n")[:-1] if file.exists() else []
