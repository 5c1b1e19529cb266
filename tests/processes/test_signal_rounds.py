"""Signals that arrive at the worst moment, which takes many rounds to hit.

There are only a few rounds, to be quick; `SINGLEJOB_TEST_ROUNDS=200` runs 200.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, OneOffJob
from tests.app.jobs import LEASE
from tests.databases import APPS
from tests.processes.witness import is_alive
from tests.processes.workers import SETTINGS, one_off, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Child, Spawn

ASKED = int(os.environ.get("SINGLEJOB_TEST_ROUNDS", "0"))
# The number of concurrent processes: together they are quicker, and they disturb each other.
BATCH = 4
PROMPTLY = 20.0

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.timeout(120 + 5 * ASKED),
]


def batches() -> Iterator[int]:
    """The numbers of processes to start at the same time, round after round."""
    return iter([BATCH] * max(2, ASKED // BATCH))


def test_an_idle_worker_ends_at_a_signal(spawn: Spawn) -> None:
    for count in batches():
        children = [worker(spawn, "-v", "2", "--interval", "60") for _ in range(count)]
        for child in children:
            eventually(partial(handles_signals, child))
        time.sleep(0.3 + random.uniform(0, 0.2))
        for child in children:
            child.terminate()
            time.sleep(random.uniform(0, 0.1))
        assert [child.finish(PROMPTLY) for child in children] == [0] * count


def handles_signals(child: Child) -> bool:
    """A process that has just been started does not yet."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


def test_a_worker_that_was_stopped_past_its_lease_and_then_signalled_begins_nothing_more(spawn: Spawn) -> None:
    for count in batches():
        for number in range(count):
            OneOffJob.objects.bulk_create(asked_to_sleep(number) for _ in range(2))
        children = [
            spawn.command("singleton_worker", "--drain", "--queue", f"queue-{number}", **SETTINGS)
            for number in range(count)
        ]
        for child in children:
            child.wait_for("started")
        # Not before all have started: one that is stopped while it writes keeps SQLite's only place for a writer.
        for child in children:
            child.send_signal(signal.SIGSTOP)
        time.sleep(1.2 * LEASE.total_seconds())
        for child in children:
            child.terminate()
            child.send_signal(signal.SIGCONT)
        assert [child.finish(PROMPTLY) for child in children] == [143] * count
        assert [child.output.count("started") for child in children] == [1] * count
        assert not JobLock.objects.exists()
        OneOffJob.objects.all().delete()


def asked_to_sleep(number: int) -> OneOffJob:
    row = one_off(f"sleeps-{number}")
    row.queue_name = f"queue-{number}"
    return row


@pytest.mark.parametrize("pause", [0.0, 0.01])
def test_signals_in_quick_succession_are_one(spawn: Spawn, pause: float) -> None:
    for count in batches():
        children = [spawn.command("run_singleton", f"sleeps-{number}", "--now") for number in range(count)]
        for child in children:
            eventually(partial(handles_signals, child))
        time.sleep(random.uniform(0, 0.3))
        for child in children:
            for _ in range(5):
                if child.poll() is None:
                    child.terminate()
                time.sleep(pause * random.random())
        assert [child.finish(PROMPTLY) for child in children] == [143] * count
        assert not JobLock.objects.exists()


@pytest.mark.parametrize(
    ("script", "statuses"),
    [("sh -c '{rest}'; exit 7", {7, 143}), ("sh -c '{rest}' & exit 7", {7, 143}), ("sh -c '{rest}' & wait", {0, 143})],
)
def test_a_command_that_is_signalled_at_any_moment_leaves_nothing_behind(
    spawn: Spawn, script: str, statuses: set[int]
) -> None:
    # The command begins, or ends, while the signal is on its way.
    script = "echo pid $$; " + script.format(rest="echo pid $$; sleep 0.$(shuf -i 0-9 -n 1)")
    for count in batches():
        children = [
            spawn.command("run_singleton", f"command-{number}", "--now", "--", "sh", "-c", script)
            for number in range(count)
        ]
        for child in children:
            eventually(partial(handles_signals_or_is_over, child))
        time.sleep(random.uniform(0, 0.5))
        for child in children:
            for _ in range(random.randint(1, 2)):
                if child.poll() is None:
                    child.terminate()
        # Once all is done, the signal does what it does to any process.
        assert {child.finish(PROMPTLY) for child in children} <= statuses | {-signal.SIGTERM}
        assert not JobLock.objects.exists()
        pids = [int(pid) for child in children for pid in re.findall(r"pid (\d+)", child.output)]
        assert not any(map(is_alive, pids))


def handles_signals_or_is_over(child: Child) -> bool:
    return child.poll() is not None or handles_signals(child)


ALARMS = """
    import random, signal, sys, time
    from collections import Counter
    from datetime import timedelta
    from django_singlejob import job_lock
    from django_singlejob.models import JobLock, JobRun
    from tests.app.jobs import say, tick

    class Alarm(eval(sys.argv[1])):
        pass

    # A new error each time: the traceback of a kept one would keep the block alive.
    def ring(*arguments):
        raise Alarm(number)

    def work(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tick()
            with job_lock("tock", lease=timedelta(minutes=1)):
                pass

    def what_work_raises():
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.05))
            work(2.0)
        except BaseException as error:
            return "itself" if type(error) is Alarm and error.args == (number,) else "another error"
        return "nothing"

    signal.signal(signal.SIGALRM, ring)
    raised, left = Counter(), 0
    for number in range(int(sys.argv[2])):
        raised[what_work_raises()] += 1
        left += JobLock.objects.count()
        JobLock.objects.all().delete()
        JobRun.objects.all().delete()
    say("raised", raised["itself"], "of", raised.total())
    say("left", left)
"""


@pytest.mark.parametrize("alarm", ["TimeoutError", "KeyboardInterrupt", "SystemExit"])
def test_what_the_programs_own_handler_raises_at_any_moment_leaves_next_to_nothing(spawn: Spawn, alarm: str) -> None:
    """A lock may stay between a grant and its block, and between a block and its release: it gets no more heartbeats.
    An error of the driver, or of Django, may replace what the handler raises, and in a `__del__` Python forgets it."""
    rounds = max(40, ASKED)
    child = spawn.code(ALARMS, alarm, str(rounds))
    assert child.finish(60 + rounds) == 0
    (raised,) = re.findall(rf"^raised (\d+) of {rounds}$", child.output, re.MULTILINE)
    (left,) = re.findall(r"^left (\d+)$", child.output, re.MULTILINE)
    assert int(raised) >= 0.7 * rounds
    assert int(left) <= 0.2 * rounds
