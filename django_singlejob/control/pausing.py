"""Pausing and resuming jobs, and other changes at a job's gate that must not wait for a fenced transaction."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.db import Error, transaction

from django_singlejob.database import errors
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import backoff, local_now, sleep

T = TypeVar("T")


def pause(name: str, *, patience: float = 0.0, **how: Any) -> bool | None:
    """As ``JobStatusQuerySet.pause``, but ``None`` if its gate is busy for ``patience`` seconds."""
    return at_the_gate(name, partial(gates().pause, name, **how), patience=patience)


def resume(name: str, *, patience: float = 0.0, with_all: bool = False) -> bool | None:
    """As ``JobStatusQuerySet.resume``, but ``None`` if its gate is busy for ``patience`` seconds."""
    return at_the_gate(name, partial(gates().resume, name, with_all=with_all), patience=patience)


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
