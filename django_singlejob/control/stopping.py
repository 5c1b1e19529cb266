"""Stopping what runs: a run is marked at its lock, where its holder's next heartbeat finds the mark; a task at its own
row, which it reads when it asks."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import Error, models
from django.utils.translation import gettext_lazy as _

from django_singlejob.control.notes import noted
from django_singlejob.database import errors, transactions
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.jobs.registry import Job
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import NoteKind
from django_singlejob.models.one_offs import one_offs
from django_singlejob.signals import run_stopped

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, OneOffJob


class Obstacle(models.TextChoices):
    """Why something is not stopped."""

    OVER = "over", _("it is not running")
    STOPPED = "stopped", _("it was stopped already")
    WORKER = "worker", _("it is a worker: end its process with a signal")
    DEAF = "deaf", _("its holder sends no heartbeats, so it would not find out")
    BUSY = "busy", _("another transaction is using its row: try again")
    SILENT = "silent", _("its holder sends no heartbeats any more: clear its stale lock")


def obstacle_to_run(lock: "JobLock") -> Obstacle | None:
    """Why the run that holds this lock, which was read ``judged``, cannot be stopped; ``None`` if it can."""
    if lock.name.startswith(f"{WORKER_LOCK}."):
        return Obstacle.WORKER
    if lock.is_suspected:
        return Obstacle.SILENT
    if lock.heartbeat_interval is None:
        return Obstacle.DEAF
    return Obstacle.STOPPED if lock.stopped_by else None


def stop_run(lock: "JobLock", by: str) -> Obstacle | None:
    """Have the run end that holds this lock, which was read ``judged``. Never hits its successor. Returns why not, or
    ``None`` if its next heartbeat will find the mark."""
    if obstacle := obstacle_to_run(lock):
        return obstacle
    name = lock.job_name or lock.name

    def mark() -> bool:
        return locks().stop(lock.name, lock.token, by) and noted(NoteKind.STOPPED, name, by=by, details=str(lock.token))

    obstacle = _mark(mark, lambda: locks().stopped_by(lock.name, lock.token))
    if obstacle is None:
        run_stopped.send_robust(Job, name=name, token=lock.token, by=by)
    return obstacle


def lock_of(token: "UUID | None") -> "JobLock | None":
    """The lock with this token, judged: that of an attempt's run, or of the worker that runs a task. ``None`` if it was
    released, or taken over."""
    return next(iter(locks().filter(token=token).survey(1)), None) if token else None


def obstacle_to_one_off(row: "OneOffJob", lock: "JobLock | None") -> Obstacle | None:
    """Why the attempt that this row shows cannot be stopped; ``None`` if it can. ``lock``: the lock of its token."""
    if row.status != "in_progress" or lock is None:
        return Obstacle.OVER
    if row.job_name:
        return obstacle_to_run(lock)
    if lock.is_suspected:
        return Obstacle.SILENT
    return Obstacle.STOPPED if row.stopped_by else None


def stop_one_off(row: "OneOffJob", by: str) -> Obstacle | None:
    """Have the attempt end that this row shows: a job by its lock, and a task as soon as it asks. Never hits a later
    attempt. Returns why not, or ``None``."""
    lock = lock_of(row.token)
    if obstacle := obstacle_to_one_off(row, lock):
        return obstacle
    if row.job_name and lock:
        return stop_run(lock, by)
    seen = one_offs().filter(pk=row.pk, version=row.version)
    return _mark(lambda: seen.stop(by), lambda: one_offs().stopped_by(row))


def _mark(write: Callable[[], object], read: Callable[[], str]) -> Obstacle | None:
    try:
        with transactions.durable(transactions.alias()):
            is_marked = write()
    except Error as error:
        if not errors.is_undone(error):
            raise
        return Obstacle.BUSY
    if is_marked:
        return None
    return Obstacle.STOPPED if read() else Obstacle.OVER
