"""``manage.py forget_customer``: have a customer's data deleted."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from shop.counter import forget_customer


class Command(BaseCommand):
    help = "Enqueues the deletion of a customer's data for the coming night."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")

    def handle(self, **given: Any) -> None:
        self.stdout.write(f"A worker will delete it after {forget_customer(given['email']).run_after:%F %H:%M} UTC.")
