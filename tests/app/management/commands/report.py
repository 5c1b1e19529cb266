"""A command that a project might have run from cron."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    help = "Reports the day's sales."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("day")
        parser.add_argument("--format", choices=["pdf", "text"], default="text")
        parser.add_argument("--status", type=int)

    def handle(self, day: str, *, format: str, status: int | None, **_: Any) -> str:  # noqa: A002
        if day == "never":
            raise CommandError("There is no such day.", returncode=4)
        if status is not None:
            sys.exit(status)
        return f"{day} as {format}"
