"""The commands that are in the text of an exception: ``subprocess`` puts them there, with all their arguments. They
become what ``RECORD_COMMAND`` says."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator

from django_singlejob.holder import recorded

# In place of a command of which nothing may be recorded.
NOTHING = "..."


def without_commands(text: str, failure: BaseException | None) -> str:
    """The text of ``failure``, or its traceback, with as much of each command in it as may be recorded."""
    for command in map(_command_of, _chain(failure)):
        if command:
            text = _without(command, text)
    return text


def _chain(failure: BaseException | None) -> Iterator[BaseException]:
    """The exception, and all that its traceback shows with it."""
    seen: set[int] = set()
    waiting = [failure]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        waiting += [error.__cause__, error.__context__]
        waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else []


def _command_of(error: BaseException) -> object | None:
    """``None`` if the error does not name a command."""
    command: object | None = None
    match error:
        case subprocess.CalledProcessError() | subprocess.TimeoutExpired():
            command = error.cmd
        case OSError() if _was_raised_in_subprocess(error):
            command = error.filename  # all of the command if a shell was meant, but not asked for
    return command


def _was_raised_in_subprocess(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame and frame.tb_next:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__") == "subprocess"


def _without(command: object, text: str) -> str:
    arguments = _arguments(command)
    shown = recorded(arguments) or NOTHING
    # A single word without its quotes could be anywhere in the text.
    bare = filter(_has_space, {str(command), " ".join(arguments), shlex.join(arguments)})
    forms = {f"'{command}'": f"'{shown}'", repr(command): f"'{shown}'", **dict.fromkeys(bare, shown)}
    for form in sorted(forms, key=len, reverse=True):
        text = re.sub(_indented(form), lambda _, form=form: forms[form], text)  # type: ignore[misc]
    return text


def _arguments(command: object) -> list[str]:
    """As a list: a text with spaces is the script of a shell."""
    if isinstance(command, str | bytes | os.PathLike):
        word = os.fsdecode(command)
        return ["/bin/sh", "-c", word] if _has_space(word) else [word]
    words = command if isinstance(command, Iterable) else [command]
    return [os.fsdecode(word) if isinstance(word, bytes | os.PathLike) else str(word) for word in words] or [""]


def _has_space(text: str) -> bool:
    return any(map(str.isspace, text))


def _indented(form: str) -> str:
    """A pattern for the text, whose lines are indented in the traceback of a group of exceptions."""
    return r"\n[ |]*".join(map(re.escape, form.split("\n")))
