"""``manage.py cancel_one_offs``: cancel one-offs and tasks that wait."""

from typing import Any

from django.core.management.base import CommandParser

from django_singlejob.management.one_off_choice import FILTERS, OneOffCommand
from django_singlejob.models.one_offs import ENDED, OneOffJobQuerySet


class Command(OneOffCommand):
    help = "Cancels one-offs and tasks that have not begun. Those in progress continue to their end."
    done, verb, only = "Cancelled", "cancel", "only waiting ones can be cancelled"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--all", action="store_true", help="All that wait.")

    def check_options(self, parser: CommandParser, given: dict[str, Any]) -> None:
        if any(given[name] for name in ("ids", *FILTERS)) == given["all"]:
            parser.error(
                "Choose the one-offs: ID [ID ...], --job NAME, --queue NAME or --task PATH; or all that wait: --all."
            )

    def chosen(self, given: dict[str, Any]) -> OneOffJobQuerySet:
        rows = super().chosen(given)
        return rows.exclude(status__in=ENDED) if given["all"] else rows

    def changeable(self, rows: OneOffJobQuerySet, given: dict[str, Any]) -> OneOffJobQuerySet:
        return rows.waiting()

    def act(self, rows: OneOffJobQuerySet) -> int:
        return rows.cancel()
