"""``manage.py singleton_adopt``: turn the lines of a crontab, or what Celery beat sends, into jobs."""

import sys
from typing import Any

from django.core.management import get_commands
from django.core.management.base import CommandParser

from django_singlejob.adopt.arguments import HELP, add_arguments, carry_out
from django_singlejob.management.arguments import CallableCommand


class Command(CallableCommand):
    help = HELP
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser, has_project=True)

    def handle(self, **given: Any) -> None:
        if status := carry_out(given, self.stdout, self.stderr, get_commands()):
            sys.exit(status)
