"""Pausing and resuming jobs, and other changes at a job's gate that must not wait for a fenced transaction."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.db import Error, transaction

from django_singlejob.control.notes import noted
from django_singlejob.database import errors
from django_singlejob.jobs.registry import Job
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import NoteKind
from django_singlejob.process.clock import backoff, local_now, sleep
from django_singlejob.signals import job_paused, job_resumed

T = TypeVar("T")


def pause(name: str, *, patience: float = 0.0, with_all: bool = False, **why: Any) -> bool | None:
    """As ``JobStatusQuerySet.pause``, but ``None`` if its gate is busy for ``patience`` seconds."""

    def act() -> bool:
        return gates().pause(name, with_all=with_all, **why) and noted(NoteKind.PAUSED, name, **why)

    is_changed = at_the_gate(name, act, patience=patience)
    if is_changed:
        job_paused.send_robust(Job, name=name, **{"until": None, "reason": "", "by": ""} | why)
    return is_changed


def resume(name: str, *, patience: float = 0.0, with_all: bool = False, by: str = "") -> bool | None:
    """As ``JobStatusQuerySet.resume``, but ``None`` if its gate is busy for ``patience`` seconds."""

    def act() -> bool:
        return gates().resume(name, with_all=with_all) and noted(NoteKind.RESUMED, name, by=by)

    is_changed = at_the_gate(name, act, patience=patience)
    if is_changed:
        job_resumed.send_robust(Job, name=name, by=by)
    return is_changed


def hide(name: str) -> bool | None:
    """As ``JobStatusQuerySet.hide``, but ``None`` if its gate is busy."""
    return at_the_gate(name, partial(gates().hide, name))


def show(name: str) -> bool | None:
    """As ``JobStatusQuerySet.show``, but ``None`` if its gate is busy."""
    return at_the_gate(name, partial(gates().show, name))


def at_the_gate(name: str, act: Callable[[], T], *, patience: float = 0.0) -> T | None:
    """Call ``act`` while nobody else is at the job's gate, and return its result. ``None`` if somebody is inside a
    transaction on the gate, and still is after ``patience`` seconds."""
    give_up_at = local_now() + patience
    for seconds in backoff():
        sleep(seconds)
        answer = _at_once(name, act)
        if answer is not None or local_now() >= give_up_at:
            return answer
    raise AssertionError("backoff() never ends")


def _at_once(name: str, act: Callable[[], T]) -> T | None:
    try:
        gates().remember(name)
        with transaction.atomic(using=gates().db):
            if not gates().is_at_hand(name):
                return None
            gates().touch(name)
            return act()
    except Error as error:
        if not errors.is_undone(error):
            raise
        return None
