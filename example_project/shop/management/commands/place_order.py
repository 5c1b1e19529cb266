"""``manage.py place_order``: place an order, as a customer does."""

from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from shop.counter import place_order


class Command(BaseCommand):
    help = "Places an order. A worker will confirm it by mail."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")
        parser.add_argument("amount", type=Decimal)

    def handle(self, **given: Any) -> None:
        self.stdout.write(f"{place_order(given['email'], given['amount'])} is placed.")
