"""The plain command: what a project had before it used the package."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tests.benchmarks.shop.work import work


class Command(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", nargs="?", default="")

    def handle(self, file: str, **_: Any) -> None:
        work(file)
