"""How this program was started, so that another process of it can be started in the same way, and whether this process
is one that a supervisor has started.

The package imports this first: the project may change its directory and its environment later.
"""

import os
import stat
import sys
from pathlib import Path
from typing import NamedTuple

#: Tells a process that it is an executor. It counts only together with an open socket: see ``Invitation``.
VARIABLE = "DJANGO_SINGLEJOB_EXECUTOR"
# Of Linux: the environment that a process was started with.
_KEPT_BY_SYSTEM = "/proc/self/environ"


class Invitation(NamedTuple):
    """What a supervisor passes to an executor: as descriptors, the socket for its orders, and its own standard output
    and standard error; then the version of its package."""

    channel: int
    stdout: int
    stderr: int
    version: str

    def __str__(self) -> str:
        return " ".join(map(str, self))


def _invited() -> Invitation | None:
    """The invitation of this process. Nothing that it starts may take that for its own."""
    text = os.environ.pop(VARIABLE, "")
    try:
        channel, stdout, stderr, version = text.split(maxsplit=3)
        invitation = Invitation(int(channel), int(stdout), int(stderr), version)
        # An environment may be passed on, but the socket is not: a command that has only the variable is a command.
        if not stat.S_ISSOCK(os.fstat(invitation.channel).st_mode):
            return None
        for descriptor in invitation[:3]:
            os.set_inheritable(descriptor, False)
    except (ValueError, OSError):
        return None
    return invitation


def _directory_at_start() -> str | None:
    """``None``: the directory that this program is in does not exist any more."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


invitation = _invited()
directory = _directory_at_start()
# Where the system does not keep it.
_environment = None if Path(_KEPT_BY_SYSTEM).exists() else dict(os.environ)


def is_executor() -> bool:
    """Whether this process is an executor: a supervisor, such as a worker, has started it to run jobs. Ask this before
    you do what only one process of a program can do, for example bind a port in ``AppConfig.ready()``. The answer is
    the same from the first import of the package on."""
    return invitation is not None


def command_line() -> list[str]:
    """What has started this program: the Python, with its options, the script and the arguments."""
    arguments, script = sys.orig_argv[1:], getattr(sys.modules["__main__"], "__file__", None) or ""
    position = len(arguments) - len(sys.argv)
    # The settings may have changed the directory to which the script's path is relative.
    if position >= 0 and Path(script).is_absolute() and Path(script).name == Path(arguments[position]).name:
        arguments[position] = script
    return [sys.executable, *arguments]


def environment(invited: Invitation | None = None) -> dict[str, str]:
    """The environment that this program was started with, because the settings may have removed a secret from it since.
    With an invitation, it is that of an executor."""
    invitation = {VARIABLE: str(invited)} if invited else {}
    return {**(_environment or _kept_environment() or os.environ), **invitation}


def _kept_environment() -> dict[str, str]:
    """Empty if it is not known: a program that shows a title of its own in lists of processes writes it there."""
    try:
        entries = Path(_KEPT_BY_SYSTEM).read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = [os.fsdecode(entry).partition("=") for entry in entries if entry]
    return {name: value for name, _, value in pairs} if all(equals for _, equals, _ in pairs) else {}
