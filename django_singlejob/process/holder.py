"""The holder of a lock, for people to read. No decision depends on it, and it cannot make an acquisition fail."""

import getpass
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import NamedTuple

from django.utils.module_loading import import_string

from django_singlejob.conf import options
from django_singlejob.process.escaping import printable
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

HOSTNAME_LENGTH = COMMAND_LENGTH = USER_LENGTH = 255


class Holder(NamedTuple):
    """A process: its hostname, its pid and its command."""

    hostname: str
    pid: int
    command: str


def this_process(arguments: Sequence[str] | None = None) -> Holder:
    """Describe this process, with ``arguments`` as its command (default: its own command line)."""
    return Holder(
        hostname=this_host(),
        pid=os.getpid(),
        command=printable(_recorded(sys.argv if arguments is None else arguments), COMMAND_LENGTH),
    )


def this_host() -> str:
    """The name of this server."""
    return printable(options().hostname or socket.gethostname(), HOSTNAME_LENGTH)


def this_user() -> str:
    """The operating system's user, and the server: ``anna on web-1``. Only the server if the user has no name."""
    hostname = this_host()
    try:
        return printable(f"{getpass.getuser()} on {hostname}", USER_LENGTH)
    except (OSError, KeyError, ImportError):  # depending on the version of Python
        return hostname


def _recorded(arguments: Sequence[str]) -> str:
    """What of a command line may be stored, as ``RECORD_COMMAND`` says. Empty if nothing may be."""
    match options().record_command:
        case "none":
            return ""
        case "name":
            return _name(arguments)
        case hook:
            return _ask(hook, arguments)


def _name(arguments: Sequence[str]) -> str:
    """The program, and the subcommand of a Django command line. Further arguments may be secrets."""
    if not arguments:
        return ""
    program = PurePath(arguments[0]).name
    is_django = program in ("manage.py", "django-admin", "__main__.py")
    return " ".join([program, *arguments[1:2]]) if is_django else program


def _ask(hook: str | Callable[[list[str]], str], arguments: Sequence[str]) -> str:
    try:
        words = (import_string(hook) if isinstance(hook, str) else hook)(list(arguments))
        if not isinstance(words, str):
            raise TypeError(f"It returned {type(words).__name__}, not str.")  # noqa: TRY301 (handled as its own errors)
    except Exception as error:  # an error in the project's function must not prevent the run
        # Not its message, nor a traceback: they may contain the command.
        message = "The function in SINGLEJOB['RECORD_COMMAND'] raised %s, so nothing of a command was recorded. Fix %s."
        logger.error(message, type(error).__name__, _path_of(hook), extra=about(reason=error))
        return f"(RECORD_COMMAND failed: {type(error).__name__})"
    return words


def _path_of(hook: object) -> str:
    return hook if isinstance(hook, str) else f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', hook)}"
