"""What a command writes: lines for people, or one JSON object for programs."""

import json
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


def add_format(parser: CommandParser, *synonyms: str) -> None:
    """Add the option ``--format``. Each of the synonyms means ``text``."""
    choices = ["text", *synonyms, "json"]
    parser.add_argument("--format", choices=choices, default="text", help="Default: text.")


class Output:
    """Writes lines as the command goes, or the JSON object at its end. With ``-v 0`` it writes only errors."""

    def __init__(self, command: BaseCommand, given: dict[str, Any]) -> None:
        self._command = command
        self._is_json = given["format"] == "json"
        self._is_quiet = given["verbosity"] == 0

    def line(self, text: str) -> None:
        """Write a line to standard output, unless the format is JSON."""
        if not (self._is_json or self._is_quiet):
            self._command.stdout.write(text)

    def error(self, text: str) -> None:
        """Write a line to standard error, whatever the format is."""
        self._command.stderr.write(text)

    def end(self, facts: dict[str, Any]) -> None:
        """Write the object if the format is JSON. Instants are in ISO 8601, durations in seconds."""
        if self._is_json and not self._is_quiet:
            self._command.stdout.write(json.dumps(facts, indent=2, default=_plain))


def _plain(value: object) -> str | float:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return str(value)
