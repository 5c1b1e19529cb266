"""A network that fails on demand: a TCP proxy between a client and the database server."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Proxy:
    """Listens on 127.0.0.1 at `port` and forwards to a server, as long as the test lets it.

    with Proxy("127.0.0.1", 5432) as proxy:
        ...                              # forwards
        proxy.black_hole()               # connections stay open, nothing arrives; new ones hang
        proxy.go_down()                  # connections are dropped, new ones are refused
        proxy.come_back()                # forwards again, also what the black hole held back
        proxy.cut_answer_to(b"COMMIT")   # once: the server gets it, the client never hears of it
    """

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.port = 0
        self.answer_cut = threading.Event()
        self._needle: re.Pattern[bytes] | None = None
        self._flowing = threading.Event()
        self._mutex = threading.Lock()
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
        """The database's URL through this proxy, unencrypted: a proxy cannot read inside TLS."""
        url = urlsplit(database_url)
        netloc = f"{url.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}"
        query = "" if url.scheme == "mysql" else "sslmode=disable&gssencmode=disable"
        return url._replace(netloc=netloc, query=query).geturl()

    def black_hole(self) -> None:
        self._flowing.clear()

    def go_down(self) -> None:
        with self._mutex:
            if self._listener is not None:
                hang_up(self._listener)
            self._listener = None
            connections = set(self._connections)
        for connection in connections:
            connection.close()
        self._flowing.set()  # nothing is left to hold back; lets waiting threads end

    def come_back(self) -> None:
        with self._mutex:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
                self.port = self._listener.getsockname()[1]
                start(self._accept, self._listener)
        self._flowing.set()

    def cut_answer_to(self, needle: bytes) -> None:
        """Sets `answer_cut` when it is done. A whole word, lest `READ COMMITTED` counts."""
        self.answer_cut.clear()
        self._needle = re.compile(rb"\b" + re.escape(needle) + rb"\b")

    def wait_until_flowing(self) -> None:
        self._flowing.wait()

    def takes_needle(self, data: bytes) -> bool:
        """Whether these bytes hold the needle; true once."""
        with self._mutex:
            found = self._needle is not None and self._needle.search(data) is not None
            if found:
                self._needle = None
            return found

    def add(self, connection: Connection) -> bool:
        """Whether the proxy is still up."""
        with self._mutex:
            if self._listener is None:
                return False
            self._connections.add(connection)
            return True

    def forget(self, connection: Connection) -> None:
        with self._mutex:
            self._connections.discard(connection)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed: the proxy went down
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
        self.closed = False
        self.swallowing = False

    def forward_requests(self) -> None:
        with suppress(OSError):
            self.proxy.wait_until_flowing()
            self.server = socket.create_connection(self.proxy.server)
            if not self.closed:
                start(self.forward_answers, self.server)
                while data := self.client.recv(65536):
                    self.proxy.wait_until_flowing()
                    self.swallowing = self.swallowing or self.proxy.takes_needle(data)
                    self.server.sendall(data)
        self.close()

    def forward_answers(self, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self.proxy.wait_until_flowing()
                if self.swallowing:
                    self.close()
                    self.proxy.answer_cut.set()
                    return
                self.client.sendall(data)
        self.close()

    def close(self) -> None:
        self.closed = True
        hang_up(self.client)
        if self.server is not None:
            hang_up(self.server)
        self.proxy.forget(self)


def hang_up(end: socket.socket) -> None:
    """Close, also under a thread that is waiting in it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def start(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]
