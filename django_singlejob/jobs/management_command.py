"""A management command as the function of a job."""

import shlex
from collections.abc import Sequence
from typing import Any

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from django_singlejob.conf import quoted
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs.names import did_you_mean
from django_singlejob.process.escaping import cut


class ManagementCommand:
    """Runs the command with these arguments when it is called, as ``manage.py`` does but for the system checks.

    ``module``: the name of the module that declares the job. Raises ``SingleJobError`` if there is no such command, or
    if its parser refuses the arguments.
    """

    def __init__(self, name: str, arguments: Sequence[str], module: str) -> None:
        self.command, self.arguments = name, list(arguments)
        self.__module__ = module
        self.__name__ = name
        command = _loaded(name)
        _check(command, name, self.arguments)
        # By this, `registry` sees that two jobs of one name run different commands.
        self.__qualname__ = f"command_job({', '.join(map(repr, [name, *self.arguments]))})"
        # The first line describes the job.
        self.__doc__ = ": ".join(filter(None, [f"manage.py {shlex.join([name, *self.arguments])}", _own_help(command)]))

    def __eq__(self, other: object) -> bool:
        """Whether the other one runs the same, wherever it was declared."""
        return isinstance(other, ManagementCommand) and other.__qualname__ == self.__qualname__

    def __hash__(self) -> int:
        return hash((self.command, *self.arguments))

    def __call__(self) -> Any:
        """Returns what the command returns: usually ``None``, or what it has printed. Raises ``CommandError``, which
        has an exit status."""
        try:
            return call_command(self.command, *self.arguments)
        except SystemExit as end:
            if not end.code:
                return None
            status = end.code if isinstance(end.code, int) else 1
            words = f"{self.command} exited with status {status}." if status is end.code else str(end.code)
            raise CommandError(words, returncode=status) from end


def _loaded(name: object) -> BaseCommand:
    known = get_commands()
    if name not in [*known]:  # it may be anything, even what has no hash
        similar = did_you_mean(cut(name), known) if isinstance(name, str) else ""
        hint = similar or "Is its app in INSTALLED_APPS?"
        raise SingleJobError(f"There is no management command {quoted(name)}. {hint}")
    app = known[str(name)]
    return app if isinstance(app, BaseCommand) else load_command_class(app, str(name))


def _own_help(command: BaseCommand) -> str:
    """Its help; empty if the command is one of Django's, whose name says as much."""
    return "" if type(command).__module__.startswith("django.") else command.help.strip()


def _check(command: BaseCommand, name: str, arguments: Sequence[object]) -> None:
    for argument in arguments:
        if not isinstance(argument, str):
            raise SingleJobError(
                f"The arguments of the management command {name!r} must be strings, as in a shell, and "
                f"{quoted(argument)} is not one."
            )
    try:
        command.create_parser("manage.py", name).parse_args([str(argument) for argument in arguments])
    except CommandError as refusal:
        words = str(refusal).removeprefix("Error: ")
        raise SingleJobError(
            f"The management command {name!r} does not accept the arguments {quoted(list(arguments))}: "
            f"{cut(words, 200)}"
        ) from refusal
    except SystemExit:
        raise SingleJobError(
            f"The management command {name!r} would run nothing: {quoted(list(arguments))} asks for help."
        ) from None
