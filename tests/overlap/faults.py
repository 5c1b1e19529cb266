"""What happens to the supervisor of a run, or to its guard."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from django.db import transaction

from tests.processes.witness import state_of
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.overlap.trial import Trial

#: How far apart two signals are that do not count as one. Seconds.
A_SECOND_THOUGHT = 1.2
CUT_OFF = "cut off"


def stop(trial: Trial) -> None:
    """Stop it while it writes nothing: on SQLite, what is stopped then keeps all others from writing."""
    trial.await_heartbeats()
    with transaction.atomic():
        trial.first.send_signal(signal.SIGSTOP)
        eventually(lambda: state_of(trial.first.pid) == "T")


def kill(trial: Trial) -> None:
    trial.first.kill()


def cut_off(trial: Trial) -> None:
    trial.await_heartbeats()
    assert trial.proxy
    trial.proxy.black_hole()


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
    "signalled twice": signal_twice,
    "killed after its guard": kill_guard_and_kill,
    "stopped with its guard": stop_both,
}
