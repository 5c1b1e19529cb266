"""Counts a process's instructions with valgrind: the same on a busy machine, and where `perf` has no counters.

After a fork, each process goes on from what its parent had counted, and writes a file of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

# What it prints without --cache-sim differs between versions, but not in this.
COUNT = re.compile(r"I\s+refs:\s+([\d,]+)")


def is_installed() -> bool:
    return shutil.which("valgrind") is not None


def command(folder: Path) -> list[str]:
    """What to put before a command, so that its counts are written into the folder."""
    files = [f"--log-file={folder}/%p", "--cachegrind-out-file=/dev/null"]
    return ["valgrind", "--tool=cachegrind", "--cache-sim=no", *files]


def instructions(folder: Path, pid: int) -> int | None:
    """How many the process carried out. `None` while it runs."""
    path = folder / str(pid)
    found = COUNT.search(path.read_text()) if path.exists() else None
    return int(found[1].replace(",", "")) if found else None
