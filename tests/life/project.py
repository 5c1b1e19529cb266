"""What the project does when it is loaded: it starts threads, registers `atexit` hooks, and opens sessions and files.

With `LIFE_THREADS=no` it has no threads of its own, like a project without tracing.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import random
import shutil
import socket
import tempfile
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
from django.utils.functional import SimpleLazyObject

import django_singlejob
from tests.life.notes import Note, leave
from tests.life.settings import FOLDER, SECRET

if TYPE_CHECKING:
    from pathlib import Path

HAS_THREADS = os.environ.get("LIFE_THREADS") != "no"
#: Only this program's memory has it.
PROCESS = uuid4().hex


def is_executor() -> bool:
    """Whether django-singlejob has started this process to run jobs. Older releases cannot tell."""
    ask = getattr(django_singlejob, "is_executor", lambda: False)
    return bool(ask())


def note(about: str, value: Any = None) -> Any:
    """Leave a note, and return its value."""
    leave(FOLDER, Note(about, os.getpid(), PROCESS, value))
    return value


def credential() -> Path:
    """A file that only this process uses, until it exits."""
    path: Path = FOLDER / f"credential-{os.getpid()}"
    path.write_text(SECRET)
    atexit.register(path.unlink)
    return path


def scratch() -> str:
    """A directory for this process, until it exits."""
    path = tempfile.mkdtemp(prefix="scratch-", dir=FOLDER)
    atexit.register(shutil.rmtree, path)
    return path


class Session:
    """A connection to a server, which answers one request after the other, each with its own text."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._answers = self._socket.makefile("rb")
        self._mutex = Lock()
        atexit.register(self.close)

    def ask(self, request: str) -> str:
        with self._mutex:
            self._socket.sendall(f"{request}\n".encode())
            return self._answers.readline().decode().strip()

    def close(self) -> None:
        """Take leave of the server, which then hangs up."""
        self._socket.sendall(b"bye\n")
        self._socket.close()


class Tracer:
    """Exports spans in a thread of its own, and what is left at the exit. Without a thread, it does so at once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spans: SimpleQueue[tuple[str, Event]] = SimpleQueue()
        self._wake = Event()
        self._mutex = Lock()
        if HAS_THREADS:
            Thread(target=self._work, name="tracer", daemon=True).start()
        atexit.register(self.export)

    def record(self, span: str) -> Event:
        """Returns what is set when the span has been exported."""
        is_exported = Event()
        self._spans.put((span, is_exported))
        if HAS_THREADS:
            self._wake.set()
        else:
            self.export()
        return is_exported

    def export(self) -> None:
        with self._mutex:
            while not self._spans.empty():
                span, is_exported = self._spans.get()
                with self._file.open("a") as file:
                    file.write(f"{span}\n")
                is_exported.set()

    def _work(self) -> None:
        while True:
            self._wake.wait(5)
            self._wake.clear()
            self.export()


def queued_handler(filename: Path) -> logging.Handler:
    """A handler whose records another thread writes."""
    writer = logging.FileHandler(filename)
    if not HAS_THREADS:
        return writer
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    listener = QueueListener(queue, writer)
    listener.start()
    atexit.register(listener.stop)
    return QueueHandler(queue)


def foreign_connection() -> psycopg.Connection | None:
    """A connection that Django does not know; ``None`` if the database is another one."""
    url = os.environ["DATABASE_URL"]
    return psycopg.connect(url, autocommit=True) if url.startswith("postgres") else None


CREDENTIAL = credential()
SCRATCH = scratch()
SESSION = Session(int(os.environ["LIFE_SESSION"]))
FOREIGN = foreign_connection()
TRACER = Tracer(FOLDER / "spans")
#: With `LIFE_JOURNAL=no`, a run leaves no file open for writing.
JOURNAL = (FOLDER / "journal").open("a") if os.environ.get("LIFE_JOURNAL") != "no" else io.StringIO()
JOURNAL.write(f"opened by {PROCESS}\n")
DICE = random.Random()


def unused() -> None:
    raise AssertionError("Nobody needs it.")


#: A lazy object that nothing may make, such as a site of Django's admin where that is not installed.
LAZY = SimpleLazyObject(unused)


def serve_metrics() -> socket.socket:
    """The port of the program's metrics, which one process can have."""
    return socket.create_server(("127.0.0.1", int(os.environ["LIFE_PORT"])))


def write_pid_file() -> None:
    """The program's, as long as it runs. There must not be one."""
    path: Path = FOLDER / "pid"
    with path.open("x") as file:
        file.write(str(os.getpid()))
    atexit.register(path.unlink)
