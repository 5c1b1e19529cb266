"""A network that fails on demand: a TCP proxy between a client and the database server."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tests.ports import quiet_port

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Direction = Literal["requests", "answers"]


class Proxy:
    """Listens on 127.0.0.1 at `port` and forwards to a server until the test stops it.

    with Proxy("127.0.0.1", 5432) as proxy:
        ...                              # forwards
        proxy.black_hole()               # connections stay open, nothing arrives; new ones hang
        proxy.lose("answers")            # data in this direction is lost for good; default: both directions
        proxy.go_down()                  # connections are dropped, new ones are refused
        proxy.come_back()                # forwards again, including what the black hole held back; connections that
                                         # have lost data are dropped
        proxy.cut_request(b"COMMIT")     # once: the connection is dropped before the server gets it
        proxy.cut_answer_to(b"COMMIT")   # once: the server gets it, but the client gets no answer
        proxy.fall_silent_at(b"COMMIT")  # once: the server gets it, then the proxy is a black hole
        proxy.spare()                    # cancels the cuts that have not happened yet

    While nothing arrives, neither end notices that the other one has hung up.
    """

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.port = quiet_port()
        self.request_cut = threading.Event()
        self.answer_cut = threading.Event()
        self.fell_silent = threading.Event()
        self._needles: dict[Direction | Literal["silence"], re.Pattern[bytes]] = {}
        self._is_flowing = False
        self._losing: set[Direction] = set()
        self._mutex = threading.RLock()
        self._change = threading.Condition(self._mutex)
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()

    def __enter__(self) -> Self:
        self.come_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.go_down()

    def url(self, database_url: str) -> str:
        """The database's URL through this proxy, unencrypted because a proxy cannot read inside TLS."""
        url = urlsplit(database_url)
        netloc = f"{url.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}"
        query = "" if url.scheme == "mysql" else "sslmode=disable&gssencmode=disable"
        return url._replace(netloc=netloc, query=query).geturl()

    @property
    def server_ports(self) -> set[int]:
        """The ports from which the server sees our clients connect."""
        with self._mutex:
            return {port for connection in self._connections if (port := connection.server_port)}

    @property
    def broken(self) -> set[Connection]:
        """The connections that have lost data."""
        with self._mutex:
            return {connection for connection in self._connections if connection.lost}

    @property
    def has_clients(self) -> bool:
        """Whether a client has connected, even if it is still waiting for the server."""
        with self._mutex:
            return bool(self._connections)

    def black_hole(self) -> None:
        with self._mutex:
            self._is_flowing = False

    def lose(self, *directions: Direction) -> None:
        with self._mutex:
            self._losing.update(directions or ("requests", "answers"))

    def go_down(self) -> None:
        with self._mutex:
            if self._listener is not None:
                hang_up(self._listener)
            self._listener = None
            connections = set(self._connections)
        for connection in connections:
            connection.close()
        self._flow()  # nothing is left to hold back, so waiting threads can end

    def come_back(self) -> None:
        with self._mutex:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
                start(self._accept, self._listener)
            self._flow()
            broken = self.broken
        for connection in broken:
            connection.close()

    def _flow(self) -> None:
        with self._change:
            self._losing.clear()
            self._is_flowing = True
            self._change.notify_all()

    def cut_request(self, needle: bytes) -> None:
        """Sets `request_cut` when done."""
        self.request_cut.clear()
        self._cut("requests", needle)

    def cut_answer_to(self, needle: bytes) -> None:
        """Sets `answer_cut` when done."""
        self.answer_cut.clear()
        self._cut("answers", needle)

    def fall_silent_at(self, needle: bytes) -> None:
        """Sets `fell_silent` when done."""
        self.fell_silent.clear()
        self._cut("silence", needle)

    def _cut(self, direction: Direction | Literal["silence"], needle: bytes) -> None:
        with self._mutex:
            # A whole word, so that `READ COMMITTED` does not count.
            self._needles[direction] = re.compile(rb"\b" + re.escape(needle) + rb"\b")

    def spare(self) -> None:
        with self._mutex:
            self._needles.clear()

    def takes_needle(self, direction: Direction | Literal["silence"], data: bytes) -> bool:
        """Whether this request contains the needle for a cut or for silence. True only once."""
        with self._mutex:
            needle = self._needles.get(direction)
            found = needle is not None and needle.search(data) is not None
            if found:
                del self._needles[direction]
            return found

    def wait_until_flowing(self) -> None:
        with self._change:
            self._change.wait_for(lambda: self._is_flowing)

    def lets_through(self, connection: Connection, direction: Direction) -> bool:
        """Whether the connection's next bytes arrive, once any bytes do."""
        with self._change:
            self._change.wait_for(lambda: self._is_flowing)
            if direction in self._losing:
                connection.lost.add(direction)
            return direction not in connection.lost

    def wait_until_arriving(self, direction: Direction) -> None:
        with self._change:
            self._change.wait_for(lambda: self._is_flowing and direction not in self._losing)

    def add(self, connection: Connection) -> bool:
        """Add the connection. `False` if the proxy is down."""
        with self._mutex:
            if self._listener is None:
                return False
            self._connections.add(connection)
            return True

    def forget(self, connection: Connection) -> None:
        with self._mutex:
            self._connections.discard(connection)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed because the proxy went down
            while True:
                client, _ = listener.accept()
                connection = Connection(self, client)
                if self.add(connection):
                    start(connection.forward_requests)
                else:
                    connection.close()


class Connection:
    """One client's connection, and the proxy's own to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server: socket.socket | None = None
        self.server_port = 0
        self.closed = False
        self.swallowing = False
        #: The directions in which bytes are missing, so that nothing more can follow.
        self.lost: set[Direction] = set()

    def forward_requests(self) -> None:
        with suppress(OSError):
            self.proxy.wait_until_flowing()
            self.server = socket.create_connection(self.proxy.server)
            self.server_port = self.server.getsockname()[1]
            if not self.closed:
                start(self.forward_answers, self.server)
                self._forward_requests(self.server)
        self.proxy.wait_until_arriving("requests")
        self.close()

    def _forward_requests(self, server: socket.socket) -> None:
        while data := self.client.recv(65536):
            if not self.proxy.lets_through(self, "requests"):
                continue
            if self.proxy.takes_needle("requests", data):
                self.close()
                self.proxy.request_cut.set()
                return
            self.swallowing = self.swallowing or self.proxy.takes_needle("answers", data)
            if self.proxy.takes_needle("silence", data):
                self.proxy.black_hole()
                self.proxy.fell_silent.set()
            server.sendall(data)

    def forward_answers(self, server: socket.socket) -> None:
        with suppress(OSError):
            self._forward_answers(server)
        self.proxy.wait_until_arriving("answers")
        self.close()

    def _forward_answers(self, server: socket.socket) -> None:
        while data := server.recv(65536):
            if not self.proxy.lets_through(self, "answers"):
                continue
            if self.swallowing:
                self.close()
                self.proxy.answer_cut.set()
                return
            self.client.sendall(data)

    def close(self) -> None:
        self.closed = True
        hang_up(self.client)
        if self.server is not None:
            hang_up(self.server)
        self.proxy.forget(self)


def hang_up(end: socket.socket) -> None:
    """Close the socket, even if a thread is waiting in it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def start(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]
