"""A project's own command around the worker, as those that start something else beside it."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Runs the shop's jobs."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--drain", action="store_true")

    def handle(self, *, drain: bool, verbosity: int, **_: Any) -> None:
        mode = {"drain": True} if drain else {"interval": 0.05}
        call_command("singleton_worker", verbosity=verbosity, **mode)
