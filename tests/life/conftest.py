from __future__ import annotations

import socketserver
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.life.notes import Note, read
from tests.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Child, Spawn

SECRET = "a secret of the project"


class Answers(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Answer each line with itself, until the client takes leave."""
        for line in self.rfile:
            if line == b"bye\n":
                return
            self.wfile.write(line)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *args: object) -> None:
        """A client that was killed does not matter."""


@contextmanager
def serving() -> Iterator[int]:
    """The port of the server to which each process of the project has a session."""
    with Server(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class Life:
    """The project: starts its commands, and reads what they leave.

    Attributes:
        folder: where it has its files.
        go: touch it to let go on what waits.
    """

    def __init__(self, spawn: Spawn, folder: Path, go: Path) -> None:
        self._spawn = spawn
        self.folder = folder
        self.go = go

    def worker(self, *options: str, **env: str) -> Child:
        return self._spawn.command("singleton_worker", "-v", "2", *options, **env)

    def endless_worker(self, *options: str) -> Child:
        return self.worker("--interval", "0.05", "--processes", "3", *options)

    def run_singleton(self, job: str) -> Child:
        return self._spawn.command("run_singleton", job, "--now")

    def notes(self, about: str) -> list[Note]:
        return [note for note in read(self.folder) if note.about == about]

    def values(self, about: str) -> list[Any]:
        return [note.value for note in self.notes(about)]

    def loaded(self, *, by_executors: bool) -> set[tuple[int, str]]:
        """The processes that have loaded the project, each with what only its memory has."""
        return {(note.pid, note.process) for note in self.notes("loaded") if note.value is by_executors}

    def ran_in_executors(self, *about: str) -> bool:
        """Whether there are such notes, and new processes of the project have left all of them."""
        found = {(note.pid, note.process) for note in chain(*map(self.notes, about))}
        return bool(found) and found <= self.loaded(by_executors=True)

    def lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()


@pytest.fixture
def life(spawn: Spawn, child_env: dict[str, str], tmp_path: Path) -> Life:
    return Life(spawn, Path(child_env["LIFE_FOLDER"]), Path(child_env["GO"]))


@pytest.fixture
def child_env(child_env: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    folder = tmp_path / "life"
    folder.mkdir()
    with serving() as port:
        yield child_env | {
            "DJANGO_SETTINGS_MODULE": "tests.life.settings",
            "LIFE_FOLDER": str(folder),
            "LIFE_SECRET": SECRET,
            "LIFE_SESSION": str(port),
            "LIFE_PORT": str(quiet_port()),
            "GO": str(tmp_path / "go"),
        }
