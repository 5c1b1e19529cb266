"""What happened, in one file for all processes: each appends what it knows, at instants of the machine's one clock."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pathlib import Path


class Event(TypedDict, total=False):
    """A line of the history. Which facts it has depends on its kind.

    `event` is one of:

    * `start`: a body has begun, as its first step. `trusted`: whether its lease said so then.
    * `trust`: a lease said that it can be trusted, when it was asked at `at` or later. `until`: its deadline.
    * `lost`: a lease that had been trusted no longer is.
    * `taken`: a takeover or a clear is committed. `token`: whose lease it ended. `fence`: of the successor, if any.
    * `fenced`: what was written inside `lease.atomic()` is committed; the block was still open at `at`.
    * `counted`: between two checks that passed, it saw so many counts (`number`) and appended one more.
    * `end`: a body has come to its end, and its last check passed.
    * `finished`: the lock was released, or could not be. `status`: as the signal tells. `kept`: nothing was raised.
    * `ordered`: it is known to be committed that a one-off, this `number`, is asked for.
    * `told`: that server is told to end.
    * `fault`: the nemesis did this (`name`) to that `server`, from `at` to `to`. `number`: of its round.

    `tests/clusters` has more. `node`: the port of the database's server that did it.

    * `whole`: from now on the cluster can be written to. `survivor`: it goes on with that `node`.
    * `line`: a crontab line ended with that status (`number`).
    * `died`: a process ended without being told to. `stuck`: it did not end when told to. `ended`: it did.
    * `left`: so many one-offs (`number`) are waiting or in progress in the end.
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
    """The clock that all processes of this machine share, and that no fault touches."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class History:
    """The file as one process writes it. `facts` are added to each event."""

    def __init__(self, path: Path, **facts: object) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._facts = facts

    def note(self, event: str, **facts: object) -> None:
        # One small write to a file opened for appending is atomic, whoever else writes and whatever kills us.
        line = json.dumps({"at": now(), "event": event, **self._facts, **facts})
        os.write(self._file, f"{line}\n".encode())


def read(path: Path) -> list[Event]:
    """All that was noted, in the order of `at`."""
    if not path.exists():
        return []
    events: list[Event] = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(events, key=lambda event: event["at"])
