"""Nothing of a run lives on when the next run of its job begins, whatever the run is doing, and whatever happens to its
supervisor. Judged from outside, by processes that report to this one.

The whole grid runs with `--long`. Each fault is in a cell that always runs.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_singlejob.models import JobLock
from tests.databases import APPS
from tests.overlap.bodies import BODIES, SHELL
from tests.overlap.faults import CUT_OFF, FAULTS, FLAPS, OF_THE_NETWORK, freeze, kill_guard, thaw
from tests.overlap.judge import now
from tests.overlap.trial import LASTING
from tests.processes.witness import is_over
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _pytest.mark import ParameterSet

    from tests.overlap.conftest import Begin
    from tests.overlap.judge import Judge

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has guards."),
]

#: Which cells always run: for a body the fault, the command, and whether the project has a thread.
ALWAYS = {
    "sleeps": ("stopped with its guard", "run_singleton", False),
    "swallows every exception": ("signalled twice", "singleton_worker", False),
    "holds the GIL in C": (CUT_OFF, "singleton_worker", False),
    "blocks every signal": ("stopped", "run_singleton", True),
    "starts a process": ("killed", "run_singleton", False),
    "has a pool by fork": ("killed", "singleton_worker", False),
    "has a pool by spawn": ("killed after its guard", "run_singleton", True),
    "forks": ("stopped", "singleton_worker", False),
    "is another program": ("stopped", "run_singleton", False),
    "is in another group": ("stopped", "singleton_worker", False),
    "is another user": ("killed", "run_singleton", True),
    "has no parent-death signal": ("killed", "run_singleton", False),
    "leaves a hook": (FLAPS, "run_singleton", False),
    "ignores every signal": ("deployed", "singleton_worker", False),
    SHELL: ("killed", "run_singleton", False),
}


#: Which command begins the run, and whether the project has a thread, so that `run_singleton` cannot fork.
WAYS = [("run_singleton", False), ("run_singleton", True), ("singleton_worker", False)]


def cells() -> Iterator[ParameterSet]:
    for body, fault, (command, has_thread) in product(BODIES, FAULTS, WAYS):
        if is_promised(body, fault, command):
            is_always = ALWAYS.get(body) == (fault, command, has_thread)
            marks = [] if is_always else [pytest.mark.long]
            if fault in OF_THE_NETWORK:
                marks += [pytest.mark.on_database("postgresql", *([] if is_always else ["mysql"]))]
            yield pytest.param(
                body, fault, command, has_thread, marks=marks, id=named(body, fault, command, has_thread)
            )


def is_promised(body: str, fault: str, command: str) -> bool:
    """Whether there is such a cell. If supervisor and guard are both stopped, only code in the process can end it."""
    can_run = body != SHELL or command == "run_singleton"
    return can_run and (fault != "stopped with its guard" or BODIES[body].has_python)


def named(body: str, fault: str, command: str, has_thread: bool) -> str:
    return f"{body}-{fault}-{command}-{'with a thread' if has_thread else 'without threads'}"


def test_each_fault_is_in_a_cell_that_always_runs() -> None:
    assert {fault for fault, _, _ in ALWAYS.values()} == FAULTS.keys()


@pytest.mark.parametrize(("body", "fault", "command", "has_thread"), [*cells()])
def test_nothing_of_a_run_lives_on_when_the_next_one_begins(
    begin: Begin, judge: Judge, body: str, fault: str, command: str, has_thread: bool
) -> None:
    skip_unless_possible(body, fault)
    trial = begin(body, command, fault, has_thread=has_thread)
    FAULTS[fault](trial)
    trial.succeed()
    assert judge.survivors() == []


def skip_unless_possible(body: str, fault: str = "") -> None:
    if body == "is another user" and os.getuid() != 0:
        pytest.skip("Only root can become another user.")
    is_stopped = fault.startswith(("stopped", "frozen"))
    if is_stopped and BODIES[body].is_in_transaction and connection.vendor == "sqlite":
        pytest.skip("Nobody else can write there meanwhile.")


def undisturbed() -> Iterator[ParameterSet]:
    for body, (command, has_thread) in product(BODIES, WAYS):
        if body != SHELL or command == "run_singleton":
            is_always = (body, has_thread) == ("has a pool by fork", False)
            marks = [] if is_always else [pytest.mark.long]
            yield pytest.param(body, command, has_thread, marks=marks, id=named(body, "", command, has_thread))


@pytest.mark.parametrize(("body", "command", "has_thread"), [*undisturbed()])
def test_what_was_frozen_is_ended_when_it_goes_on(
    begin: Begin,
    judge: Judge,
    record_property: Callable[[str, object], None],
    body: str,
    command: str,
    has_thread: bool,
) -> None:
    """Nothing can end it meanwhile. How long it lives on is in the report that `--junitxml` writes, in seconds."""
    skip_unless_possible(body, "frozen")
    trial = begin(body, command, has_thread=has_thread)
    freeze(trial)
    trial.succeed()
    thawed_at = now()
    thaw(trial)
    died_at = eventually(judge.last_death)
    assert died_at
    record_property("lived_on", died_at - thawed_at)


@pytest.mark.parametrize(("body", "command", "has_thread"), [*undisturbed()])
def test_a_run_goes_on_if_only_its_guard_is_killed(
    begin: Begin, judge: Judge, go: Path, body: str, command: str, has_thread: bool
) -> None:
    skip_unless_possible(body)
    if not BODIES[body].has_heartbeats():
        pytest.skip("There are no heartbeats to wait for.")
    trial = begin(body, command, has_thread=has_thread, lease=LASTING)
    kill_guard(trial)
    trial.await_heartbeats(8)  # for longer than a lease and all that follows it
    assert judge.are_all_alive()
    go.touch()
    if BODIES[body].ends_well:
        eventually(lambda: is_over(trial.lock, "successful"))
    else:
        assert JobLock.objects.filter(name=trial.lock).exists()
