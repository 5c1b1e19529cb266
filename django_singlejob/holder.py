"""The holder of a lock, for people to read. No decision depends on it, and it cannot make an acquisition fail."""

import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import cast

from django.utils.module_loading import import_string

from django_singlejob.conf import options
from django_singlejob.names import COMMAND_LENGTH, HOSTNAME_LENGTH

_SECRETIVE = r"[\w.-]*(?:pass|pwd|secret|token|key|credential|auth)[\w.-]*"
_SECRET_OPTION = re.compile(rf"(?i)-{{1,2}}{_SECRETIVE}|-p")
_SECRET_VALUE = re.compile(
    rf"""(?i)(?<![^\s'"({{,;&|])({_SECRETIVE}["']?(?:=|:\s*(?:\w+\s+)?)|-{{1,2}}{_SECRETIVE}\s+|-p\s*)"""
    r"""('[^']*'|"[^"]*"|\S+)"""
)
_URL_PASSWORD = re.compile(r"(?<=//)[^\s'\"]*@|[^\s/@:]*:[^\s/@]+@")
_MASK = "***"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process: its hostname, its pid and its command."""

    hostname: str
    pid: int
    command: str


def this_process(arguments: Sequence[str] | None = None) -> Holder:
    """Describe this process, with ``arguments`` as its command (default: its own command line)."""
    return Holder(
        hostname=printable(options().hostname or socket.gethostname(), HOSTNAME_LENGTH),
        pid=os.getpid(),
        command=printable(_recorded(sys.argv if arguments is None else arguments), COMMAND_LENGTH),
    )


def printable(text: object, length: int, *, keep: str = "") -> str:
    """Return ``text`` with every character escaped that a database rejects or that could forge a line: NUL, line ends,
    surrogates, and what a three-byte utf8 column cannot store. The text is cut to ``length``. Characters in ``keep``
    are not escaped."""
    # Cut before escaping too: a huge text is not worth escaping only to be cut.
    return "".join(_shown(character, keep) for character in str(text)[:length])[:length]


def _shown(character: str, keep: str) -> str:
    if character in keep or (character.isprintable() and ord(character) <= 0xFFFF):
        return character
    return character.encode("unicode_escape").decode("ascii")


def _recorded(arguments: Sequence[str]) -> str:
    match options().record_command:
        case "none":
            return ""
        case "name":
            return _name(arguments)
        case "full":
            return redact(arguments)
        case path:
            return _ask(path, arguments)


def _name(arguments: Sequence[str]) -> str:
    """The program, and the subcommand of a Django command line. Further arguments may be secrets."""
    if not arguments:
        return ""
    program = PurePath(arguments[0]).name
    is_django = program in ("manage.py", "django-admin", "__main__.py")
    return " ".join([program, *arguments[1:2]]) if is_django else program


def redact(arguments: Sequence[str]) -> str:
    """The whole command line, with everything masked that looks like a secret, also inside a quoted shell script:
    ``--password x``, ``TOKEN=x``, ``user:pw@host``."""
    shown = []
    hide_next = False
    # The time for matching the patterns grows with the square of the length.
    for argument in [argument[:COMMAND_LENGTH] for argument in arguments[:COMMAND_LENGTH]]:
        option, equals, _ = argument.partition("=")
        is_secret = _SECRET_OPTION.fullmatch(option) is not None
        masked = f"{option}={_MASK}" if is_secret and equals else _masked(argument)
        shown.append(_MASK if hide_next else masked)
        hide_next = is_secret and not equals
    return " ".join(shown)


def _masked(text: str) -> str:
    return _URL_PASSWORD.sub(f"{_MASK}@", _SECRET_VALUE.sub(rf"\1{_MASK}", text))


def _ask(hook: str, arguments: Sequence[str]) -> str:
    try:
        return cast("str", import_string(hook)(list(arguments)))
    except Exception as error:  # an error in the project's function must not prevent the run
        return f"(RECORD_COMMAND failed: {type(error).__name__})"
