"""A job, and two locks for it. The job is the same under both: it writes an invoice for each customer without one."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

from django.core.cache import cache
from django.db import transaction

from django_singlejob import job_lock

from .models import Invoice

NAME = "invoices"
LEASE = timedelta(seconds=6)
CUSTOMERS = range(1, 11)
# How long a worker waits for the lock.
PATIENCE = timedelta(minutes=1)

PLAIN, OURS = "a plain lock", "django-singlejob"


class Worker(Protocol):
    """What the job reports to."""

    lock: str
    number: int

    def holds(self) -> None: ...
    def prepare(self, customer: int) -> None: ...
    def wrote(self, customer: int) -> None: ...


def plain(worker: Worker) -> None:
    """As in many projects, the lock is a key that expires. Renewing it would not help: a frozen process renews nothing.
    Nor would looking at it before each invoice, because the process may be frozen between the look and the write."""
    while not cache.add(NAME, worker.number, timeout=LEASE.total_seconds()):
        time.sleep(0.1)
    try:
        worker.holds()
        write_invoices(worker, transaction.atomic)
    finally:
        if cache.get(NAME) == worker.number:
            cache.delete(NAME)


def ours(worker: Worker) -> None:
    with job_lock(NAME, lease=LEASE, wait=PATIENCE) as lease:
        worker.holds()
        write_invoices(worker, lease.atomic)


def write_invoices(worker: Worker, transaction: Callable[[], AbstractContextManager[None]]) -> None:
    """Write an invoice for each customer without one, each in a ``transaction()``."""
    written = set(Invoice.objects.filter(lock=worker.lock).values_list("customer", flat=True))
    for customer in (each for each in CUSTOMERS if each not in written):
        worker.prepare(customer)  # slow, so it is outside the transaction
        with transaction():
            Invoice.objects.create(lock=worker.lock, customer=customer, worker=worker.number)
        worker.wrote(customer)


LOCKS: dict[str, Callable[[Worker], None]] = {PLAIN: plain, OURS: ours}
