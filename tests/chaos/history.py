"""What happened, in one file for all processes: each appends what it knows, timed by the clock that they share."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pathlib import Path


class Event(TypedDict, total=False):
    """A line of the history. Its keys depend on its kind.

    `event` is one of:

    * `up`: a server begins its work. `name`: its role.
    * `start`: a body has begun, as its first step. `trusted`: whether its lease could be trusted then.
    * `alive`: the body that an executor of its server runs was still running at `at`.
    * `hogs`: a body keeps its process from doing anything else until `to`.
    * `trust`: a lease said that it can be trusted, when it was asked at `at` or later. `until`: its deadline.
    * `lost`: a lease that had been trusted no longer is.
    * `taken`: a takeover or a clear is committed. `token`: whose lease it ended. `fence`: of the successor, if any.
    * `fenced`: a write inside `lease.atomic()` is committed; the block was still open at `at`.
    * `counted`: between two checks that passed, a body read the count `number` and appended one more.
    * `end`: a body has come to its end, and its last check passed.
    * `finished`: the lock was released, or could not be. `status`: from the signal. `kept`: nothing was raised.
    * `ordered`: a one-off, this `number`, is known to be enqueued and committed.
    * `signalled`: that server was sent SIGTERM.
    * `fault`: the nemesis did this (`name`) to that `server`, from `at` to `to`. `number`: of its round.

    `tests/clusters` has more. `node`: the port of the database server in question.

    * `whole`: from now on the cluster can be written to. `survivor`: it goes on with that `node`.
    * `line`: a crontab line ended with that status (`number`).
    * `died`: a process exited without a signal. `stuck`: it did not exit after a signal. `ended`: it did.
    * `left`: how many one-offs (`number`) are waiting or in progress in the end.
    """

    at: float
    to: float
    until: float | None
    event: str
    name: str
    lock: str
    fence: int
    token: str
    server: int | None
    pid: int
    node: int
    number: int
    attempt: int
    slot: str | None
    status: str
    trusted: bool
    kept: bool


def now() -> float:
    """The clock that all processes of this machine share, and that no fault changes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class History:
    """The file as one process writes it. `facts` are added to each event."""

    def __init__(self, path: Path, **facts: object) -> None:
        self.path = path
        self._facts = facts

    def note(self, event: str, **facts: object) -> None:
        line = json.dumps({"at": now(), "event": event, "pid": os.getpid(), **self._facts, **facts})
        # An executor that keeps a file open for writing gets no other run.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            # A small write to a file opened for appending is atomic, even if others write at once or we are killed.
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)


def read(path: Path) -> list[Event]:
    """All events, in the order of `at`."""
    if not path.exists():
        return []
    events: list[Event] = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(events, key=lambda event: event["at"])
