"""The options of commands: text on the command line, or Python values of the same meaning from ``call_command``."""

import argparse
import sys
import traceback
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.utils import timezone

from django_singlejob.conf import SHORTEST_LEASE, ZERO, quoted
from django_singlejob.jobs.names import REASON_LENGTH, is_storable
from django_singlejob.management.output import SafeStream, give_up_unwritable
from django_singlejob.process import messages
from django_singlejob.process.clock import CENTURY, YEARS, storable

# More of anything makes no sense, and some databases cannot count further.
MOST = 2**31 - 1
_LAST_KEY = 2**63 - 1
# The group of the options that few people need, in --help.
RARE = "rarely needed"


class CallableCommand(BaseCommand):
    """A command whose options may be Python values, which ``call_command`` does not pass through the parser, and whose
    streams are safe, whatever Django or a caller gives it."""

    @property
    def stdout(self) -> OutputWrapper:
        return self._stdout

    @stdout.setter
    def stdout(self, stream: OutputWrapper) -> None:
        self._stdout = SafeStream.of(stream)

    @property
    def stderr(self) -> OutputWrapper:
        return self._stderr

    @stderr.setter
    def stderr(self, stream: OutputWrapper) -> None:
        self._stderr = SafeStream.of(stream)

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
        except CommandError as error:  # with --traceback, Django passes it on, and the exit status would be 1
            self.stderr.write("".join(traceback.format_exception(error)), str)
            sys.exit(error.returncode)
        finally:
            if not messages.are_begun:
                give_up_unwritable([sys.stdout, sys.stderr])

    def execute(self, *args: Any, **given: Any) -> Any:
        parser = self.create_parser("manage.py", type(self).__module__.rpartition(".")[2])
        for action in parser._actions:
            if action.dest in given:
                given[action.dest] = _meaning(parser, action, given[action.dest])
        self.check_options(parser, given)
        return super().execute(*args, **given)

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        """Call ``parser.error`` for options that exclude each other."""


def _meaning(parser: CommandParser, action: argparse.Action, value: object) -> Any:
    """The value as the parser would have returned it; ``None`` if it was not given."""
    try:
        if isinstance(action.default, list) or action.nargs == argparse.ONE_OR_MORE:  # several values
            return [_parsed(action, item) for item in _items(value)]
        return action.default if value is None else _parsed(action, value)
    except argparse.ArgumentTypeError as error:
        return parser.error(f"argument {'/'.join(action.option_strings) or action.metavar}: {error}")


def _items(value: object) -> Iterable[object]:
    if value is None:
        return []
    return value if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _parsed(action: argparse.Action, value: object) -> Any:
    kind: Any = flag if action.nargs == 0 else action.type or text
    try:
        parsed = kind(value)
    except (TypeError, ValueError) as error:  # one of Django's own options, such as --verbosity
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a valid value: {error}.") from None
    if action.choices is not None and parsed not in action.choices:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not one of {', '.join(map(repr, action.choices))}.")
    return parsed


def flag(value: object) -> bool:
    """``True`` or ``False``."""
    if not isinstance(value, bool):
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a boolean.")
    return value


def text(value: object) -> str:
    """A string, such as a name. No database can be asked for bytes that are not text in the terminal's encoding, and a
    blank one may be a variable of the shell that is not set."""
    if not isinstance(value, str) or not is_storable(value):
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not text.")
    if not value.strip():
        raise argparse.ArgumentTypeError(f"{quoted(value)} is blank. Give a name, or leave it out.")
    return value


def queue(value: object) -> str:
    """The name of one queue."""
    name = text(value)
    if name == "*":
        raise argparse.ArgumentTypeError("leave the option out for all queues.")
    if "," in name:
        raise argparse.ArgumentTypeError(f"{quoted(value)} has a comma. Give the option once for each queue.")
    return name


def seconds(value: object) -> timedelta:
    """A duration of 0 or longer: a ``timedelta``, or a number of seconds, which may be text."""
    duration = value if isinstance(value, timedelta) else _duration(value)
    if duration is None or duration < ZERO:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a number of seconds.")
    if duration > CENTURY:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is more than a century. Use fewer seconds.")
    return duration


def lease(value: object) -> timedelta:
    """How long a lease lasts, like ``seconds``."""
    if (duration := seconds(value)) < SHORTEST_LEASE:
        least = f"Use {SHORTEST_LEASE.total_seconds()} seconds or more."
        raise argparse.ArgumentTypeError(f"{quoted(value)} is too short for a lease. {least}")
    return duration


def _duration(value: object) -> timedelta | None:
    """``None`` if the value is not a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return timedelta(seconds=float(value))
    except OverflowError:
        return timedelta.max
    except ValueError:
        return None


def instant(value: object) -> datetime:
    """An instant: ISO 8601 as text, or a ``datetime``. Without an offset it is in the current time zone."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, datetime):
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not an instant, such as 2026-11-22T03:00.")
    kept = storable(timezone.make_aware(found) if timezone.is_naive(found) else found)
    if kept is None:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not an instant of the years {YEARS[0]} to {YEARS[-1]}.")
    return kept


def whole_number(value: object) -> int:
    """A count of 0 or more, which may be text."""
    return _number_up_to(MOST, value)


def key(value: object) -> int:
    """The number of a row, which may be text."""
    return _number_up_to(_LAST_KEY, value)


def token(value: object) -> UUID:
    """The token of a lock: a ``UUID``, or its text."""
    try:
        return value if isinstance(value, UUID) else UUID(text(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a UUID.") from None


def _number_up_to(most: int, value: object) -> int:
    digits = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"{quoted(value)} is not a whole number of 0 or more.")
    # The length first: Python refuses to convert very many digits.
    if len(digits.lstrip("0")) > len(str(most)) or int(digits) > most:
        raise argparse.ArgumentTypeError(f"{quoted(value)} is too large. Use at most {most}.")
    return int(digits)


def reason(value: object) -> str:
    """A reason, for others to read."""
    words = text(value)
    if len(words) > REASON_LENGTH:
        raise argparse.ArgumentTypeError(f"the reason has {len(words)} characters. Use at most {REASON_LENGTH}.")
    return words
