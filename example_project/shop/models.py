from datetime import datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Self, TypedDict

from django.db import models
from django.db.models import Count, Sum
from django.utils import timezone

KEPT_CARTS = timedelta(days=14)


class Sales(TypedDict):
    """What was sold in a period."""

    orders: int
    revenue: Decimal


class Product(models.Model):
    sku = models.CharField(max_length=20, unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=8, decimal_places=2)

    objects: ClassVar[models.Manager["Product"]] = models.Manager()

    def __str__(self) -> str:
        return self.name


class CartQuerySet(models.QuerySet["Cart"]):
    def abandoned(self) -> Self:
        """Those that have not been touched for a fortnight."""
        return self.filter(touched_at__lt=timezone.now() - KEPT_CARTS)


class Cart(models.Model):
    email = models.EmailField()
    touched_at = models.DateTimeField(default=timezone.now)

    objects = CartQuerySet.as_manager()

    def __str__(self) -> str:
        return self.email


class OrderQuerySet(models.QuerySet["Order"]):
    def placed_between(self, start: datetime, end: datetime) -> Self:
        return self.filter(placed_at__gte=start, placed_at__lt=end)

    def sales(self) -> Sales:
        total = self.aggregate(orders=Count("pk"), revenue=Sum("amount", default=Decimal(0)))
        return Sales(orders=total["orders"], revenue=total["revenue"])


class Order(models.Model):
    email = models.EmailField()
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    placed_at = models.DateTimeField(default=timezone.now)

    objects = OrderQuerySet.as_manager()

    def __str__(self) -> str:
        return f"Order {self.pk}"


class SalesReport(models.Model):
    """The sales of one hour."""

    hour = models.DateTimeField(unique=True)
    orders = models.PositiveIntegerField()
    revenue = models.DecimalField(max_digits=10, decimal_places=2)

    objects: ClassVar[models.Manager["SalesReport"]] = models.Manager()

    def __str__(self) -> str:
        return f"Sales of {self.hour:%F %H:%M}"
