"""PostgreSQL servers of our own: one that is as durable as a real one, and one whose instructions are counted."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.benchmarks import valgrind
from tests.databases import PostgreSQL

PATIENCE = 120.0


class DurablePostgreSQL(PostgreSQL):
    """A server that keeps what was committed, unlike the one of the tests."""

    options = "-h 127.0.0.1 -p {port} -k '' -c max_connections=250"


class CountedPostgreSQL(DurablePostgreSQL):
    """A server under valgrind. Each connection has a process of its own, whose instructions are known after it ended.
    Nothing else works in it meanwhile."""

    arguments = ("-c", "autovacuum=off", "-c", "max_connections=20", "-c", "shared_buffers=32MB", "-c", "fsync=off")

    def start(self) -> None:
        command = [str(self.installation.binaries / "postgres"), "-D", str(self.data)]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-k", "", *self.arguments]
        self.counts = self.folder / "counts"
        self.counts.mkdir(mode=0o777)
        self.counts.chmod(0o777)
        with (self.folder / "postgres.log").open("w") as log:
            self.process = subprocess.Popen(
                [*valgrind.command(self.counts), *command],
                user=self.installation.user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self.accepts)

    def accepts(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: str = "immediate") -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)

    def instructions(self, pid: int) -> int:
        """Of the process of a connection that has been closed."""
        wait_for(lambda: valgrind.instructions(self.counts, pid) is not None)
        return valgrind.instructions(self.counts, pid) or 0


@contextmanager
def running(kind: type[PostgreSQL]) -> Iterator[PostgreSQL]:
    """A server with a database, until the block ends. Yields the server."""
    folder = Path(tempfile.mkdtemp(prefix="singlejob-"))
    server = kind(folder)
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Nothing happened for {PATIENCE:.0f} seconds.")
        time.sleep(0.05)
