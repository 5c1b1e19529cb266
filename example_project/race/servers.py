"""The servers that race, as processes or as threads. Each has a line to the starter, which sends the instant at which
to ask for the job, and gets the result back. The race is over for a server when its line is closed.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Thread
from typing import Any

from django.db import connections

from django_singlejob import Outcome

from .jobs import contested
from .results import Answer, Win
from .spawned import serve_as_process

# How long the starter waits for an answer, in seconds.
PATIENCE = 60.0


class ServerLost(Exception):
    """A server has left the race."""


@dataclass(frozen=True)
class Server:
    """A server, as the starter sees it."""

    name: str
    line: Connection
    worker: SpawnProcess | Thread

    def call(self, start_at: float) -> None:
        """Have the server call the job at that instant of the monotonic clock."""
        with self._reachable():
            self.line.send(start_at)

    def hear(self) -> Any:
        """Its next answer."""
        with self._reachable():
            if self.line.poll(PATIENCE):
                return self.line.recv()
        raise ServerLost(f"{self.name} did not answer for {PATIENCE:.0f} seconds.")

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise ServerLost(f"{self.name} has died.") from error


@contextmanager
def running(count: int, *, as_threads: bool) -> Iterator[list[Server]]:
    """This number of servers, ready to race."""
    start = _start_thread if as_threads else _start_process
    servers = [start(f"Server_{number}") for number in range(count)]
    try:
        for server in servers:
            server.hear()  # the server is ready
        yield servers
    finally:
        for server in servers:
            server.line.close()
        for server in servers:
            server.worker.join(PATIENCE)


def _start_process(name: str) -> Server:
    # Spawned, not forked: like another machine, it shares nothing with us, neither a connection nor memory.
    line, far_end = Pipe()
    arguments = ("race.servers.serve", name, far_end)
    process = get_context("spawn").Process(target=serve_as_process, args=arguments, daemon=True)
    process.start()
    far_end.close()  # the server's own copy is the only one now, so we notice when it dies
    return Server(name, line, process)


def _start_thread(name: str) -> Server:
    line, far_end = Pipe()
    thread = Thread(target=serve, args=(name, far_end), name=name, daemon=True)
    thread.start()
    return Server(name, line, thread)


# --- in the server


def serve(name: str, line: Connection) -> None:
    try:
        line.send("ready")
        while True:
            _sleep_until(line.recv())
            line.send(_ask(name))
    except (EOFError, OSError):
        pass  # the race is over
    finally:
        line.close()
        connections.close_all()


def _sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.monotonic()))


def _ask(name: str) -> Answer:
    try:
        outcome = contested.run()
        return Answer(server=name, win=_win(outcome), refusal=str(outcome.reason or ""))
    except Exception as error:
        return Answer(server=name, error=f"{type(error).__name__}: {error}")


def _win(outcome: Outcome) -> Win | None:
    if outcome.run is None:
        return None
    waited = outcome.run.acquire_duration
    lock_cost = waited.total_seconds() if waited else math.nan
    return Win(run=outcome.run.pk, lock_cost=lock_cost, visit=outcome.value)
