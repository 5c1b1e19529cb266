"""The shop's jobs. Every server has the same crontab, of one line, and each job runs on one of them.

::

    * * * * *  manage.py singleton_worker --once

To run one-offs sooner than at the next full minute, keep ``manage.py singleton_worker`` running instead.
"""

import logging
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from django_singlejob import current_run, singleton_job

from . import mail, supplier
from .models import Cart, Order, Product, SalesReport

logger = logging.getLogger(__name__)

HOUR = timedelta(hours=1)


# Each hour needs its report: after a night without servers there is one run for each hour that was missed.
@singleton_job(schedule="5 * * * *", catch_up="all")
def sales_report() -> SalesReport:
    """Reports what was sold in the last full hour."""
    run = current_run()
    # The slot says which hour is meant, however late the run is. A run by hand has no slot.
    now = run.slot if run and run.slot else timezone.now()
    end = now.replace(minute=0, second=0, microsecond=0)
    sales = Order.objects.placed_between(end - HOUR, end).sales()
    # A job may be run again after a crash, so running it twice must do no harm: update_or_create, not create.
    report, _ = SalesReport.objects.update_or_create(hour=end - HOUR, defaults={**sales})
    logger.info("%s: %d orders, %.2f in all.", report, report.orders, report.revenue)
    return report


@singleton_job(schedule="30 3 * * *", time_zone="Europe/Rome")
def clean_up_carts() -> int:
    """Deletes the carts that have not been touched for a fortnight."""
    count, _ = Cart.objects.abandoned().delete()
    logger.info("Deleted %d abandoned carts.", count)
    return count


# It runs for much longer than its lease, which heartbeats renew. So the lease does not have to be as long as the job:
# it only says how soon another server may take over when this one has died.
@singleton_job(schedule="0 4 * * 1-6", time_zone="Europe/Rome", lease=timedelta(seconds=12))
def import_catalogue(seconds_per_page: float = 1.0) -> int:
    """Brings products and prices up to date with the supplier's catalogue, page by page."""
    run = current_run()
    if run is None:
        raise RuntimeError("Call import_catalogue(), not import_catalogue.__wrapped__(): the import needs its lease.")
    count = 0
    for page in supplier.pages(seconds_per_page):
        # The request took a while. If this server was frozen for longer than the lease, another one may be importing
        # by now: then this block raises LeaseLost, and none of the page is written. Keep such blocks short, without a
        # request in them: no other server can take the lock meanwhile, and on SQLite no other process can write.
        with run.lease.atomic():
            for article in page:
                prices = {"name": article.name, "price": article.price}
                Product.objects.update_or_create(sku=article.sku, defaults=prices)
        count += len(page)
        logger.info("Attempt %d: %d products.", run.attempt, count)
    # Outside the database no transaction refuses what comes too late, so check first.
    run.lease.check()
    logger.info("Reported to the supplier: %d products are on sale.", count)
    return count


# One-offs: see counter.py. One mail is sent at a time. While the mail server is away, it is retried after 1, 2, 4, 8
# and 16 minutes. If a server dies after it has sent a mail and before that is recorded, the mail is sent again: no lock
# can rule that out.
@singleton_job(retries=5, retry_delay=timedelta(minutes=1), max_runtime=timedelta(minutes=5))
def confirm_order(order_id: int) -> None:
    """Confirms the customer's order by mail."""
    order = Order.objects.get(pk=order_id)
    mail.send(order.email, f"{order} of {order.amount:.2f} has arrived.")


# What it returns is stored with the one-off, as JSON, so the caller can see that it is done.
@singleton_job
def delete_customer(email: str) -> dict[str, int]:
    """Deletes a customer's data. The orders are kept for the books, without the address."""
    with transaction.atomic():
        carts, _ = Cart.objects.filter(email=email).delete()
        orders = Order.objects.filter(email=email).update(email="")
    logger.info("Deleted the data of a customer: %d carts, %d orders.", carts, orders)
    return {"carts": carts, "orders": orders}
