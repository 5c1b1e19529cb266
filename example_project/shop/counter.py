"""The shop's counter: what can be done later is enqueued here, and a worker runs it."""

from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction
from django.utils import timezone

from django_singlejob.models import OneOffJob

from .jobs import confirm_order, delete_customer
from .models import Order

QUIET_HOUR = 3


def place_order(email: str, amount: Decimal) -> Order:
    """Take an order, and enqueue its confirmation: both are committed, or neither."""
    with transaction.atomic():
        order: Order = Order.objects.create(email=email, amount=amount)
        confirm_order.enqueue(order.pk)
    return order


def forget_customer(email: str) -> OneOffJob:
    """Enqueue the deletion of the customer's data for the next quiet hour. Until then it can be cancelled."""
    return delete_customer.using(run_after=tonight(), priority=-10).enqueue(email)


def tonight() -> datetime:
    """The next quiet hour, in the shop's time zone."""
    now = timezone.localtime()
    quiet = now.replace(hour=QUIET_HOUR, minute=0, second=0, microsecond=0)
    return quiet if quiet > now else quiet + timedelta(days=1)
