"""``manage.py retry_one_offs``: run failed one-offs and tasks again."""

from typing import Any

from django.core.management.base import CommandParser

from django_singlejob.management.arguments import instant
from django_singlejob.management.one_off_choice import OneOffCommand
from django_singlejob.models.one_offs import OneOffJobQuerySet


class Command(OneOffCommand):
    help = (
        "Has failed one-offs and tasks run once more, whatever their maximum number of attempts. Cancelled ones are "
        "retried only if you give their numbers, or --cancelled."
    )
    done, verb, only = "Retried", "retry", "they have not failed"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--cancelled", action="store_true", help="Retries cancelled ones too.")
        parser.add_argument(
            "--failed-since",
            type=instant,
            metavar="INSTANT",
            help="Those that failed at this instant or later: in ISO 8601, by default in the project's time zone.",
        )

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if given["failed_since"] is None:
            super().check_options(parser, given)
        elif given["cancelled"]:
            parser.error("--failed-since is for failed ones: leave --cancelled out.")

    def changeable(self, rows: OneOffJobQuerySet, given: dict[str, Any]) -> OneOffJobQuerySet:
        if since := given["failed_since"]:
            return rows.filter(status="failed", finished_at__gte=since)
        return rows.unsuccessful() if given["ids"] or given["cancelled"] else rows.filter(status="failed")

    def act(self, rows: OneOffJobQuerySet) -> int:
        return rows.retry()
