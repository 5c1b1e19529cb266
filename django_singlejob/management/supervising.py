"""A command that has an executor run what it is for, if it is the program of its process."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from django.core import mail

from django_singlejob.locking.at_exit import release_at_exit
from django_singlejob.management.arguments import CallableCommand
from django_singlejob.management.output import give_up_unwritable
from django_singlejob.process import messages
from django_singlejob.process.leaving import leave
from django_singlejob.process.logs import about
from django_singlejob.running.executor import Executor, forked
from django_singlejob.running.serving import serve_if_invited
from django_singlejob.running.supervisor import Supervisor, can_supervise

logger = logging.getLogger("django_singlejob")


class SupervisingCommand(CallableCommand):
    """A command with one run."""

    # Whether the process exits after this command, which then decides the exit status.
    is_last = False
    # Whether the command line of the program names it. Otherwise an executor that is started by that would do something
    # else, for example the whole of an entrypoint that migrates first.
    is_own = False
    _first: Executor | None = None

    def run_from_argv(self, argv: list[str]) -> None:
        serve_if_invited()
        self.is_last, self.is_own = True, argv[1] in sys.argv
        try:
            super().run_from_argv(argv)
        except SystemExit as end:
            end.code = self._status_of(end)
            self._tell_the_rest(end.code)
            raise
        except BaseException:
            if not messages.are_begun:
                raise
            messages.say(sys.stderr, partial(sys.excepthook, *sys.exc_info()), "")
            self._tell_the_rest(1)
            sys.exit(1)
        self._tell_the_rest(0)

    def fork_first(self) -> None:
        """Fork the process that will have the run, if that is possible. Call this before the command has anything that
        a fork must not share, such as a thread."""
        self._first = forked() if self.is_own and can_supervise() else None

    def supervisor(self, **options: Any) -> AbstractContextManager[Supervisor | None]:
        """What has another process run the body; ``None`` if this process has to. ``options``: see ``Supervisor``."""
        if self.has_executors():
            return Supervisor(first=self._first, **options)
        return nullcontext()

    def has_executors(self) -> bool:
        """Whether other processes can run what this command is for. If so, this one waits for nobody from now on. If
        not, a warning says what that gives up."""
        why = self._why_alone()
        if why and not hasattr(mail, "outbox"):  # Django's test runners, and pytest-django, make one
            message = (
                "%s runs jobs in this process, because %s. So max_runtime and the options about processes, threads and "
                "grace have no effect, and a job that hangs cannot be ended. Start it as a program: manage.py %s."
            )
            logger.warning(message, self.name, why, self.name, extra=about(reason="in process"))
        if not why:
            messages.begin()
        return not why

    def _why_alone(self) -> str:
        if not self.is_last:
            return "a program has called it"
        if not self.is_own:
            return "the command line of this process does not name it"
        return "" if can_supervise() else "no other process would see what this one writes to the database"

    @property
    def name(self) -> str:
        """The name of the command."""
        return type(self).__module__.rpartition(".")[2]

    def _tell_the_rest(self, status: int) -> None:
        """Wait until everything is written and handled, but not for long. Does not return if another process is the
        program now, or if this one would not come to its usual end."""
        is_told = messages.end()
        if is_told:
            give_up_unwritable([sys.stdout, sys.stderr])
        if not is_told or (self._first and self._first.has_served):  # which goes on as the program
            release_at_exit()
            leave(status)

    def _status_of(self, end: SystemExit) -> int:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        self.stderr.write(str(end.code), str)
        return 1
