"""A server that takes down what it is sent, and answers, or does not."""

from __future__ import annotations

import gzip
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator


class Heard(NamedTuple):
    """A request. `rid`: the run's, empty if there is none. `rest`: the other parameters."""

    method: str
    path: str
    body: str
    rid: str
    rest: dict[str, list[str]]


class PingServer(ThreadingHTTPServer):
    """`answer`: what the handler does with a request, once it is taken down."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 100

    def __init__(self, answer: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.heard: list[Heard] = []
        # By connection.
        self.heard_on: dict[object, list[Heard]] = {}
        self.is_closing = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secret/{{name}}"

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.heard]

    def handle_error(self, *args: object) -> None:
        """A client that has hung up does not matter."""


class _Handler(BaseHTTPRequestHandler):
    server: PingServer
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        [rid] = query.pop("rid", [""])
        request = Heard(self.command, url.path, body.decode(), rid, query)
        self.server.heard.append(request)
        self.server.heard_on.setdefault(self.client_address, []).append(request)
        getattr(self, f"answer_{self.server.answer}")()

    do_GET = do_POST = handle_any  # noqa: N815

    def answer_ok(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"OK")

    def answer_not_found(self) -> None:
        self.send_error(404)

    def answer_redirect(self) -> None:
        self.send_response(301)
        self.send_header("Location", self.server.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer_garbage(self) -> None:
        self.wfile.write(b"/secret/\r\n\r\n")
        self.close_connection = True

    def answer_never(self) -> None:
        self.server.is_closing.wait()

    def answer_slowly(self) -> None:
        """It drips: each byte comes in time, and the answer never."""
        while not self.server.is_closing.wait(0.1):
            self.wfile.write(b"H")

    def log_message(self, *args: object) -> None: ...


@contextmanager
def ping_server(answer: str = "ok") -> Iterator[PingServer]:
    with PingServer(answer) as server:
        thread = Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        try:
            yield server
        finally:
            server.is_closing.set()
            server.shutdown()
            thread.join()
