"""Each slot of a schedule runs once, on servers whose clocks are wrong, that go away, and that die."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_singlejob.jobs.schedule import parse, slots_between
from django_singlejob.models import JobRun, JobStatus
from tests.app.models import SlotRun
from tests.databases import APPS
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.children import Child, Spawn

pytestmark = [pytest.mark.django_db(transaction=True, available_apps=APPS), pytest.mark.timeout(240)]

SLOTS = 200
INTERVAL = timedelta(milliseconds=50)
# The largest error of a server's clock, in seconds.
MOST = 30

BEGUN_OR_ENDED = r"ready|\{.*\}"
CLOCK = r"This server's clock is -?\d\d seconds off the database's, and cron uses it\. Synchronize both with NTP\."
HANGING = r"hanging in the slot .*"
TAKEN_OVER = (
    r"The lock 'timely' was (taken over from|cleared; its holder was) .*\. "
    r"Its lease expired, and no heartbeat was seen for .*\."
)
# The history is deleted, including the row of the server that dies.
DELETED = r"A run of 'timely', or its end, is missing from the history \(it has no row\): .*"
CLOCKS = r"The lock 'timely' is stale by the database's clock, but not by the clocks of .* Synchronize all clocks .*"


@dataclass
class Server:
    """A process that plays a server: see `tests/processes/server.py`."""

    child: Child
    skew: float
    stop_file: Path

    @property
    def lines(self) -> list[str]:
        return self.child.output.splitlines()

    @property
    def summary(self) -> dict[str, Any]:
        """Its last words: the error of its clock, and how many reports of each kind there were."""
        summary: dict[str, Any] = json.loads(self.lines[-1])
        return summary

    def said(self, *patterns: str) -> list[str]:
        """The lines that match one of these patterns."""
        return [line for line in self.lines if any(re.fullmatch(pattern, line) for pattern in patterns)]

    def said_nothing_but(self, *patterns: str) -> bool:
        return self.said(BEGUN_OR_ENDED, CLOCK, *patterns) == self.lines


class Servers(list[Server]):
    """Servers whose cron daemons fire for the slots of one schedule, all from the same moment on."""

    def __init__(self, spawn: Spawn, folder: Path, go: Path) -> None:
        super().__init__()
        self._spawn = spawn
        self._folder = folder
        self._go = go
        self._options: list[str] = []

    def start(self, count: int, **options: object) -> None:
        """Start `count` servers, with clocks from half a minute slow to half a minute fast."""
        self._options = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        for number in range(count):
            # Never a whole number of intervals apart, so each server fires at another part of the interval.
            self.add(MOST * 0.9987 * (2 * number / (count - 1) - 1))
        for server in self:
            server.child.wait_for("ready")
        self._go.touch()

    def add(self, skew: float) -> Server:
        stop_file = self._folder / f"stop-{len(self)}"
        options = [*self._options, f"--interval={INTERVAL.total_seconds()}", f"--stop-file={stop_file}"]
        if connection.vendor == "sqlite":
            child = self._spawn("-m", "tests.processes.server", f"--skew={skew}", *options)
        else:
            child = self._spawn("-m", "tests.processes.server", *options, **wrong_clock(skew))
        self.append(Server(child, skew, stop_file))
        return self[-1]

    def stop_when_they_are_done(self) -> None:
        while_slots_are_run(is_paused)
        for server in self:
            server.stop_file.touch()
        for server in self:
            server.child.finish()

    def signal(self, signum: signal.Signals) -> None:
        for server in self:
            server.child.send_signal(signum)

    def end(self) -> None:
        for server in self:
            server.child.kill_all()
            # A killed process leaves these behind, and libfaketime would not start in a new process with the same pid.
            for name in "faketime_shm", "sem.faketime_sem":
                Path(f"/dev/shm/{name}_{server.child.pid}").unlink(missing_ok=True)


@pytest.fixture
def servers(spawn: Spawn, tmp_path: Path, go: Path) -> Iterator[Servers]:
    servers = Servers(spawn, tmp_path, go)
    yield servers
    servers.end()


def wrong_clock(error: float) -> dict[str, str]:
    """The environment of a process whose clock is `error` seconds fast."""
    return {
        "LD_PRELOAD": faketime_library(),
        "FAKETIME": f"{error:+.3f}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Otherwise version 0.9.10 shifts deadlines by that clock as well, and waiting for Python's GIL takes too long.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


@cache
def faketime_library() -> str:
    if shutil.which("faketime") is None:
        need = "There is no command `faketime`: install the package of that name."
        pytest.fail(need) if os.environ.get("CI") else pytest.skip(need)
    # Not used as a command: it would sit between us and the server, and a SIGKILL would hit it instead.
    command = ["faketime", "-f", "+0", "printenv", "LD_PRELOAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


@pytest.mark.parametrize("count", [2, 10])
def test_200_slots_are_run_once_each_however_wrong_the_servers_clocks_are(servers: Servers, count: int) -> None:
    servers.start(count, catch_up="all", runs=SLOTS)
    servers.stop_when_they_are_done()

    slots = slots_run_in_a_row()
    assert len(slots) == SLOTS
    assert set(SlotRun.objects.values_list("attempt", flat=True)) == {1}
    assert list(JobRun.objects.order_by("pk").values_list("slot", "status", "trigger")) == [
        (slot, "successful", "schedule") for slot in slots
    ]
    gate = JobStatus.objects.get(name="timely")
    assert (gate.run_count, gate.misfire_count, gate.last_slot) == (SLOTS, 0, slots[-1])
    assert gate.fence >= SLOTS

    assert sum(server.summary.get("ran", 0) for server in servers) == SLOTS
    for server in servers:
        assert server.child.returncode == 0
        assert server.summary["clock_error"] == pytest.approx(server.skew, abs=5)
        assert server.said_nothing_but()


def test_no_slot_is_lost_or_run_again_when_servers_are_away_or_die_and_the_history_is_deleted(servers: Servers) -> None:
    servers.start(4, catch_up="all", lease=5, hang_after=SLOTS // 2, runs=SLOTS)
    delete_history_until(lambda: SlotRun.objects.count() >= SLOTS // 8)
    servers[0].stop_file.touch()
    delete_history_until(lambda: SlotRun.objects.count() >= SLOTS // 4)
    back = servers.add(servers[0].skew)

    delete_history_until(lambda: "ready" in back.child.output and any(server.said(HANGING) for server in servers))
    (dead,) = (server for server in servers if server.said(HANGING))
    hung_in = JobStatus.objects.get(name="timely").last_slot
    dead.child.kill()
    # Also the row of its run, while nobody knows yet that it is dead.
    JobRun.objects.all().delete()
    delete_history_until(is_paused)
    servers.stop_when_they_are_done()

    slots = slots_run_in_a_row()
    assert len(slots) == SLOTS
    attempts = dict(SlotRun.objects.values_list("slot", "attempt"))
    assert attempts == dict.fromkeys(slots, 1) | {hung_in: 2}
    gate = JobStatus.objects.get(name="timely")
    assert (gate.run_count, gate.misfire_count, gate.last_slot) == (SLOTS + 1, 0, slots[-1])
    assert gate.fence >= SLOTS + 1

    assert dead.child.returncode == -signal.SIGKILL
    assert sum(len(server.said(TAKEN_OVER)) for server in servers) == 1
    for server in servers:
        assert server is dead or server.child.returncode == 0
        assert server.said_nothing_but(HANGING, TAKEN_OVER, CLOCKS, DELETED)


def test_slots_that_are_coalesced_are_skipped_and_the_others_run_once_each(servers: Servers) -> None:
    servers.start(4, catch_up="latest", runs=80)
    while_slots_are_run(lambda: SlotRun.objects.count() >= 20)
    servers.signal(signal.SIGSTOP)
    work_for(1)
    servers.signal(signal.SIGCONT)
    servers.stop_when_they_are_done()

    slots = list(SlotRun.objects.order_by("pk").values_list("slot", flat=True))
    assert len(slots) == 80
    assert slots == sorted(set(slots))
    all_slots = slots_from(slots[0], slots[-1])
    assert set(slots) <= set(all_slots)
    assert len(all_slots) - len(slots) >= 10
    gate = JobStatus.objects.get(name="timely")
    # Skipped slots are not misfires here: a later one ran within their grace.
    assert (gate.run_count, gate.misfire_count) == (80, 0)
    assert gate.fence >= 80
    for server in servers:
        assert server.said_nothing_but()


@pytest.mark.parametrize("seconds_ago", [3, -20])
def test_of_six_servers_that_fire_for_a_slot_at_once_one_runs_it(spawn: Spawn, go: Path, seconds_ago: int) -> None:
    # There is only one slot in sight, the first after the epoch. The next is just as far away.
    slot = datetime.fromtimestamp(int(datetime.now(UTC).timestamp()) - seconds_ago, UTC)
    children = [spawn.code(RUN_SINGLETON, f"{slot.timestamp():.0f}", "run_singleton") for _ in range(6)]
    for child in children:
        child.wait_for("ready")
    go.touch()
    assert [child.finish() for child in children] == [0] * 6
    (ran,) = JobRun.objects.values_list("slot", "status", "attempt")
    assert ran == (slot, "successful", 1)

    words = sorted(child.output.removeprefix("ready\n") for child in children)
    assert re.fullmatch(rf"it runs\ntimely: ran its slot {slot:%F %T} UTC in \d+\.\d s\.\n", words[0])
    for line in words[1:]:
        assert re.fullmatch(r"timely: skipped, (already ran|held by somebody else \(.+\))( \(next: .+\))?\.\n", line)


RUN_SINGLETON = """
    import sys
    from datetime import timedelta
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job
    from tests.app.jobs import say, wait_until_told

    @singleton_job(schedule=timedelta(seconds=int(sys.argv[1])))
    def timely():
        say("it runs")

    say("ready")
    wait_until_told()
    execute_from_command_line(["manage.py", "run_singleton", "-v", "2", "timely"])
    """


def is_paused() -> bool:
    """Whether the last run is done."""
    return JobStatus.objects.filter(name="timely", paused=True).exists()


def delete_history_until(condition: Callable[[], bool]) -> None:
    def is_so_after_pruning() -> bool:
        call_command("prune_singletons", days=0, keep=0, stdout=StringIO())
        return condition()

    while_slots_are_run(is_so_after_pruning)


def while_slots_are_run(condition: Callable[[], bool]) -> None:
    """Wait for the condition as long as a slot is run now and then."""
    while not condition():
        count = SlotRun.objects.count()
        eventually(lambda: condition() or SlotRun.objects.count() > count)  # noqa: B023


def slots_run_in_a_row() -> list[datetime]:
    """The slots in the order in which they ran: none is missing, and none ran early by the database's clock."""
    runs = list(SlotRun.objects.order_by("pk"))
    slots = [run.slot for run in runs]
    assert slots == slots_from(slots[0], slots[-1])
    assert all(run.ended_at > run.slot - INTERVAL / 2 for run in runs)
    return slots


def slots_from(first: datetime, last: datetime) -> list[datetime]:
    return [first, *slots_between(parse(INTERVAL), first, last)]
