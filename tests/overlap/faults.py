"""What happens to the supervisor of a run, to its guard, or to all of it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import transaction

from tests.processes.witness import state_of
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.overlap.trial import Trial

#: How far apart two signals are that do not count as one. Seconds.
A_SECOND_THOUGHT = 1.2
CUT_OFF, FLAPS = "cut off", "has a network that flaps"
#: Those that need a network between the first command and the database.
OF_THE_NETWORK = {CUT_OFF, FLAPS}


#: How long an orchestrator waits before it kills. Seconds.
PATIENCE_OF_A_DEPLOY = 2
#: How long nothing arrives, again and again, and how long all does in between. Seconds.
SILENCES, PAUSE = (0.5, 1, 1.5, 2, 2.5), 0.3


def stop(trial: Trial) -> None:
    stop_processes(trial, [trial.first.pid])


def stop_processes(trial: Trial, pids: list[int]) -> None:
    """Stop them while they write nothing: on SQLite, what is stopped then keeps all others from writing."""
    trial.await_heartbeats()
    with transaction.atomic():
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: {*map(state_of, pids)} <= {"T", "Z", ""})


def kill(trial: Trial) -> None:
    trial.first.kill()


def cut_off(trial: Trial) -> None:
    trial.await_heartbeats()
    assert trial.proxy
    trial.proxy.black_hole()


def flap(trial: Trial) -> None:
    trial.start_successor()
    assert trial.proxy
    for silence in SILENCES:
        trial.proxy.black_hole()
        work_for(silence)
        trial.proxy.come_back()
        work_for(PAUSE)
    trial.proxy.black_hole()


def deploy(trial: Trial) -> None:
    """End it as an orchestrator does, while its successor waits."""
    trial.start_successor()
    trial.first.terminate()
    work_for(PATIENCE_OF_A_DEPLOY)
    trial.first.kill()


def freeze(trial: Trial) -> None:
    """Stop all of it, as with a container that is paused."""
    trial.guard()
    stop_processes(trial, trial.processes())


def thaw(trial: Trial) -> None:
    for pid in trial.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def signal_twice(trial: Trial) -> None:
    trial.first.terminate()
    work_for(A_SECOND_THOUGHT)
    trial.first.terminate()


def kill_guard(trial: Trial) -> None:
    """Kill it, and wait for the one that the supervisor then has."""
    guard = trial.guard()
    os.kill(guard, signal.SIGKILL)
    trial.guard(other_than=guard)
    trial.await_heartbeats()


def kill_guard_and_kill(trial: Trial) -> None:
    kill_guard(trial)
    kill(trial)


def stop_both(trial: Trial) -> None:
    guard = trial.guard()
    stop(trial)
    os.kill(guard, signal.SIGSTOP)


FAULTS: dict[str, Callable[[Trial], None]] = {
    "stopped": stop,
    "killed": kill,
    CUT_OFF: cut_off,
    FLAPS: flap,
    "signalled twice": signal_twice,
    "deployed": deploy,
    "killed after its guard": kill_guard_and_kill,
    "stopped with its guard": stop_both,
}
