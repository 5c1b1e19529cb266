"""What ``pause_singletons`` and ``resume_singletons`` have in common."""

import sys
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from django.core.management.base import CommandParser, no_translations

from django_singlejob.conf import quoted
from django_singlejob.jobs import registry
from django_singlejob.jobs.names import did_you_mean
from django_singlejob.management.arguments import CallableCommand, text
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE, discover_jobs, explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models.jobs import gates
from django_singlejob.process.holder import this_user

# How long to wait for a fenced transaction of the job, in seconds.
PATIENCE = 5.0


class GateCommand(CallableCommand):
    """A command that changes the gates of the named jobs, or of all jobs."""

    requires_system_checks = ()

    # Returns ``False`` if there is nothing to change, and ``None`` if the gate is busy.
    act: ClassVar[Callable[..., bool | None]]
    # ``Paused``
    done: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="*", default=[], type=text, metavar="NAME", help="The name of a job.")
        parser.add_argument(
            "--all",
            action="store_true",
            help="All jobs that are registered or have run, but none that was paused by its name.",
        )
        add_format(parser)

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if bool(given["names"]) == given["all"]:
            parser.error("Name the jobs, or use --all: NAME [NAME ...] or --all.")

    @no_translations
    def handle(self, **given: Any) -> None:
        self._output = Output(self, given)
        self._changed: list[str] = []
        self._unchanged: list[str] = []
        self._errors: list[dict[str, str]] = []
        discover_jobs()
        refuse_settings()
        with explained():
            known = _known_jobs()
            how = self.how(given)
            names = sorted(known) if given["all"] else list(dict.fromkeys(given["names"]))
            statuses = [self._change(name, known, how) for name in names]
        self.close(given)
        verb = self.done.lower()
        self._output.end({verb: self._changed, "unchanged": self._unchanged, "errors": self._errors})
        if failed := next(filter(None, statuses), 0):
            sys.exit(failed)

    def how(self, given: dict[str, Any]) -> dict[str, Any]:
        """What else to pass to ``act``."""
        return {"with_all": given["all"], "by": this_user()}

    def not_done(self, how: dict[str, Any]) -> str:
        """What to say of a job if there is nothing to change."""
        raise NotImplementedError

    def close(self, given: dict[str, Any]) -> None:
        """What to say at the end."""

    def aside(self, how: dict[str, Any]) -> str:
        """What to add to the line of a job that was changed."""
        return ""

    def say(self, line: str) -> None:
        self._output.line(line)

    def _change(self, name: str, known: Collection[str], how: dict[str, Any]) -> int:
        """Returns the exit status."""
        if name not in known:
            self._complain(name, "unknown", f"no job has this name. {_suggestion(name, known)}")
            return EX_USAGE
        is_changed = type(self).act(name, patience=PATIENCE, **how)
        if is_changed is None:
            self._complain(name, "busy", "another transaction is using it. Try again.")
            return EX_TEMPFAIL
        (self._changed if is_changed else self._unchanged).append(name)
        self.say(f"{self.done} {name!r}{self.aside(how)}." if is_changed else f"{name!r} {self.not_done(how)}.")
        return 0

    def _complain(self, name: str, reason: str, why: str) -> None:
        message = f"{quoted(name)} was not {self.done.lower()}: {why}"
        self._errors.append({"name": name, "reason": reason, "message": message})
        self._output.error(message)


def _known_jobs() -> set[str]:
    return {job.name for job in registry.all_jobs()} | set(gates().of_jobs().values_list("name", flat=True))


def _suggestion(name: str, known: Collection[str]) -> str:
    return did_you_mean(name, known) or "singleton_status lists the jobs."
