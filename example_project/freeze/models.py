from typing import ClassVar

from django.db import models


class Invoice(models.Model):
    """What a worker has written. No constraint keeps a customer from getting two: a file, a mail or a sum has none
    either."""

    lock = models.CharField(max_length=20)
    customer = models.PositiveSmallIntegerField()
    worker = models.PositiveSmallIntegerField()

    objects: ClassVar[models.Manager["Invoice"]] = models.Manager()

    def __str__(self) -> str:
        return f"Invoice {self.pk} of customer {self.customer}"
