"""The application's jobs: they write under their locks, and note in the witness's file what they know."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import Error, connection
from django.db.backends.signals import connection_created

from django_singlejob import Lease, current_run, singleton_job
from django_singlejob.jobs import slots
from django_singlejob.signals import job_finished
from tests.app.models import FencedWrite
from tests.chaos.history import History, now
from tests.chaos.onlooker import Onlooker, facts
from tests.clusters import EVERY, LEASE

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_singlejob import CurrentRun

# No slot is given up, however long a failover takes.
slots.MAX_CATCH_UP = 1000
# How long the long job holds its lock, in seconds: longer than it takes to lose a lease and have the lock taken over.
LONG = 9.0
PORT = {"postgresql": "SHOW port", "mysql": "SELECT @@port", "sqlite": "SELECT 0"}

history = History(Path(os.environ["CLUSTER_FOLDER"]) / "history.jsonl", server=int(os.environ["CLUSTER_SERVER"]))
onlooker = Onlooker(history)
onlooker.start()


@singleton_job(lease=LEASE, max_attempts=1000)
def short() -> None:
    work(random.choice([0.02, 0.05, 0.2]))


@singleton_job(lease=LEASE, max_attempts=1000)
def long() -> None:
    work(LONG)


@singleton_job(lease=LEASE, max_attempts=1000, retries=1000, retry_delay=timedelta(milliseconds=200))
def task(number: int) -> None:
    work(0.02, number=number)


@singleton_job(lease=LEASE, max_attempts=1000, schedule=timedelta(seconds=EVERY), catch_up="all")
def timely() -> None:
    work(0.02, slot=str(this_run().slot))


@singleton_job(lease=timedelta(minutes=1))
def kept() -> None:
    """Runs until a signal ends it. The witness does not look at its writes."""
    while True:
        with this_run().lease.atomic():
            FencedWrite.objects.create(lock="kept", fence=this_run().lease.fence)


@singleton_job(lease=LEASE, max_attempts=1000, min_interval=timedelta())
def line() -> None:
    """The job of the crontab lines. It does not use the database, so a failure is never the job's own."""
    lease = this_run().lease
    history.note("start", trusted=not lease.lost, until=lease.deadline, node=node(), **facts(lease))
    onlooker.watch(lease)
    time.sleep(0.1)
    history.note("end", **facts(lease))


def this_run() -> CurrentRun:
    run = current_run()
    assert run is not None
    return run


def work(seconds: float, **more: Any) -> None:
    """Write to a table now and again, inside `lease.atomic()`."""
    lease = this_run().lease
    begun_at = now()
    until = lease.deadline
    history.note("start", at=begun_at, trusted=not lease.lost, until=until, node=node(), **facts(lease), **more)
    onlooker.watch(lease)
    write(lease)
    while now() < begun_at + seconds:
        time.sleep(0.1 if seconds > 1 else 0.01)
        lease.check()
        if random.random() < 0.2:
            write(lease)
    lease.check()
    history.note("end", **facts(lease), **more)


def write(lease: Lease) -> None:
    with lease.atomic():
        FencedWrite.objects.create(lock=lease.name, fence=lease.fence)
        open_at, written_on = now(), node()
    history.note("fenced", at=open_at, node=written_on, **facts(lease))


def node() -> int:
    """The port of the server that this thread's connection leads to."""
    return getattr(connection, "cluster_node", 0)


def learn_node(connection: BaseDatabaseWrapper, **_: object) -> None:
    connection.cluster_node = 0  # type: ignore[attr-defined]
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute(PORT[connection.vendor])
        connection.cluster_node = int(cursor.fetchone()[0])  # type: ignore[attr-defined]


def note_end(run: CurrentRun, status: str, error: BaseException | None, **_: object) -> None:
    history.note("finished", status=status, kept=error is None, **facts(run.lease))


connection_created.connect(learn_node)
job_finished.connect(note_end)
