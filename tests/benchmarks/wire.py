"""The line between a client and its database server: a TCP proxy, in a process of its own, that counts the round trips
on 127.0.0.1 and can make each of them longer. And what SQLite has instead of a line: its statements."""

from __future__ import annotations

import select
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

# The last part of a delay, in seconds, in which the proxy does not sleep, because a sleep may end too late.
SPIN = 0.0002


@dataclass(frozen=True)
class Wire:
    """A line through the proxy. `delay` is how much longer each round trip takes, in seconds."""

    port: int
    delay: Synchronized[float]
    turns: Synchronized[int]

    @property
    def count(self) -> int:
        """How many round trips there were: an answer after one or more requests."""
        return self.turns.value

    def url(self, database_url: str) -> str:
        """The database's URL through this proxy, without TLS, which would cost processor time of its own."""
        url = urlsplit(database_url)
        netloc = f"{url.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}"
        query = "" if url.scheme == "mysql" else "sslmode=disable&gssencmode=disable"
        return url._replace(netloc=netloc, query=query).geturl()


@contextmanager
def wire_to(host: str, port: int) -> Iterator[Wire]:
    context = get_context("spawn")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    wire = Wire(listener.getsockname()[1], context.Value("d", 0.0), context.Value("q", 0))
    # A process, because a thread would wait for the client's GIL.
    proxy: Any = context.Process(target=serve, args=(listener, (host, port), wire), daemon=True)
    proxy.start()
    listener.close()
    try:
        yield wire
    finally:
        proxy.terminate()
        proxy.join()


# --- in the proxy


def serve(listener: socket.socket, server: tuple[str, int], wire: Wire) -> None:
    while True:
        client, _ = listener.accept()
        Thread(target=forward, args=(client, server, wire), daemon=True).start()


def forward(client: socket.socket, address: tuple[str, int], wire: Wire) -> None:
    with client, socket.create_connection(address) as server, suppress(OSError):
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay(client, server, wire)


def relay(client: socket.socket, server: socket.socket, wire: Wire) -> None:
    """Until one end hangs up. All of a round trip's delay is on the way there."""
    asked = False
    while True:
        for end in select.select([client, server], [], [])[0]:
            arrived = time.perf_counter()
            data = end.recv(65536)
            if not data:
                return
            if end is server:
                count(wire, asked=asked)
                asked = False
                client.sendall(data)
            else:
                if not asked:
                    wait_until(arrived + wire.delay.value)
                asked = True
                server.sendall(data)


def count(wire: Wire, *, asked: bool) -> None:
    if asked:
        with wire.turns.get_lock():
            wire.turns.value += 1


def wait_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.perf_counter() - SPIN))
    while time.perf_counter() < instant:
        pass


# --- without a line


@contextmanager
def traced(connection: sqlite3.Connection) -> Iterator[list[str]]:
    """The statements that SQLite carries out meanwhile, BEGIN and COMMIT too."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    try:
        yield statements
    finally:
        connection.set_trace_callback(None)
