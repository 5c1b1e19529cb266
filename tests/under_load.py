"""Repeats a command on a machine that is busy, and at another hour: what passes by chance fails here.

    python -m tests.under_load --rounds 20 -- make test-sqlite
    python -m tests.under_load --at 2028-02-29T23:59:30 --rounds 2 -- .venv/bin/python -m pytest --database sqlite

Eight processes compute all the time, and in each second one of pytest's workers is stopped for half a second. The hour
is that of every process that the command starts, including PostgreSQL if the tests start it. Needs gcc for that.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY = 8
STALL = 0.5
# Monotonic clocks stay as they are: Python waits by them.
SHIFT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    static long seconds = -1;
    if (seconds < 0) { char *given = getenv("CLOCK_SHIFT"); seconds = given ? atol(given) : 0; }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.under_load", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--at", type=datetime.fromisoformat, help="the hour at which each round begins, in UTC")
    parser.add_argument("--busy", type=int, default=BUSY, help="how many processes compute meanwhile")
    parser.add_argument("--stop", action="store_true", help="stop at the first round that fails")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="singlejob-clock-") as folder, busy(given.busy):
        for number in range(1, given.rounds + 1):
            begun_at = time.monotonic()
            status = run(given.command, environment(given.at, Path(folder)), is_stalled=given.busy > 0)
            print(f"Round {number}: status {status}, {time.monotonic() - begun_at:.0f} s", flush=True)
            failed += status != 0
            if failed and given.stop:
                break
    print(f"{number - failed} of {number} rounds passed")
    return 1 if failed else 0


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def environment(at: datetime | None, folder: Path) -> dict[str, str]:
    if at is None:
        return dict(os.environ)
    library = folder / "clock.so"
    if not library.exists():
        compiler = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(compiler, input=SHIFT, text=True, check=True)
    shift = round((at.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds())
    return os.environ | {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}


def run(command: list[str], env: dict[str, str], *, is_stalled: bool) -> int:
    process = subprocess.Popen(command, env=env)
    over = Event()
    stalling = Thread(target=stall, args=(process.pid, over), daemon=True)
    if is_stalled:
        stalling.start()
    try:
        return process.wait()
    finally:
        over.set()


def stall(root: int, over: Event) -> None:
    """In each second, stop one of pytest's workers for half a second."""
    while not over.wait(1 - STALL):
        workers = [pid for pid in descendants(root) if b"execnet" in command_line(pid)]
        if workers:
            worker = random.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGSTOP)
                time.sleep(STALL)
                os.kill(worker, signal.SIGCONT)


def descendants(root: int) -> Iterator[int]:
    with suppress(FileNotFoundError):
        for child in Path(f"/proc/{root}/task/{root}/children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def command_line(pid: int) -> bytes:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


if __name__ == "__main__":
    sys.exit(main())
