"""The arguments of ``run_singleton``: those of a job, and a command after ``--`` or ``-m``."""

import argparse
import json
import sys
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from django_singlejob.conf import quoted
from django_singlejob.management.arguments import instant, whole_number

# What can be listed.
LISTABLE, DAYS = range(1970, 2101), range(1, 32)


class ParserWithCommand(CommandParser):
    """Takes everything after ``--`` as a shell command, and everything after ``-m`` as a management command. argparse
    alone would look for options in it."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[2:] if args is None else list(args)
        own, separator, command = _split(words)
        parsed, unknown = self.parse_known_args(own, namespace)
        if unknown:
            hint = "" if separator else " Write -- before a shell command, and -m before a management command."
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{hint}")
        if separator and not command:
            self.error(f"There is no command after {separator}. Use LOCK -- COMMAND [ARG ...], or -m COMMAND [ARG ...]")
        parsed.child = command if separator == "--" else []
        parsed.management = command if separator == "-m" else []
        return parsed


def _split(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The words before the first separator, the separator, and the words behind it."""
    for index, word in enumerate(words):
        if word in ("--", "-m"):
            return words[:index], word, words[index + 1 :]
    return words, "", []


def exit_status(value: object) -> int:
    """An exit status that a caller may choose."""
    try:
        status = whole_number(value)
    except argparse.ArgumentTypeError:
        status = 256
    if status > 255:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not an exit status. Use 0 to 255.")
    return status


def begin_of_list(value: object) -> datetime:
    """From when on slots are listed. Much earlier or later, nobody knows when clocks change."""
    if (begin := instant(value)).year not in LISTABLE:
        years = f"{LISTABLE[0]} to {LISTABLE[-1]}"
        raise argparse.ArgumentTypeError(f"{quoted(value)} cannot be listed. Use an instant of the years {years}.")
    return begin


def days_of_list(value: object) -> int:
    """For how many days slots are listed."""
    if (days := whole_number(value)) not in DAYS:
        message = f"{quoted(value)} is not a number of days that can be listed. Use {DAYS[0]} to {DAYS[-1]}."
        raise argparse.ArgumentTypeError(message)
    return days


def json_arguments(given: object) -> list[Any] | dict[str, Any]:
    """The arguments of a job: JSON, or a Python value of the same meaning."""
    value = _loaded(given) if isinstance(given, str) else given
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return list(value)
    raise argparse.ArgumentTypeError(f"{quoted(given)} is neither a JSON list nor an object.")


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not JSON: {error}.") from None
    except RecursionError:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is nested too deeply.") from None


def split_arguments(given: list[Any] | dict[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
    """The positional arguments, and those with a keyword."""
    return ([], given) if isinstance(given, dict) else (given or [], {})
