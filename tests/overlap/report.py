"""How a process tells the judge that it has begun. `python -m tests.overlap.report body` does only that, and waits."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from tests.waiting import work_for

#: The name of the judge's socket, which has no file, so that each user may send to it.
ADDRESS = "OVERLAP_JUDGE"


def report(what: str) -> None:
    """Tell the judge that this process is a `body`, a `part` of one, a `stray` or a `successor`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(f"{what} {time.clock_gettime(time.CLOCK_MONOTONIC)}".encode(), f"\0{os.environ[ADDRESS]}")


def is_told() -> bool:
    return Path(os.environ["GO"]).exists()


def wait_until_told(*_: object) -> None:
    while not is_told():
        work_for(0.01)


if __name__ == "__main__":
    report(sys.argv[1])
    if sys.argv[1] != "successor":
        wait_until_told()
