"""One daemon of many: `run_singleton NAME --standby -- DAEMON` on every server."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun
from tests.databases import APPS
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.children import Child, Spawn
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# Writes its process id, and its parent's, to a file. It tells if the one that is there is alive.
DAEMON = """
import os, sys, time
from pathlib import Path
beats = Path(sys.argv[1])
if beats.exists():
    other = int(beats.read_text().split()[0])
    if Path(f"/proc/{other}").exists() and Path(f"/proc/{other}/stat").read_text().split(")")[1].split()[0] != "Z":
        print("two at once", flush=True)
written = beats.with_suffix(".new")
written.write_text(f"{os.getpid()} {os.getppid()}")
written.rename(beats)
time.sleep(600)
"""


class Daemons:
    """Servers, each with the daemon, of which one runs."""

    def __init__(self, spawn: Spawn, beats: Path) -> None:
        self._spawn, self._beats = spawn, beats
        self.servers: list[Child] = []

    def start(self, **environment: str) -> Child:
        command = [sys.executable, "-c", DAEMON, str(self._beats)]
        options = ["--standby", "--lease", "6", "-v", "2"]
        server = self._spawn.command("run_singleton", "beat", *options, "--", *command, **environment)
        self.servers.append(server)
        return server

    def running(self) -> tuple[int, int]:
        """The process ids of the daemon that began last, and of its server."""
        daemon, server = map(int, self._beats.read_text().split())
        return daemon, server

    def begin_another_after(self, act: Callable[[], object]) -> None:
        before = self.running()
        act()
        eventually(lambda: self.running()[0] != before[0])
        assert not any("two at once" in server.output for server in self.servers)


@pytest.fixture
def daemons(spawn: Spawn, tmp_path: Path) -> Daemons:
    found = Daemons(spawn, tmp_path / "beats")
    found.start()
    eventually((tmp_path / "beats").exists)
    found.start()
    return found


def test_whatever_dies_another_server_goes_on(daemons: Daemons) -> None:
    daemon, server = daemons.running()
    daemons.begin_another_after(lambda: os.kill(daemon, signal.SIGKILL))
    assert daemons.servers[0].finish() == 137

    daemons.start()
    _daemon, server = daemons.running()
    daemons.begin_another_after(lambda: os.kill(server, signal.SIGKILL))

    daemons.start()
    _daemon, server = daemons.running()
    daemons.begin_another_after(lambda: os.kill(server, signal.SIGTERM))
    assert list(JobRun.objects.order_by("pk").values_list("status", flat=True)) == [
        "failed",
        "abandoned",
        "interrupted",
        "running",
    ]


def heeds_sigterm(child: Child) -> bool:
    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_one_that_waits_ends_at_a_signal(daemons: Daemons) -> None:
    waiting = daemons.servers[1]
    eventually(lambda: heeds_sigterm(waiting))
    waiting.terminate()
    assert waiting.finish() == 143
    assert daemons.servers[0].poll() is None


@pytest.mark.on_database("postgresql", "mysql")
def test_one_that_waits_survives_an_outage(daemons: Daemons, proxy: Proxy, through_proxy: dict[str, str]) -> None:
    waiting = daemons.start(**through_proxy)
    eventually(lambda: heeds_sigterm(daemons.servers[1]))
    daemons.servers[1].terminate()
    daemons.servers[1].finish()
    eventually(lambda: proxy.has_clients)
    proxy.go_down()
    eventually(lambda: not proxy.has_clients)
    proxy.come_back()
    daemons.begin_another_after(lambda: os.kill(daemons.running()[0], signal.SIGKILL))
    assert waiting.poll() is None
    assert JobLock.objects.get().pid == waiting.pid
