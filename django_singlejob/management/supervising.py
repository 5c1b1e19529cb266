"""A command that has an executor run what it is for, if it is the program of its process."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.core import mail

from django_singlejob.locking.at_exit import release_at_exit
from django_singlejob.management.arguments import CallableCommand
from django_singlejob.process import program
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
    # Whether it is what the program was started for, so that another process can be started in the same way.
    is_own = False
    _first: Executor | None = None

    def run_from_argv(self, argv: list[str]) -> None:
        serve_if_invited()
        self.is_last, self.is_own = True, program.is_started_by(argv[1])
        try:
            super().run_from_argv(argv)
        except SystemExit as end:
            if self._is_replaced:
                self._leave_if_replaced(_status_of(end))
            raise
        except BaseException:
            if self._is_replaced:
                sys.excepthook(*sys.exc_info())
            self._leave_if_replaced(1)
            raise
        self._leave_if_replaced(0)

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
        """Whether other processes can run what this command is for. If not, a warning says what that gives up."""
        why = self._why_alone()
        if why and not hasattr(mail, "outbox"):  # Django's test runners, and pytest-django, make one
            message = (
                "%s runs jobs in this process, because %s. So max_runtime and the options about processes, threads and "
                "grace have no effect, and a job that hangs cannot be ended. Start it as a program: manage.py %s."
            )
            logger.warning(message, self.name, why, self.name, extra=about(reason="in process"))
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

    @property
    def _is_replaced(self) -> bool:
        """Whether the process that this one has forked went on as the program."""
        return self._first is not None and self._first.has_served

    def _leave_if_replaced(self, status: int) -> None:
        if self._is_replaced:
            release_at_exit()
            leave(status)


def _status_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1
