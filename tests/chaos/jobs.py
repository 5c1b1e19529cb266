"""What the servers of the chaos do under their locks: they work, write, count, and note what they know."""

from __future__ import annotations

import ctypes
import os
import random
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_singlejob import Lease, current_run, job_lock, singleton_job
from django_singlejob.signals import job_finished, lock_taken_over
from tests.app.models import FencedWrite
from tests.chaos import EVERY, LEASE
from tests.chaos.conditions import Conditions
from tests.chaos.history import History, now
from tests.chaos.onlooker import Onlooker, facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob import CurrentRun
    from django_singlejob.models import JobLock


COUNT_LENGTH = 32
# For how long a body keeps the GIL, in seconds.
HOG = 1.5 * LEASE.total_seconds()

folder, number = Path(os.environ["CHAOS_FOLDER"]), int(os.environ["CHAOS_SERVER"])
history = History(folder / "history.jsonl", server=number)
conditions = Conditions(folder, number)
onlooker = Onlooker(history)


@singleton_job(lease=LEASE, max_attempts=1000)
def alone() -> None:
    work_as_job()


@singleton_job(lease=LEASE, max_attempts=1000, lock="shared")
def left() -> None:
    work_as_job()


@singleton_job(lease=LEASE, max_attempts=1000, lock="shared")
def right() -> None:
    work_as_job()


@singleton_job(lease=LEASE, max_attempts=1000, retries=1000, retry_delay=timedelta(milliseconds=100))
def chore(number: int) -> None:
    work_as_job(number=number)


@singleton_job(lease=LEASE, max_attempts=1000, schedule=timedelta(seconds=EVERY))
def timely() -> None:
    run = current_run()
    assert run is not None
    persist(run.lease, name="timely", slot=str(run.slot))


def block() -> None:
    """A lock without a job."""
    with job_lock("block", lease=LEASE) as lease:
        work(lease, duration())
    history.note("finished", status="successful", kept=True, **facts(lease))


def work_as_job(**more: Any) -> None:
    run = current_run()
    assert run is not None
    # One-offs queue up, so they are short.
    work(run.lease, 0.05 if "number" in more else duration(), attempt=run.attempt, **more)


def duration() -> float:
    """In seconds. Most are short, so that there are many, but most of the time goes to one that outlives a lease."""
    return random.choice([0.05, 0.05, 0.05, 0.2, 0.2, 2.5])


def work(lease: Lease, seconds: float, **more: Any) -> None:
    begun_at = now()
    history.note("start", at=begun_at, trusted=not lease.lost, **facts(lease), **more)
    onlooker.watch(lease)
    while now() < begun_at + seconds:
        time.sleep(random.uniform(0, 0.05))
        obey(lease)
        random.choice([write, count])(lease)
    write(lease)
    checked_at = now()
    lease.check()
    history.note("end", at=checked_at, **facts(lease), **more)


def persist(lease: Lease, **more: Any) -> None:
    """Neither ask nor give up: the supervisor has to end this process."""
    until = now() + 5.0
    history.note("start", trusted=not lease.lost, **facts(lease), **more)
    onlooker.watch(lease)
    while now() < until:
        with suppress(BaseException):
            time.sleep(max(0.0, until - now()))
    lease.check()
    history.note("end", **facts(lease), **more)


def obey(lease: Lease) -> None:
    match conditions.taken_order("hog", "block"):
        case "hog":
            # Keeps the GIL, and so blocks all threads of this process, without using the processor.
            history.note("hogs", to=now() + HOG, **facts(lease))
            ctypes.PyDLL(None).usleep(int(HOG * 1e6))
        case "block":
            with fenced(lease):
                while conditions.is_order_in_force:
                    time.sleep(0.02)


def write(lease: Lease) -> None:
    with fenced(lease):
        time.sleep(random.uniform(0, 0.02))


@contextmanager
def fenced(lease: Lease) -> Iterator[None]:
    """A fenced transaction that writes to a table."""
    with lease.atomic():
        FencedWrite.objects.create(lock=lease.name, fence=lease.fence)
        yield
        open_at = now()
    history.note("fenced", at=open_at, **facts(lease))


def count(lease: Lease) -> None:
    """A file has no transactions to protect it: count its lines, wait, append one."""
    path = folder / f"counts-{lease.name}"
    lease.check()
    seen = path.stat().st_size // COUNT_LENGTH if path.exists() else 0
    time.sleep(random.uniform(0, 0.01))
    with path.open("a") as lines:
        lines.write(f"{lease.fence:15} {seen:15}\n")
    lease.check()
    history.note("counted", number=seen, **facts(lease))


def note_end(run: CurrentRun, status: str, error: BaseException | None, **_: object) -> None:
    history.note("finished", status=status, kept=error is None, **facts(run.lease))


def note_loss(name: str, lease: Lease | None, lock: JobLock, **_: object) -> None:
    history.note("taken", lock=name, token=str(lock.token), fence=lease.fence if lease else 0)


job_finished.connect(note_end)
lock_taken_over.connect(note_loss)
