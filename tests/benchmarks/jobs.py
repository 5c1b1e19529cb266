"""Few and many registered jobs, and what is done with them: a tick, `singleton_status --check` and the overview."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import cast
from unittest import mock

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse

from django_singlejob import Outcome, Reason, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.jobs.schedule import next_slot, parse
from django_singlejob.models import JobStatus
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import DBNow, local_now
from django_singlejob.worker import loop
from django_singlejob.worker.due_run import DueRun, Inline, Runnable
from django_singlejob.worker.tick import Plan
from tests.benchmarks.throughput import analyze

COUNTS = (10, 100, 1_000, 10_000)
DUE = 10
ROUNDS = 9
SCHEDULES = ("{0} * * * *", "*/10 * * * *", "{0} {1} * * *", "{0} {1} * * mon-fri", "{0} 2-22/4 1,15 * *")


class Refusing(Inline):
    """Every run is refused: what a run itself costs is measured elsewhere."""

    def send(self, run: Runnable) -> None:
        self._returns.append((run, replace(_REFUSED, name=run.name)))

    @property
    def free(self) -> int:
        return 2 * DUE - len(self._returns)


_REFUSED = Outcome(status="skipped", value=None, reason=Reason.NOT_DUE)


# --- what is measured


class Worker:
    """A worker between two passes. It has its lock already."""

    def __init__(self) -> None:
        self._worker = loop.Worker(Plan())
        self._tick = self._worker._tick
        self._tick._pool = self._pool = Refusing()
        self.look()

    def tick(self) -> None:
        """A pass that compares the schedules too: the first one of each process, and one each minute."""
        self._worker._follow_code_at = local_now()
        self.look()

    def look(self) -> None:
        """Any other pass: one each second."""
        self._worker._look()
        while self._tick.take_turns():
            pass
        for task, said in self._pool.come_back():
            self._tick.settle(cast("DueRun", task), said)

    def close(self) -> None:
        self._worker._lock.release()


def check() -> None:
    with suppress(SystemExit):
        call_command("singleton_status", "--check", stdout=StringIO())


@override_settings(ALLOWED_HOSTS=["testserver"])
def overview() -> None:
    client = Client()
    client.force_login(get_user_model().objects.get(username="bench"))
    assert client.get(reverse("admin:django_singlejob_overview_changelist")).status_code == 200


def acts(worker: Worker) -> dict[str, Callable[[], object]]:
    return {
        "tick, none due": worker.tick,
        f"tick, {DUE} due": worker.tick,
        "look, none due": worker.look,
        "singleton_status --check": check,
        "overview": overview,
    }


# --- the jobs


@contextmanager
def many_jobs(count: int) -> Iterator[None]:
    """Inside the block, this many jobs are registered, and their rows follow them."""
    get_user_model().objects.get_or_create(username="bench", is_staff=True, is_superuser=True)
    gates().all()._raw_delete("default")
    autodiscover()
    with mock.patch.dict(registry._jobs, clear=True):
        for number in range(count):
            singleton_job(name(number), schedule=schedule(number))(check)
        gates().bulk_create((row(number) for number in range(count)), batch_size=1_000)
        analyze()
        yield
    gates().all()._raw_delete("default")


def name(number: int) -> str:
    return f"shop.outcomes.customer-{number:05}"


def schedule(number: int) -> str:
    return SCHEDULES[number % len(SCHEDULES)].format(number % 60, number // 60 % 24)


def row(number: int) -> JobStatus:
    now = datetime.now(UTC)
    return JobStatus(
        name=name(number),
        fence=number + 1,
        schedule=schedule(number),
        time_zone="UTC",
        next_slot=next_slot(parse(schedule(number)), now),
        last_started_at=now - timedelta(minutes=number),
        last_finished_at=now - timedelta(minutes=number),
        last_status="successful",
        run_count=1000,
        mean_duration=timedelta(hours=3),
    )


def fall_due(count: int) -> None:
    """Let exactly this many be due, whatever has come due since they were entered."""
    now = datetime.now(UTC)
    for each in gates().filter(next_slot__lte=DBNow() + timedelta(minutes=1)):
        slot = next_slot(parse(each.schedule), now + timedelta(minutes=1))
        gates().filter(name=each.name).update(next_slot=slot)
    names = [name(number) for number in range(count)]
    gates().filter(name__in=names).update(next_slot=DBNow() - timedelta(minutes=1))
