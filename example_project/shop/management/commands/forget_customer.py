"""``manage.py forget_customer``: have a customer's data deleted."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from shop.counter import forget_customer


class Command(BaseCommand):
    help = "Has a worker delete the data of a customer in the coming night."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")

    def handle(self, **given: Any) -> None:
        self.stdout.write(f"It will be done after {forget_customer(given['email']).run_after:%F %H:%M} UTC.")
