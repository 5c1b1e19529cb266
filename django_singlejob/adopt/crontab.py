"""The lines of a crontab, each with the variables and the comment above it."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_VARIABLE = re.compile(r"""\s*["']?(\w+)["']?\s*=\s*(.*?)\s*""", re.ASCII)
_FIELDS = 5


class Entry(NamedTuple):
    """A line that begins a command.

    Attributes:
        number: of the line.
        text: the line as it stands.
        schedule: its five fields, or a name with an @.
        user: whose command it is; empty if the crontab has no such column.
        command: without what follows a ``%``.
        given: the lines behind a ``%``, which the command reads; empty if there are none.
        comment: the line of comment just above.
        variables: the crontab's variables there, by name.
    """

    number: int
    text: str
    schedule: str
    user: str
    command: str
    given: tuple[str, ...]
    comment: str
    variables: Mapping[str, str]


class Unread(NamedTuple):
    """A line that is not understood, and why."""

    number: int
    text: str
    why: str


def read(text: str, *, has_users: bool) -> Iterator[Entry | Unread]:
    """The lines of the crontab. ``has_users``: whether it has a column with users, as those in ``/etc/cron.d``."""
    variables: dict[str, str] = {}
    comment = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            comment = stripped.lstrip("# ")
        elif variable := _VARIABLE.fullmatch(line):
            variables = {**variables, variable[1]: _unquoted(variable[2])}
        elif stripped:
            yield _entry(number, stripped, comment, variables, has_users=has_users)
            comment = ""
        else:
            comment = ""


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _entry(number: int, line: str, comment: str, variables: Mapping[str, str], *, has_users: bool) -> Entry | Unread:
    line = re.sub(r"^-(?=[\d*@])", "", line)  # of cronie: without a line in the system's log
    count = (1 if line.startswith("@") else _FIELDS) + has_users
    words = line.split(maxsplit=count)
    if len(words) <= count:
        return Unread(number, line, f"it has {len(words)} words, and a line of this crontab has more than {count}")
    fields, user = words[: count - has_users], words[count - 1] if has_users else ""
    command, *given = re.split(r"(?<!\\)%", words[count])
    plain = [part.replace("\\%", "%") for part in (command, *given)]
    return Entry(number, line, " ".join(fields), user, plain[0].strip(), tuple(plain[1:]), comment, variables)
