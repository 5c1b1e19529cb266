"""The application's processes, on any cluster: started, looked after and ended. They write to the witness's file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.chaos.history import History, now, read
from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tests.chaos.history import Event

# How long a process may take to exit after a signal, in seconds.
PATIENCE = 20.0
# Seconds between two signals: a call of the database may hold the first one up, and those of one second count as one.
APART = 2.0
# How long the workers have for the remaining work at the end, in seconds.
DRAINING = 60.0

COMMANDS = {
    "calls": ("-m", "tests.clusters.server", "calls"),
    "holds": ("-m", "tests.clusters.server", "holds"),
    "keeps": ("-m", "tests.clusters.server", "keeps"),
    "works": ("-m", "django", "singleton_worker", "--threads=3", "--interval=0.3", "--grace=1", "--verbosity=0"),
    "lines": ("-m", "tests.clusters.cron"),
}


@dataclass
class Application:
    """One process: its role (a key of COMMANDS), and its database as Django's settings describe it."""

    number: int
    role: str
    database: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    told_at: float = 0.0
    has_ended: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What the witness needs to know of it."""
        return {"server": self.number, "name": self.role, "number": self.process.poll()}


class Stage:
    """Processes and their history. At the end of the `with` block, all processes are ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.applications: list[Application] = []
        self._path = folder / "history.jsonl"
        self._history = History(self._path)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self._kill_all)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- the history

    @property
    def events(self) -> list[Event]:
        return read(self._path)

    def note(self, event: str, **facts: object) -> None:
        """Note an event for the witness: `fault`, with a `name`; `whole`: from now on applications can write again;
        `survivor`: the cluster goes on with this `node`, a port (if none is noted, it goes on with all)."""
        self._history.note(event, **facts)

    def newest_grant(self, lock: str) -> Event | None:
        starts = [event for event in self.events if event["event"] == "start" and event["lock"] == lock]
        return starts[-1] if starts else None

    def lines(self, status: int) -> list[Event]:
        """The crontab lines that ended with this status."""
        return [event for event in self.events if event["event"] == "line" and event["number"] == status]

    # --- processes

    def start(self, role: str, database: Mapping[str, Any]) -> Application:
        number = len(self.applications)
        application = Application(number, role, database, self._spawn(number, role, database))
        self.applications.append(application)
        return application

    def start_again(self, application: Application) -> None:
        """Start a process again that was sent a signal."""
        application.process = self._spawn(application.number, application.role, application.database)
        application.told_at, application.has_ended = 0.0, False

    def _spawn(self, number: int, role: str, database: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        env = os.environ | application_env(database, self.folder, number)
        with self.log(number).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *COMMANDS[role]],
                env=env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; and it can be ended together with what it starts.
            )

    def log(self, number: int) -> Path:
        return self.folder / f"server-{number}.log"

    # --- time

    def wait(self, seconds: float) -> None:
        """Wait, and look after the processes: one that exits without a signal is noted, and started again."""
        until = now() + seconds
        while now() < until:
            self._look_after()
            time.sleep(min(0.05, max(0.0, until - now())))

    def wait_until(self, see: Callable[[], object], timeout: float = 30.0) -> bool:
        """Whether it became true in time."""
        until = now() + timeout
        while now() < until:
            if see():
                return True
            self.wait(0.25)
        return bool(see())

    def wait_for_grant(self, lock: str, timeout: float = 30.0) -> int:
        """The number of the next process that is granted that lock."""
        since = now()

        def number() -> list[int]:
            newest = self.newest_grant(lock)
            return [newest["server"] or 0] if newest and newest["at"] > since else []

        assert self.wait_until(number, timeout), f"No process was granted {lock!r}; their logs are in {self.folder}."
        return number()[0]

    def _look_after(self) -> None:
        for application in self.applications:
            status = application.process.poll()
            if status is None or application.told_at:
                continue
            words = last_words(self.log(application.number))
            self.note("died", server=application.number, name=application.role, status=f"{status}: {words}")
            application.process = self._spawn(application.number, application.role, application.database)

    # --- the end

    def wind_down(self, backlog: Callable[[], int]) -> None:
        """End all, the workers last: once `backlog`, the number of one-offs that are waiting or in progress, is 0."""
        workers = [application for application in self.applications if application.role == "works"]
        self.end(*(application for application in self.applications if application not in workers))
        self.wait_until(lambda: backlog() == 0, DRAINING)
        self.wait(1)  # For the slots that are due.
        self.end(*workers)
        self.note("left", number=backlog())

    def end(self, *applications: Application, signals: int = 1) -> None:
        """Send SIGTERM `signals` times, and note how long each took to exit. Kill the others."""
        signalled = [application for application in applications if not application.told_at]
        for count in range(signals):
            self._tell(signalled)
            self._await(signalled, APART if count + 1 < signals else PATIENCE)
        for application in signalled:
            if application.process.poll() is None:
                self._give_up(application)
            self._kill(application)

    def _tell(self, applications: list[Application]) -> None:
        for application in applications:
            application.told_at = application.told_at or now()
            if application.process.poll() is None:
                application.process.send_signal(signal.SIGTERM)

    def _await(self, applications: list[Application], patience: float) -> None:
        until = now() + patience
        alive = [application for application in applications if not application.has_ended]
        while alive and now() < until:
            for application in alive:
                if application.process.poll() is not None:
                    application.has_ended = True
                    self.note("ended", at=application.told_at, to=now(), **application.facts)
            alive = [application for application in alive if not application.has_ended]
            self.wait(0.02)

    def _give_up(self, application: Application) -> None:
        self.note("stuck", at=application.told_at, to=now(), **application.facts)
        if application.role in ("calls", "holds", "keeps"):
            application.process.send_signal(signal.SIGUSR1)  # It then logs what its threads are doing.
            time.sleep(0.3)

    def _kill_all(self) -> None:
        for application in self.applications:
            self._kill(application)

    def _kill(self, application: Application) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(application.process.pid, signal.SIGKILL)
        application.process.wait()


def application_env(database: Mapping[str, Any], folder: Path, number: int) -> dict[str, str]:
    """The environment of a process of the application."""
    return {
        "CLUSTER_DATABASE": json.dumps(dict(database)),
        "CLUSTER_FOLDER": str(folder),
        "CLUSTER_SERVER": str(number),
        "DATABASE_URL": "sqlite:///:memory:",  # It is not used, but tests.settings needs one.
        "DJANGO_SETTINGS_MODULE": "tests.clusters.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def migrate(database: Mapping[str, Any], folder: Path) -> None:
    """Create the tables."""
    subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--skip-checks", "--verbosity=0"],
        env=os.environ | application_env(database, folder, -1),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if "Error" in line), "nothing")
