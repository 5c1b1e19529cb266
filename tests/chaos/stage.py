"""The servers and what is around them: real processes, each with a network of its own, and the database they share."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.db.models import F

from django_singlejob.models import JobLock, JobStatus, OneOffJob
from django_singlejob.process.clock import DBNow
from tests.chaos import EVERY
from tests.chaos.conditions import set_condition
from tests.chaos.history import History, now, read
from tests.proxy import Proxy

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.chaos.databases import Database

# How long a server may take to exit after a signal, once no fault is in its way, in seconds.
PATIENCE = 20.0
DRAINING = 60.0
# How long all servers together may take to begin their work.
STARTING = 60.0
# What servers do, in turn.
CALLS = ["calls"]
WORKS = ["singleton_worker", "--processes=2", "--interval=0.3", "--grace=1", "--verbosity=0"]
ROLES = [CALLS, CALLS, WORKS, CALLS, RUNS := ["run_singleton", "--now", "--wait=1", "--verbosity=0"], WORKS]


class Stage:
    """Servers 0 to `count` - 1, with the roles in turn. A server that exits is started again: `run_singleton` always
    does."""

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        self.database = database
        self.folder = folder
        self.history = History(folder / "history.jsonl")
        self.proxies: list[Proxy] = []
        #: The last words of servers that exited without a signal.
        self.exits: Counter[str] = Counter()
        #: Servers that did not exit after a signal. Their logs show what they were doing.
        self.hung: list[int] = []
        self._count = count
        self._is_closing = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._told_at: dict[int, float] = {}
        #: Servers that are to stay down for now, and proxies that a fault is using.
        self._down: set[int] = set()
        self._borrowed: set[int] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.database.port:
            where = urlsplit(self.database.url)
            for _ in range(self._count):
                proxy = Proxy(where.hostname or "127.0.0.1", where.port or self.database.port)
                self.proxies.append(self._stack.enter_context(proxy))
        self._stack.callback(self._kill_all)
        for number in self.servers:
            self.start(number)
        self._wait_until_up()
        return self

    def _wait_until_up(self) -> None:
        until = now() + STARTING
        while len({event["server"] for event in read(self.history.path) if event["event"] == "up"}) < self._count:
            if now() > until:
                raise TimeoutError(f"Not all servers are up after {STARTING:.0f} s. Their logs are in {self.folder}.")
            self.wait(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- processes

    @property
    def servers(self) -> range:
        return range(self._count)

    @property
    def callers(self) -> list[int]:
        return [number for number in self.servers if role(number) is CALLS]

    @property
    def workers(self) -> list[int]:
        return [number for number in self.servers if role(number) is WORKS]

    @property
    def commands(self) -> list[int]:
        """The servers that have executors."""
        return [number for number in self.servers if role(number) is not CALLS]

    def holders(self) -> list[int]:
        """The servers that hold a lock."""
        pids = set(JobLock.objects.values_list("pid", flat=True))
        return [number for number, process in self._processes.items() if process.pid in pids]

    def start(self, number: int) -> None:
        """Start the server, for the first time or again."""
        url = self.proxies[number].url(self.database.url) if self.proxies else self.database.url
        self._down.discard(number)
        self._told_at.pop(number, None)  # the signal may have come after its process was killed
        env = {
            "DATABASE_URL": url,
            "SINGLEJOB_TEST_ISOLATION": random.choice(self.database.isolation_levels),
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_SERVER": str(number),
        }
        with self._log(number).open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.server", *arguments(number)],
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us.
            )

    def _log(self, number: int) -> Path:
        return self.folder / f"server-{number}.log"

    def kill(self, number: int) -> None:
        """Kill the server, and leave it down until it is started."""
        self._down.add(number)
        self._processes[number].kill()
        self._processes[number].wait()
        self._told_at.pop(number, None)

    def tell_to_end(self, number: int) -> None:
        """Send SIGTERM; the server is started again once it has exited."""
        self._told_at.setdefault(number, now())
        self.history.note("signalled", server=number)
        self._processes[number].send_signal(signal.SIGTERM)

    def stop(self, number: int) -> subprocess.Popen[bytes]:
        """Stop the server. Returns the process to continue."""
        self._processes[number].send_signal(signal.SIGSTOP)
        return self._processes[number]

    def child(self, number: int, *, is_guard: bool) -> int | None:
        """A pidfd of an executor of the server, or of its guard, if it has one."""
        threads = Path(f"/proc/{self._processes[number].pid}/task")
        with suppress(OSError):
            pids = [int(pid) for each in threads.glob("*/children") for pid in each.read_text().split()]
            # Only a guard has a session of its own.
            pids = [pid for pid in pids if (os.getsid(pid) == pid) is is_guard]
            return os.pidfd_open(random.choice(pids)) if pids else None
        return None

    def order(self, number: int, what: str) -> None:
        set_condition(self.folder, f"order-{number}", what)

    def take_back_order(self, number: int) -> bool:
        """Whether the order was still there, and so was not carried out. If it is being carried out, that ends."""
        (self.folder / f"doing-{number}").unlink(missing_ok=True)
        try:
            (self.folder / f"order-{number}").unlink()
        except FileNotFoundError:
            return False
        return True

    # --- networks

    def borrow_proxy(self, number: int) -> int:
        """Borrow that server's proxy, or another if a fault is already using it. Returns the number of its server."""
        if number in self._borrowed:
            number = random.choice([other for other in self.servers if other not in self._borrowed])
        self._borrowed.add(number)
        return number

    def release_proxy(self, number: int) -> None:
        self._borrowed.discard(number)

    # --- time

    def wait(self, seconds: float) -> None:
        """Wait, and look after the servers meanwhile."""
        until = now() + seconds
        while now() < until:
            self._look_after()
            time.sleep(max(0.0, min(0.05, until - now())))

    def _look_after(self) -> None:
        for number, process in list(self._processes.items()):
            if process.poll() is None:
                if now() > self._told_at.get(number, now()) + PATIENCE and not self._borrowed:
                    self._give_up(number)
                continue
            if number in self._down:
                continue
            was_told = self._told_at.pop(number, None) is not None
            if not (was_told or (role(number) is RUNS and process.returncode == 0)):
                lines = self._log(number).read_text(errors="replace").splitlines()
                words = next((line for line in reversed(lines) if "Error" in line), "nothing")
                self.exits[f"{words} (exit status {process.returncode})"] += 1
            self.start(number)

    # --- the end

    def wind_down(self) -> None:
        """Let the workers do what is left to do when all others have ended, and then end them too."""
        self._end([number for number in self.servers if number not in self.workers])
        self.correct_instants()
        until = now() + DRAINING
        while now() < until and OneOffJob.objects.filter(status__in=["waiting", "in_progress"]).exists():
            self.wait(0.2)
        self._end(self.workers)

    def correct_instants(self) -> None:
        """What was put off by hours, because a clock was ahead, is due now: nobody here has the time."""
        late = DBNow() + timedelta(minutes=1)
        OneOffJob.objects.filter(status="waiting", run_after__gt=late).update(run_after=DBNow())
        ahead = JobStatus.objects.filter(next_slot__gt=late)
        next_slot = datetime.fromtimestamp(time.time() // EVERY * EVERY + 2 * EVERY, UTC)
        ahead.update(next_slot=next_slot, last_slot=None, fence=F("fence") + 1)

    def _end(self, numbers: list[int]) -> None:
        for number in numbers:
            self._down.add(number)
            self.tell_to_end(number)
        until = now() + PATIENCE
        while now() < until and any(self._processes[number].poll() is None for number in numbers):
            self.wait(0.05)
        for number in numbers:
            if self._processes[number].poll() is None:
                self._give_up(number)

    def _give_up(self, number: int) -> None:
        self.hung.append(number)
        self._processes[number].send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        self.kill(number)

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def role(number: int) -> list[str]:
    return ROLES[number % len(ROLES)]


def arguments(number: int) -> list[str]:
    return role(number) + ([random.choice(["alone", "left", "right"])] if role(number) is RUNS else [])
