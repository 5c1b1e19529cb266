"""What ``cancel_one_offs`` and ``retry_one_offs`` have in common."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.management.base import CommandParser, no_translations
from django.db import Error
from django.db.models import Count

from django_singlejob.database import errors, transactions
from django_singlejob.management.arguments import CallableCommand, key, queue, text
from django_singlejob.management.exit_status import EX_USAGE, explained, refuse_settings
from django_singlejob.management.output import Output, add_format
from django_singlejob.models import OneOffJob
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import backoff, local_now, sleep

if TYPE_CHECKING:
    from django_singlejob.models.one_offs import OneOffJobQuerySet

# How long to retry while workers are in the way, in seconds.
PERSEVERANCE = 5.0
CHANGED = "changed_meanwhile"
FILTERS = {"jobs": "job_name", "queues": "queue_name", "tasks": "task_path"}


class OneOffCommand(CallableCommand):
    """A command that changes the one-offs that are chosen by number, job, queue or task. All criteria must hold."""

    requires_system_checks = ()

    # ``Cancelled``, the verb, and why others are left alone.
    done: ClassVar[str]
    verb: ClassVar[str]
    only: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "ids", nargs="*", type=key, default=[], metavar="ID", help="The number of a one-off or task."
        )
        several: dict[str, Any] = {"action": "append", "default": [], "type": text}
        parser.add_argument("--job", dest="jobs", metavar="NAME", help="Those of this job.", **several)
        parser.add_argument(
            "--queue", dest="queues", metavar="NAME", help="Those in this queue.", **several | {"type": queue}
        )
        parser.add_argument("--task", dest="tasks", metavar="PATH", help="Tasks with this dotted path.", **several)
        parser.add_argument("--dry-run", action="store_true", help="Only counts them.")
        add_format(parser)

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if not any(given[name] for name in ("ids", *FILTERS)):
            parser.error("Choose the one-offs: ID [ID ...], --job NAME, --queue NAME or --task PATH.")

    def chosen(self, given: dict[str, Any]) -> "OneOffJobQuerySet":
        """The one-offs that meet all criteria, whatever their status."""
        rows = one_offs()
        for option, column in FILTERS.items():
            if given[option]:
                rows = rows.filter(**{f"{column}__in": given[option]})
        return rows.filter(pk__in=given["ids"]) if given["ids"] else rows

    def changeable(self, rows: "OneOffJobQuerySet", given: dict[str, Any]) -> "OneOffJobQuerySet":
        """Those that the command may change."""
        raise NotImplementedError

    def act(self, rows: "OneOffJobQuerySet") -> int:
        """Change these. Returns the number of rows changed."""
        raise NotImplementedError

    @no_translations
    def handle(self, **given: Any) -> None:
        output = Output(self, given)
        refuse_settings()
        with explained():
            rows = self.chosen(given)
            changeable = self.changeable(rows, given)
            # Read first: afterwards, those that were changed would be counted again.
            left, missing = _by_status(rows) - _by_status(changeable), _missing(rows, given["ids"])
            meant = changeable.count()
            changed = 0 if given["dry_run"] else sum(map(self._persistently, changeable.batches()))
        if meant > changed and not given["dry_run"]:
            left[CHANGED] = meant - changed
        self._report(output, meant if given["dry_run"] else changed, left, missing, is_dry=given["dry_run"])
        if missing:
            sys.exit(EX_USAGE)

    def _persistently(self, rows: "OneOffJobQuerySet") -> int:
        give_up_at = local_now() + PERSEVERANCE
        for pause in backoff():
            sleep(pause)
            try:
                with transactions.synchronous(rows.db):
                    return self.act(rows)
            except Error as error:
                if not errors.is_undone(error) or local_now() >= give_up_at:
                    raise
        raise AssertionError("backoff() never ends")

    def _report(self, output: Output, count: int, left: Counter[str], missing: list[int], *, is_dry: bool) -> None:
        noun = "one-off" if count == 1 else "one-offs"
        output.line(f"{f'Would {self.verb}' if is_dry else self.done} {count} {noun}.")
        if left:
            output.line(f"Left alone, because {self.only}: {', '.join(_in_words(left))}.")
        for number in missing:
            output.error(f"There is no one-off {number}, or it does not meet the other criteria.")
        output.end({self.done.lower(): count, "left": left, "missing": missing, "dry_run": is_dry})


def _by_status(rows: "OneOffJobQuerySet") -> Counter[str]:
    counts: Iterable[tuple[str, int]] = rows.order_by().values_list("status").annotate(Count("pk"))
    return Counter(dict(counts))


def _missing(rows: "OneOffJobQuerySet", ids: list[int]) -> list[int]:
    return sorted({*ids} - set(rows.values_list("pk", flat=True))) if ids else []


def _in_words(left: Counter[str]) -> Iterator[str]:
    labels = {**dict(OneOffJob.Status.choices), CHANGED: "changed meanwhile"}
    for status in sorted(left, key=lambda status: [*labels, status].index(status)):
        yield f"{left[status]} {labels.get(status, status)}"
