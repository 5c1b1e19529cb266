from __future__ import annotations

import socket
import sqlite3
import time
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks.wire import traced, wire_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.wire import Wire

pytestmark = pytest.mark.slow


@contextmanager
def client_on_a_wire() -> Iterator[tuple[socket.socket, Wire]]:
    """The server answers each line with the same line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=echo, args=[server], daemon=True).start()
        with (
            wire_to("127.0.0.1", server.getsockname()[1]) as wire,
            socket.create_connection(("127.0.0.1", wire.port)) as client,
        ):
            yield client, wire


def echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rwb") as lines:
        for line in lines:
            lines.write(line)
            lines.flush()


def ask(client: socket.socket, *parts: bytes) -> None:
    """Send a line in these parts, and wait for its answer."""
    for part in parts:
        client.sendall(part)
    received = b""
    while not received.endswith(b"\n"):
        received += client.recv(4096)
    assert received == b"".join(parts)


def test_it_counts_a_round_trip_for_each_answer_that_is_waited_for() -> None:
    with client_on_a_wire() as (client, wire):
        for _ in range(20):
            ask(client, b"SELECT 1\n")
        assert wire.count == 20


def test_a_request_in_parts_is_one_round_trip() -> None:
    with client_on_a_wire() as (client, wire):
        ask(client, b"SELECT", b" 1", b"\n")
        assert wire.count == 1


def test_each_round_trip_takes_longer_by_the_delay() -> None:
    with client_on_a_wire() as (client, wire):
        ask(client, b"SELECT 1\n")
        wire.delay.value = 0.02
        start = time.perf_counter()
        for _ in range(5):
            ask(client, b"SELECT 1\n")
        assert time.perf_counter() - start >= 0.1


def test_the_statements_of_sqlite_include_begin_and_commit() -> None:
    connection = sqlite3.connect(":memory:")
    with traced(connection) as statements:
        connection.execute("CREATE TABLE lock (name text)")
        connection.execute("INSERT INTO lock VALUES ('mail')")
        connection.commit()
    connection.close()
    assert [statement.split()[0] for statement in statements] == ["CREATE", "BEGIN", "INSERT", "COMMIT"]
