"""The workers, which are processes. Each has a line to the starter: it reports what it does, and before each invoice it
waits for an answer. So the starter knows where a worker is when it freezes it.
"""

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import NamedTuple, Self, cast

from django.db import OperationalError, connections, transaction
from race.spawned import serve_as_process

from django_singlejob import LeaseLost
from django_singlejob.models import JobLock

from .locks import LOCKS, NAME

# How long a worker may take to end when it should, in seconds.
LAST_PATIENCE = 10.0


class Report(NamedTuple):
    """What a worker does, or what is done to it."""

    act: str
    """ready, waits, holds, prepares, wrote, repeats, frozen, wakes, done, lost or failed."""
    customer: int = 0
    detail: str = ""


class WorkerLost(Exception):
    """A worker does not do what it should."""


@dataclass(eq=False)
class Worker:
    """A worker, as the starter sees it."""

    lock: str
    number: int
    line: Connection
    process: SpawnProcess

    @classmethod
    def start(cls, lock: str, number: int, pace: float) -> Self:
        """Start a process that begins when it gets its first answer. An invoice takes ``pace`` seconds."""
        # Spawned, not forked: like another machine, it shares nothing with us, neither a connection nor memory.
        line, far_end = Pipe()
        arguments = ("freeze.workers.serve", lock, number, pace, far_end)
        process = get_context("spawn").Process(target=serve_as_process, args=arguments, daemon=True)
        process.start()
        far_end.close()  # the worker's own copy is the only one now, so we notice when it dies
        return cls(lock, number, line, process)

    @property
    def pid(self) -> int:
        return cast("int", self.process.pid)  # it has been started

    def answer(self) -> None:
        """Have it go on. If it is frozen, it does so when it wakes."""
        self.line.send("go on")

    def hear(self) -> Report:
        """Its next report. Raises ``WorkerLost`` if it has failed."""
        try:
            report: Report = self.line.recv()
        except (EOFError, OSError):
            report = Report("failed", detail="It has died.")
        if report.act == "failed":
            raise WorkerLost(f"Worker {self.number} with {self.lock} has failed: {report.detail}")
        return report

    def freeze(self) -> None:
        """Stop the process, as if its machine were suspended. Not in the middle of a heartbeat: it would keep its row
        locked until it wakes, and nobody could take over."""
        self._stop()
        while not _is_free_to_change():
            self.wake()
            time.sleep(0.05)
            self._stop()

    def _stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # until it has stopped

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def let_go(self) -> None:
        """Have it end soon. A worker that has the lock releases it."""
        if self.process.is_alive():
            self.wake()
        self.line.close()

    def end(self) -> None:
        """See that it has ended."""
        self.process.join(LAST_PATIENCE)
        self.process.kill()
        self.process.join()


def _is_free_to_change() -> bool:
    """Whether another process can change the row of our lock at this moment."""
    try:
        with transaction.atomic():  # on SQLite, this waits until no other process writes
            list(JobLock.objects.select_for_update(nowait=True).filter(name=NAME))
    except OperationalError:
        return False
    return True


# --- in the worker


def serve(lock: str, number: int, pace: float, line: Connection) -> None:
    logging.disable()  # the starter's screen says what happens
    try:
        with suppress(EOFError, OSError):  # the starter has closed the line
            line.send(Report("ready"))
            line.recv()
            line.send(_work(_Reporter(lock, number, pace, line)))
    finally:
        line.close()
        connections.close_all()


def _work(reporter: "_Reporter") -> Report:
    """Do the job, and report how it ended."""
    try:
        LOCKS[reporter.lock](reporter)
    except LeaseLost as loss:
        return Report("lost", reporter.customer, str(loss))
    except (EOFError, OSError):
        raise
    except Exception as error:
        return Report("failed", detail=f"{type(error).__name__}: {error}")
    return Report("done")


@dataclass
class _Reporter:
    lock: str
    number: int
    pace: float
    line: Connection
    customer: int = 0

    def holds(self) -> None:
        self.line.send(Report("holds"))

    def prepare(self, customer: int) -> None:
        self.customer = customer
        time.sleep(self.pace)
        self.line.send(Report("prepares", customer))
        self.line.recv()

    def wrote(self, customer: int) -> None:
        self.line.send(Report("wrote", customer))
