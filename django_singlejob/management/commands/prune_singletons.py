"""``manage.py prune_singletons``: delete old runs and one-offs."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser, no_translations

from django_singlejob.conf import options
from django_singlejob.management.arguments import CallableCommand, whole_number
from django_singlejob.management.exit_status import explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models.notes import notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs

# No run is older, and the databases cannot subtract much more from an instant.
CENTURY = 36_525


class Command(CallableCommand):
    help = (
        "Deletes one-offs that finished more than --days ago, finished runs that started more than --days ago, older "
        "notes, and the runs of each job beyond its newest --keep. Locks do not need the history, so all of it may be "
        "deleted."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--days", type=whole_number, metavar="N", help='The age limit in days (default: SINGLEJOB["HISTORY_DAYS"]).'
        )
        parser.add_argument(
            "--keep",
            type=whole_number,
            metavar="N",
            help='The number of runs of each job to keep (default: SINGLEJOB["HISTORY_KEEP"]).',
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Counts the rows that would be deleted, but does not delete them."
        )
        add_format(parser)

    @no_translations
    def handle(self, **given: Any) -> None:
        refuse_settings()
        with explained():
            self._prune(given)

    def _prune(self, given: dict[str, Any]) -> None:
        days = options().history_days if given["days"] is None else given["days"]
        keep = options().history_keep if given["keep"] is None else given["keep"]
        age = timedelta(days=min(days, CENTURY))
        old_runs, old_one_offs = runs().surplus(age, keep), one_offs().surplus(age)
        output, is_dry = Output(self, given), given["dry_run"]
        deleted = "that would be deleted" if is_dry else "deleted"
        run_count = sum(rows.count() if is_dry else rows.prune() for rows in old_runs)
        output.line(f"Runs {deleted}: {run_count}.")
        one_off_count = old_one_offs.count() if is_dry else old_one_offs.prune()
        output.line(f"One-offs {deleted}: {one_off_count}.")
        old_notes = notes().surplus(age)
        note_count = old_notes.count() if is_dry else old_notes.prune()
        output.line(f"Notes {deleted}: {note_count}.")
        output.end({"runs": run_count, "one_offs": one_off_count, "notes": note_count, "dry_run": is_dry})
