"""``manage.py seed``: orders and carts for the jobs to work on."""

import random
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from shop.models import Cart, Order

ORDERS, ORDERS_APART = 120, timedelta(minutes=3)
CARTS, CARTS_APART = 60, timedelta(hours=12)


class Command(BaseCommand):
    help = "Fills the shop with orders of the last hours and carts of the last weeks."

    def handle(self, **options: Any) -> None:
        now = timezone.now()
        Order.objects.bulk_create(_order(number, now - number * ORDERS_APART) for number in range(ORDERS))
        Cart.objects.bulk_create(_cart(number, now - number * CARTS_APART) for number in range(CARTS))
        self.stdout.write(f"The shop has {Order.objects.count()} orders and {Cart.objects.count()} carts.")


def _order(number: int, placed_at: datetime) -> Order:
    amount = Decimal(random.randint(500, 9_999)) / 100  # noqa: S311
    return Order(email=f"customer-{number}@example.com", amount=amount, placed_at=placed_at)


def _cart(number: int, touched_at: datetime) -> Cart:
    return Cart(email=f"visitor-{number}@example.com", touched_at=touched_at)
