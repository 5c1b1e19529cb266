"""The proxy, first in front of a server that answers in upper case, then in front of the database."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.app.models import Counter
from tests.proxy import Proxy, hang_up
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.children import Spawn


class Echo:
    """Answers in upper case, and remembers what it received."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.sessions: list[socket.socket] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.sessions.append(client)
                threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            while data := client.recv(1000):
                self.heard.append(data)
                assert self.may_answer.wait(PATIENCE)
                client.sendall(data.upper())

    def end_sessions(self) -> None:
        for session in self.sessions:
            hang_up(session)


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
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def assert_forwarded(client: socket.socket) -> None:
    client.sendall(b"hello")
    assert client.recv(100) == b"HELLO"


def hears_nothing(client: socket.socket, question: bytes = b"") -> bool:
    client.settimeout(0.2)
    client.sendall(question)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    return False


def has_ended(client: socket.socket) -> bool:
    client.settimeout(PATIENCE)
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def eventually_heard(echo: Echo, words: bytes) -> None:
    eventually(lambda: words in echo.heard)


def test_forwards_both_ways(line: Proxy) -> None:
    with connect(line) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"HELLO"


@pytest.mark.slow
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
                client.settimeout(PATIENCE)
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


@pytest.mark.slow
def test_what_is_lost_never_arrives_and_takes_its_connection_with_it(line: Proxy, echo: Echo) -> None:
    with connect(line) as old, connect(line) as idle:
        assert_forwarded(old)
        assert_forwarded(idle)
        line.lose()
        with connect(line) as new:
            for client in old, new:
                assert hears_nothing(client, b"lost")
            eventually(lambda: len(line.broken) == 2)
            line.come_back()
            assert has_ended(old)
            assert has_ended(new)
        assert_forwarded(idle)
    assert set(echo.heard) == {b"hello"}


@pytest.mark.slow
def test_requests_are_lost_while_answers_arrive(line: Proxy, echo: Echo) -> None:
    echo.may_answer.clear()
    with connect(line) as client:
        client.sendall(b"hello")
        eventually_heard(echo, b"hello")
        line.lose("requests")
        client.sendall(b"lost")
        echo.may_answer.set()
        assert client.recv(100) == b"HELLO"
        assert hears_nothing(client, b"lost too")
        eventually(lambda: line.broken)
        line.come_back()
        assert has_ended(client)
    assert echo.heard == [b"hello"]


@pytest.mark.slow
def test_answers_are_lost_while_requests_arrive(line: Proxy, echo: Echo) -> None:
    with connect(line) as client:
        assert_forwarded(client)
        line.lose("answers")
        assert hears_nothing(client, b"carried out")
        eventually(lambda: line.broken)
        assert echo.heard == [b"hello", b"carried out"]
        line.come_back()
        assert has_ended(client)


@pytest.mark.slow
@pytest.mark.parametrize("fail", [Proxy.black_hole, Proxy.lose])
def test_the_end_of_a_connection_does_not_arrive_either(line: Proxy, echo: Echo, fail: Callable[[Proxy], None]) -> None:
    with connect(line) as client, connect(line) as other:
        assert_forwarded(client)
        assert_forwarded(other)
        fail(line)
        echo.end_sessions()
        assert hears_nothing(client)
        other.close()
        assert len(line.server_ports) == 2
        line.come_back()
        assert has_ended(client)
    eventually(lambda: not line.server_ports)


def test_knows_where_the_server_sees_it_come_from(line: Proxy, echo: Echo) -> None:
    with connect(line) as client:
        assert_forwarded(client)
        assert line.server_ports == {session.getpeername()[1] for session in echo.sessions}


def test_cuts_one_request_before_the_server_gets_it(line: Proxy, echo: Echo) -> None:
    line.cut_request(b"COMMIT")
    with connect(line) as client:
        assert_forwarded(client)
        client.sendall(b"COMMIT it")
        assert client.recv(100) == b""
    assert line.request_cut.wait(PATIENCE)
    assert echo.heard == [b"hello"]
    with connect(line) as client:
        client.sendall(b"COMMIT it")
        assert client.recv(100) == b"COMMIT IT"


def test_spares_what_was_to_be_cut(line: Proxy) -> None:
    line.cut_request(b"COMMIT")
    line.cut_answer_to(b"COMMIT")
    line.spare()
    with connect(line) as client:
        client.sendall(b"COMMIT it")
        assert client.recv(100) == b"COMMIT IT"


def test_cuts_one_answer_after_the_server_got_the_question(line: Proxy, echo: Echo) -> None:
    line.cut_answer_to(b"COMMIT")
    with connect(line) as client:
        client.sendall(b"COMMIT it")
        assert client.recv(100) == b""
    assert line.answer_cut.wait(PATIENCE)
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
