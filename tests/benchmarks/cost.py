"""The acts that are measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from django.core.management import call_command

from django_singlejob import LockHeld, job_lock, singleton_job
from tests.app.models import Counter


@singleton_job("bench.job")
def job() -> None:
    pass


@singleton_job("bench.held")
def held() -> None:
    pass


held_meanwhile = contextlib.ExitStack()


def acts() -> dict[str, Callable[[], object]]:
    call_command("migrate", run_syncdb=True, verbosity=0)
    Counter.objects.all().delete()
    held_meanwhile.enter_context(job_lock("bench.held"))
    return {
        "INSERT and DELETE": insert_and_delete,
        "job_lock(): acquire and release": lock,
        "a job that does nothing": job,
        "one SELECT": select,
        "a job that is held: refused": held,
        "job_lock() that is held: refused": be_refused,
    }


def insert_and_delete() -> None:
    """The paper's recipe: no lease, no fence, no history."""
    Counter.objects.bulk_create([Counter(name="bench")])
    Counter.objects.filter(name="bench")._raw_delete("default")


def lock() -> None:
    with job_lock("bench.lock"):
        pass


def select() -> None:
    Counter.objects.filter(name="bench").first()


def be_refused() -> None:
    with contextlib.suppress(LockHeld), job_lock("bench.held"):
        pass
