"""``manage.py make_history``: run the shop's jobs once, on three servers, so that the admin has something to show."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db.models import F, QuerySet

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from shop.counter import forget_customer, place_order
from shop.jobs import delete_customer, import_catalogue
from shop.models import Order

# The history is spread over this time.
SPAN = timedelta(hours=6)
# How long a server may take to start, in seconds.
PATIENCE = 60.0


class Command(BaseCommand):
    help = "Runs the shop's jobs once: some succeed, one fails, and one is killed. Does nothing if that has been done."
    requires_migrations_checks = True

    def handle(self, *, verbosity: int, **options: Any) -> None:
        # The last step leaves this run, so a history that was interrupted halfway is begun again.
        if not JobRun.objects.filter(job_name=import_catalogue.name).exists():
            if verbosity:
                self.stdout.write("The shop's jobs are running, to make a history. This takes a few seconds.")
            _make_history()


def _make_history() -> None:
    call_command("seed", verbosity=0)
    for server in "web-1", "web-2":
        _run(server, "run_singleton", "sales_report", "--now")
    _run("web-3", "run_singleton", "clean_up_carts", "--now")
    _enqueue()
    _run("web-2", "singleton_worker", "--drain")
    _spread()
    _kill(_start("web-3", "run_singleton", import_catalogue.name, "--now"))


def _enqueue() -> None:
    for number in range(3):
        place_order(f"customer-{number}@example.com", Decimal("12.50"))
    # The customer cancelled the order, so the confirmation fails and is retried later.
    Order.objects.filter(pk=place_order("nobody@example.com", Decimal("12.50")).pk).delete()
    delete_customer.enqueue("visitor-1@example.com")
    forget_customer("visitor-2@example.com")
    OneOffJob.objects.filter(pk=forget_customer("visitor-3@example.com").pk).cancel()


def _spread() -> None:
    """Have all this happened in the course of the last hours, as the charts expect."""
    ended = list(OneOffJob.objects.exclude(finished_at=None).order_by("finished_at"))
    for row, ago in zip(ended, _steps(len(ended)), strict=True):
        _move(OneOffJob.objects.filter(pk=row.pk), ago, "created_at", "run_after", "started_at", "finished_at")
    runs = list(JobRun.objects.order_by("started_at"))
    latest = {run.job_name: ago for run, ago in zip(runs, _steps(len(runs)), strict=True)}
    for run, ago in zip(runs, _steps(len(runs)), strict=True):
        _move(JobRun.objects.filter(pk=run.pk), ago, "started_at", "finished_at")
    for name, ago in latest.items():
        _move(JobStatus.objects.filter(name=name), ago, "last_started_at", "last_finished_at")


def _steps(count: int) -> list[timedelta]:
    """How long ago each of them happened, the oldest first."""
    return [SPAN * (count - number) / (count + 1) for number in range(count)]


def _move(rows: QuerySet[Any], ago: timedelta, *names: str) -> None:
    rows.update(**{name: F(name) - ago for name in names})


def _run(server: str, *arguments: str) -> None:
    """Run a command on that server. A failed job is part of the history; a command that cannot run is an error."""
    process = _start(server, *arguments)
    output, _ = process.communicate()
    if process.returncode not in (0, 1):
        raise CommandError(f"{' '.join(arguments)} exited with {process.returncode}: {output}")


def _start(server: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, sys.argv[0], *arguments]
    environment = {**os.environ, "SERVER_NAME": server}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    )


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the server while it holds its lock: the lock stays behind, and is stale once its lease has expired."""
    deadline = time.monotonic() + PATIENCE
    while not JobLock.objects.filter(pid=process.pid).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise CommandError(f"{import_catalogue.name} did not begin: {process.communicate()[0]}")
        time.sleep(0.1)
    process.kill()
    process.communicate()
