"""Puts the package on the stage: its database, and everything else that it takes from outside, become simulated.

Whatever the package reads or waits for is replaced by name, in all of its modules. Its global variables belong to one
process each: they are exchanged when the baton goes to another process.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.db import connections
from django.test.utils import override_settings

from django_singlejob import Lease
from django_singlejob.database import timeline, transactions, unusable
from django_singlejob.locking import acquire, at_exit, heartbeat, lease as lease_module, recording
from django_singlejob.process import clock, holder, received_signals
from django_singlejob.worker import tick
from tests.simulation import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.baton import Process, Strand

ALIAS = "simulation"
#: As it is in a program: a fixture of all tests shortens it.
_IDLE = heartbeat.IDLE
#: The models of other apps whose tables the bodies write to.
_OF_THE_TESTS = ("FencedWrite",)


def _here() -> world.World:
    assert world.current is not None
    return world.current


# --- what the package sees instead of the outside


class Time:
    """Replaces the module ``time`` in ``clock``."""

    @staticmethod
    def monotonic() -> float:
        return _here().monotonic()

    @staticmethod
    def clock_gettime(_: int) -> float:
        return _here().monotonic()

    @staticmethod
    def time() -> float:
        return _here().time_of_day()

    @staticmethod
    def sleep(seconds: float) -> None:
        _here().sleep(seconds)


class Thread:
    """What ``start_thread`` returns: a strand of the same process."""

    def __init__(self, strand: Strand) -> None:
        self._strand = strand

    def is_alive(self) -> bool:
        return not self._strand.is_over


def start_thread(target: Callable[[], object], name: str) -> Thread:
    """Replaces ``received_signals.start_thread``."""
    here = _here()
    here.scheduler.check()
    here.history.note(here.here.name, f"starts the thread {name!r}")
    return Thread(here.scheduler.start(here.here, name, target))


def wait(call: Callable[[float], Any], seconds: float) -> Any:
    """Replaces ``clock.wait``: ``call`` takes something from a queue."""
    queue = call.func.__self__  # type: ignore[attr-defined]
    _here().wait_for(lambda: not queue.empty(), seconds)
    return call(0)


def _new_token() -> UUID:
    process = _here().here
    process.tokens += 1
    return UUID(int=(process.number << 64) | process.tokens)


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * _here().here.jitter


# --- the package's memory, which each process has for itself

#: The global variables of the package that a process changes, each with what it is at first.
_MEMORY: list[tuple[Any, str, Callable[[], Any]]] = [
    (recording, "_away_until", lambda: float("-inf")),
    (recording, "_away_because", str),
    (timeline, "_silent", set),
    (timeline, "_known_since", dict),
    (at_exit, "_granted", dict),
    (heartbeat, "_own_thread", heartbeat._HeartbeatThread),
]


def exchange_memory(before: Process | None, after: Process) -> None:
    """Put away the memory of one process, and take that of another."""
    if before is not None:
        before.memory = [getattr(module, name) for module, name, _ in _MEMORY]
    if not after.memory:
        after.memory = [first() for _, _, first in _MEMORY]
    for (module, name, _), value in zip(_MEMORY, after.memory, strict=True):
        setattr(module, name, value)


# --- the stage


def _package() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.partition(".")[0] == "django_singlejob"]


@contextmanager
def _replaced_everywhere(original: object, substitute: object) -> Iterator[None]:
    """Replace an object in all modules of the package that have imported it. No other has the same substitute."""
    _replace(original, substitute)
    try:
        yield
    finally:
        _replace(substitute, original)  # also in modules that were imported meanwhile


def _replace(one: object, other: object) -> None:
    for module in _package():
        for name, value in list(vars(module).items()):
            if value is one:
                setattr(module, name, other)


def _vendor_says(answers: dict[str, bool], name: str, original: Callable[[str], bool]) -> Callable[[str], bool]:
    def ask(alias: str) -> bool:
        return answers.get(name, False) if world.current else original(alias)

    return ask


def _is_of_one_host(_: str) -> bool:
    return world.current is None or world.current.profile == world.ONE_HOST


def _has_one_writer(alias: str) -> bool:
    return _is_of_one_host(alias)


def _announced(init: Callable[..., None]) -> Callable[..., None]:
    """Tell the oracle of each lease."""

    def announce(self: Lease, *args: Any) -> None:
        init(self, *args)
        here = _here()
        here.oracle.granted(here.here, self)

    return announce


def _own_connection() -> str:
    return ALIAS


@contextmanager
def _outside_replaced() -> Iterator[None]:
    system = SimpleNamespace(getpid=lambda: 1000 + _here().here.number)
    with ExitStack() as stack:
        replace = lambda module, name, value: stack.enter_context(patch.object(module, name, value))  # noqa: E731
        # What the last simulated process remembers is none of this process's business.
        for module, name, first in _MEMORY:
            replace(module, name, first())
        replace(clock, "time", Time)
        replace(clock, "random", SimpleNamespace(uniform=_uniform))
        replace(tick, "random", SimpleNamespace(uniform=_uniform))
        replace(acquire, "uuid4", _new_token)
        replace(lease_module, "os", system)
        replace(holder, "os", system)
        replace(holder, "socket", SimpleNamespace(gethostname=lambda: _here().here.name))
        replace(heartbeat, "IDLE", _IDLE)
        # The real name is another one in each program.
        replace(unusable, "place_of", lambda alias: alias)
        replace(Lease, "__init__", _announced(Lease.__init__))
        for original, substitute in (
            (clock.wait, wait),
            (transactions.in_turn, lambda _: nullcontext()),
            (transactions.is_on_one_host, _is_of_one_host),
            (transactions.has_one_writer, _has_one_writer),
            (received_signals.start_thread, start_thread),
        ):
            stack.enter_context(_replaced_everywhere(original, substitute))
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """What the package logs is in the histories."""
    logger = logging.getLogger("django_singlejob")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [_Scribe()], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate, _ = before


class _Scribe(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        here = world.current
        if here is not None and here.history.is_kept and here.scheduler.current is not None:
            here.history.note(here.scheduler.current.process.name, f"logs {record.levelname}: {record.getMessage()}")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A temporary folder, on a memory file system if there is one."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="singlejob-simulation-", dir=place) as folder:
        yield Path(folder)


@contextmanager
def set_up(database_settings: dict[str, Any]) -> Iterator[None]:
    """The stage: inside the block, schedules can be simulated. ``database_settings`` are those of an empty database."""
    connections.settings[ALIAS] = {**connections["default"].settings_dict, **database_settings}
    given = {**getattr(settings, "SINGLEJOB", {}), "DATABASE": ALIAS}
    try:
        with override_settings(SINGLEJOB=given), _quiet():
            _create_tables()
            with _outside_replaced():
                yield
    finally:
        forget_connection()
        del connections.settings[ALIAS]


def forget_connection() -> None:
    """Close this thread's connection, if it has one."""
    if ALIAS in connections.settings and ALIAS in {known.alias for known in connections.all(initialized_only=True)}:
        connections[ALIAS].close()
        del connections[ALIAS]


def models() -> list[Any]:
    """The models whose tables a schedule may change."""
    others = [apps.get_model("test_app", name) for name in _OF_THE_TESTS]
    own = [model for model in apps.get_app_config("django_singlejob").get_models() if not model._meta.proxy]
    return [*own, *others]


def _create_tables() -> None:
    with connections[ALIAS].schema_editor() as editor:
        for model in models():
            editor.create_model(model)
    forget_connection()
