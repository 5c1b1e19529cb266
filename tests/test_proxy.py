"""The proxy in front of a server that answers in upper case, then in front of the database."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.app.models import Counter
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Spawn


class Echo:
    """Answers in upper case; remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            while data := client.recv(1000):
                self.heard.append(data)
                client.sendall(data.upper())


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.listener.shutdown(socket.SHUT_RDWR)
    echo.listener.close()


@pytest.fixture
def line(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def test_forwards_both_ways(line: Proxy) -> None:
    with connect(line) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"HELLO"


def test_a_black_hole_keeps_the_connection_and_answers_nothing(line: Proxy) -> None:
    with connect(line) as old:
        line.black_hole()
        with connect(line) as new:
            for client in old, new:
                client.settimeout(0.2)
                client.sendall(b"hello")
                with pytest.raises(TimeoutError):
                    client.recv(100)
            line.come_back()
            for client in old, new:
                client.settimeout(5)
                assert client.recv(100) == b"HELLO"


def test_going_down_drops_connections_and_refuses_new_ones_until_it_comes_back(line: Proxy) -> None:
    with connect(line) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"HELLO"
        line.go_down()
        assert client.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(line)
    line.come_back()
    test_forwards_both_ways(line)


def test_cuts_one_answer_after_the_server_got_the_question(line: Proxy, echo: Echo) -> None:
    line.cut_answer_to(b"COMMIT")
    with connect(line) as client:
        client.sendall(b"COMMIT it")
        assert client.recv(100) == b""
    assert line.answer_cut.wait(5)
    assert echo.heard == [b"COMMIT it"]
    with connect(line) as client:
        client.sendall(b"COMMIT it")
        assert client.recv(100) == b"COMMIT IT"


@pytest.mark.django_db(transaction=True)
def test_a_child_whose_commit_is_not_answered_has_committed(spawn: Spawn, proxy: Proxy, database_url: str) -> None:
    proxy.cut_answer_to(b"COMMIT")
    child = spawn.code(
        """
        from django.db import OperationalError, transaction
        from tests.app.models import Counter
        try:
            with transaction.atomic():
                Counter.objects.create(name="visits", value=1)
        except OperationalError:
            print("never heard of it")
        """,
        DATABASE_URL=proxy.url(database_url),
    )
    assert child.finish() == 0, child.output
    assert "never heard of it" in child.output
    assert Counter.objects.get().value == 1
