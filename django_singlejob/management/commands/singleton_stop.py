"""``manage.py singleton_stop``: stop a run."""

import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser, no_translations
from django.db.models import Q

from django_singlejob.conf import quoted
from django_singlejob.control.stopping import Obstacle, stop_one_off, stop_run
from django_singlejob.jobs.schedule import duration_in_words
from django_singlejob.management.arguments import CallableCommand, key, text, token
from django_singlejob.management.exit_status import EX_FAILED, EX_TEMPFAIL, EX_USAGE, explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.unreadable import refuse, reporting
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed
from django_singlejob.process.holder import this_user
from django_singlejob.process.logs import in_english

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, OneOffJob


class Command(CallableCommand):
    help = (
        "Stops a run. Its holder finds out at its next heartbeat. If a command runs it, its process then gets SIGTERM, "
        "and SIGKILL if it has not ended after a grace; code that runs a job itself, and a task, find out when they "
        "ask. A run that has ended meanwhile, and the next one, are left alone."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", type=text, metavar="NAME", help="The name of a job or of a lock.")
        parser.add_argument(
            "--token", type=token, metavar="UUID", help="Stops only the holder that has this token (default: any)."
        )
        parser.add_argument(
            "--one-off", type=key, metavar="ID", help="Stops the one-off or task with this number instead."
        )
        add_format(parser)

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if (given["name"] is None) == (given["one_off"] is None):
            parser.error("Give the name of a job or a lock, or --one-off ID.")
        if given["token"] and given["name"] is None:
            parser.error("--token needs the name of a job or a lock.")

    @no_translations
    def handle(self, **given: Any) -> None:
        refuse_settings()
        self._output = Output(self, given)
        self._facts: dict[str, list[Any]] = {"stopped": [], "unchanged": [], "errors": []}
        with explained():
            if given["name"] is None:
                status = self._stop_one_off(given["one_off"])
            else:
                status = self._stop_run(given["name"], given["token"])
        self._output.end(self._facts)
        if status:
            sys.exit(status)

    def _stop_run(self, name: str, token: object) -> int:
        """Returns the exit status."""
        with reporting(refuse):
            found = locks().filter(Q(name=name) | Q(job_name=name)).order_by("name").survey()
        chosen = [lock for lock in found if token in (None, lock.token)]
        if len(chosen) == 1:
            return self._told(chosen[0].name, stop_run(chosen[0], this_user()), _facts_of(chosen[0]), _when(chosen[0]))
        if chosen:
            why = f"there are several. Choose one of them with --token: {listed(map(_described, chosen), '; ')}."
            return self._complain(name, "several", why, EX_USAGE)
        if found:
            why = f"the run with the token {token} has ended. This one goes on: {listed(map(_described, found), '; ')}."
            return self._complain(name, "token", why, EX_FAILED)
        held = listed(locks().order_by("name").values_list("name", flat=True))
        why = f"nothing holds its lock. The locks held now: {held or 'none'}."
        return self._complain(name, Obstacle.OVER.value, why, EX_FAILED)

    def _stop_one_off(self, number: int) -> int:
        row = one_offs().filter(pk=number).only("job_name", "task_path", "status", "version", "token", "stopped_by")
        seen = row.first()
        if seen is None:
            return self._complain(str(number), "unknown", "there is no one-off with this number.", EX_USAGE)
        words = "its holder's next heartbeat asks it to end" if seen.job_name else "it ends as soon as it asks"
        facts = {"one_off": seen.pk, "name": seen.name}
        return self._told(_named(seen), stop_one_off(seen, this_user()), facts, words)

    def _told(self, name: str, obstacle: Obstacle | None, facts: dict[str, Any], when: str) -> int:
        if obstacle is None:
            self._facts["stopped"].append(facts)
            self._output.line(f"Stopped {name!r}: {when}.")
        elif obstacle is Obstacle.STOPPED:
            self._facts["unchanged"].append(facts)
            self._output.line(f"{name!r} was stopped already: {when}.")
        else:
            return self._complain(
                name,
                obstacle.value,
                f"{in_english(obstacle.label)}.",
                EX_TEMPFAIL if obstacle is Obstacle.BUSY else EX_FAILED,
            )
        return 0

    def _complain(self, name: str, reason: str, why: str, status: int) -> int:
        message = f"{quoted(name)} was not stopped: {why}"
        self._facts["errors"].append({"name": name, "reason": reason, "message": message})
        self._output.error(message)
        return status


def _named(row: "OneOffJob") -> str:
    return f"{row.name} #{row.pk}"


def _when(lock: "JobLock") -> str:
    """Which holder is asked to end, and when."""
    within = f", within {duration_in_words(lock.heartbeat_interval)}" if lock.heartbeat_interval else ""
    return f"the next heartbeat of {_described(lock)} asks it to end{within}"


def _described(lock: "JobLock") -> str:
    of_job = f" for {lock.job_name}" if lock.job_name not in ("", lock.name) else ""
    since = instant_in_words(lock.acquired_at)
    return f"{lock.holder} (lock {lock.name}{of_job} since {since}, token {lock.token})"


def _facts_of(lock: "JobLock") -> dict[str, Any]:
    names = ("name", "job_name", "token", "hostname", "pid", "acquired_at", "heartbeat_at", "heartbeat_interval")
    return {name: getattr(lock, name) for name in names}
