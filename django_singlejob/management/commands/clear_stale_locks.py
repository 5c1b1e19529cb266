"""``manage.py clear_stale_locks``: clear the locks of dead holders."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser, no_translations

from django_singlejob.conf import quoted
from django_singlejob.jobs.schedule import duration_in_words
from django_singlejob.locking.clear import Watchman, clear, dead_locks
from django_singlejob.locking.liveness import SECOND, disagreement
from django_singlejob.locking.recording import HistoryFailed, abandon_orphans
from django_singlejob.management.arguments import CallableCommand, text
from django_singlejob.management.exit_status import explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.monitoring.health import is_overrunning
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed, shown

if TYPE_CHECKING:
    from django_singlejob.models import JobLock


class Command(CallableCommand):
    help = (
        "Clears locks whose holders died. A lock is stale if its lease has expired. Each stale lock is watched for two "
        "heartbeat intervals first, because after a database outage the leases of live holders have expired too. If "
        "the servers' clocks disagree with the database's, a lock may be left to a later run. You do not need to run "
        "this command regularly: the next caller of a job takes over its stale lock."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--overrunning",
            action="store_true",
            help="Also lists locks that have been held for much longer than usual. They are not cleared.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Lists the locks that would be cleared, but does not clear them."
        )
        parser.add_argument(
            "--force",
            type=text,
            metavar="NAME",
            help="Clears only this lock, even if its holder is alive. Such a holder loses its lease, but may still be "
            "running the job when another server starts it.",
        )
        add_format(parser)

    @no_translations
    def handle(self, **given: Any) -> None:
        refuse_settings()
        self._output = Output(self, given)
        self._facts: dict[str, Any] = {"cleared": [], "left": [], "dry_run": given["dry_run"]}
        with explained():
            if given["force"]:
                self._force(given["force"], is_dry=given["dry_run"])
            else:
                self._clear_dead(is_dry=given["dry_run"])
            if given["overrunning"]:
                self._list_overrunning()
        self._output.end(self._facts)

    def _force(self, name: str, *, is_dry: bool) -> None:
        lock = locks().look_up(name)
        if lock is None:
            raise CommandError(f"There is no lock called {quoted(name)}. The locks held now: {_names() or 'none'}.")
        self._clear([lock], is_dry=is_dry, force=True)

    def _clear_dead(self, *, is_dry: bool) -> None:
        watchman = Watchman()
        found = self._clear(dead_locks(watchman), is_dry=is_dry, force=False)
        for lock, left in watchman.undecided.values():
            time = duration_in_words(left // SECOND * SECOND)
            self._facts["left"].append(_facts_of(lock) | {"reason": "undecided", "for_at_least": left})
            self._output.line(f"Left {_described(lock)} for at least {time}. {disagreement(lock)}")
        if not (found or watchman.undecided):
            self._output.line("No stale locks.")
        if not is_dry:
            self._tidy_the_history()

    def _tidy_the_history(self) -> None:
        try:
            orphans = abandon_orphans()
        except HistoryFailed as failed:
            self._output.error(f"The history could not be written: {failed}.")
            return
        self._facts |= {"abandoned": orphans}
        if orphans:
            self._output.line(f"Runs whose locks no longer exist, now abandoned: {orphans}.")

    def _clear(self, found: "Iterable[JobLock]", *, is_dry: bool, force: bool) -> int:
        """Returns the number of locks in ``found``."""
        count = 0
        for lock in found:
            count += 1
            if is_dry:
                self._facts["cleared"].append(_facts_of(lock))
                self._output.line(f"Would clear {_described(lock)}.")
            elif clear(lock, force=force, error="The lock was cleared by clear_stale_locks."):
                self._facts["cleared"].append(_facts_of(lock))
                self._output.line(f"Cleared {_described(lock)}.")
            else:
                self._facts["left"].append(_facts_of(lock) | {"reason": "changed"})
                self._output.line(
                    f"Left {lock.name}, because it has a new holder, its holder is alive, or its gate is busy."
                )
        return count

    def _list_overrunning(self) -> None:
        self._facts["overrunning"] = []
        held = locks().live().survey()
        statuses = gates().filter(name__in={lock.job_name for lock in held}).survey()
        for lock in held:
            status = statuses.get(lock.job_name)
            if status and is_overrunning(status, lock):
                self._facts["overrunning"].append(_facts_of(lock) | {"mean_duration": status.mean_duration})
                self._output.line(f"Overrunning: {_described(lock)}; its mean is {status.mean_duration}.")


def _names() -> str:
    return shown(listed(locks().order_by("name").values_list("name", flat=True)))


def _facts_of(lock: "JobLock") -> dict[str, Any]:
    names = ("name", "job_name", "hostname", "pid", "command", "acquired_at", "heartbeat_at")
    return {name: getattr(lock, name) for name in names}


def _described(lock: "JobLock") -> str:
    times = f"since {instant_in_words(lock.acquired_at)}, last heartbeat {instant_in_words(lock.heartbeat_at)}"
    return f"{lock.name} (held by {lock.holder} {times})"
