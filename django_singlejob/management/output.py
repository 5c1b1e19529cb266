"""What a command writes: lines for people, or one JSON object for programs."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandParser, OutputWrapper

from django_singlejob.process import messages
from django_singlejob.process.escaping import cut, shown

#: What a stream raises that is full, closed or missing.
UNWRITABLE = (OSError, ValueError, AttributeError)


def add_format(parser: CommandParser, *synonyms: str) -> None:
    """Add the option ``--format``. Each of the synonyms means ``text``."""
    choices = ["text", *synonyms, "json"]
    parser.add_argument("--format", choices=choices, default="text", help="Default: text.")


def verbosity_of_news(stream: OutputWrapper) -> int:
    """The least ``--verbosity`` at which a command writes to the stream that all is well: at a terminal 1, the default,
    and otherwise 2, because cron mails whatever a command writes."""
    with suppress(*UNWRITABLE):
        if stream.isatty():
            return 1
    return 2


class Output:
    """Writes lines as the command goes, or the JSON object at its end. With ``-v 0`` it writes only errors."""

    def __init__(self, command: BaseCommand, given: dict[str, Any]) -> None:
        self._command = command
        self._is_json = given["format"] == "json"
        self._is_quiet = given["verbosity"] == 0

    def line(self, text: str) -> None:
        """Write a line to standard output, unless the format is JSON."""
        if not (self._is_json or self._is_quiet):
            self._command.stdout.write(shown(cut(text)))

    def error(self, text: str) -> None:
        """Write a line to standard error, whatever the format is."""
        self._command.stderr.write(shown(cut(text)))

    def end(self, facts: dict[str, Any]) -> None:
        """Write the object if the format is JSON. Instants are in ISO 8601, durations in seconds."""
        if self._is_json and not self._is_quiet:
            self._command.stdout.write(as_json(facts))


class SafeStream(OutputWrapper):
    """A stream to which text from the database can be written: nothing in it acts on a terminal, and a terminal with a
    small character set gets escapes for what it does not have. Line ends stay, because a text may have several lines:
    of a value within it, escape them with ``shown``.

    Each text is seen at once. A text that cannot be written is lost: the stream may be closed, missing or full, and its
    reader may have ended, but what a command does never depends on what it says.
    """

    @classmethod
    def of(cls, stream: OutputWrapper) -> "SafeStream":
        """The same stream. Its colours, which Django sets later, are added to a text that is safe already."""
        return cls(cast("TextIO", stream._out), ending=stream.ending)

    # As OutputWrapper's own, which is not that of a text stream either.
    def write(  # type: ignore[override]
        self, msg: str = "", style_func: Callable[[str], str] | None = None, ending: str | None = None
    ) -> None:
        with suppress(*UNWRITABLE):
            text = self._encodable(shown(msg, keep="\n"))
            messages.say(self._out, partial(self._write, text, style_func, ending), text)

    def _write(self, text: str, style_func: Callable[[str], str] | None, ending: str | None) -> None:
        with suppress(*UNWRITABLE):
            super().write(text, style_func, ending)
            self.flush()

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._out, "encoding", None)
        return text.encode(encoding, "backslashreplace").decode(encoding) if encoding else text


def flush(streams: Iterable[TextIO | None]) -> None:
    """Flush those that can be written to."""
    for stream in filter(None, streams):
        with suppress(*UNWRITABLE):
            stream.flush()


def give_up_unwritable(streams: Iterable[TextIO | None]) -> None:
    """Send to nowhere what these streams of the process still hold and cannot write. Otherwise Python tries once more
    when it exits, fails, and changes the exit status."""
    for stream in filter(None, streams):
        try:
            stream.flush()
        except UNWRITABLE:
            with suppress(*UNWRITABLE), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def as_json(facts: dict[str, Any]) -> str:
    """The facts as JSON. Programs read the texts from it as they are, and yet a terminal can show it."""
    # Of the characters that act on a terminal, json escapes all but DEL.
    return json.dumps(facts, indent=2, default=_plain).replace("\x7f", r"\u007f")


def _plain(value: object) -> str | float:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return str(value)
