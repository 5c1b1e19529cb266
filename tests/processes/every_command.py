"""Calls every command at once, each in a process of its own, and prints the output and the exit status of each as JSON.

The argument says what a worker that has no mode is expected to do: it "ends" by itself, or it "goes on" and is ended.

The processes are forked, because starting each of them from scratch would take many seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import IO

import django
from django.core.management import execute_from_command_line

from tests.waiting import eventually, work_for

COMMANDS = [
    ["run_singleton", "quick"],
    ["run_singleton", "backup", "--", "true"],
    ["run_singleton", "--list"],
    ["singleton_worker", "--once"],
    ["singleton_worker", "--drain"],
    ["singleton_status"],
    ["singleton_status", "--check"],
    ["clear_stale_locks"],
    ["prune_singletons"],
    ["pause_singletons", "quick"],
    # The last one, because it may go on.
    ["singleton_worker"],
]
# By then a worker that ends although it should go on has done so, if the machine is not very busy.
A_WHILE = 2.0


def start(words: list[str], output: IO[bytes]) -> int:
    """Start the command, and return its process id."""
    if pid := os.fork():
        return pid
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    status = 1
    try:
        execute_from_command_line(["manage.py", *words])
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def exit_status_of(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def status_of_endless(pid: int, output: IO[bytes], expected: str) -> int | None:
    """Its exit status, or ``None`` if it goes on for a while after its first line."""
    if expected == "ends":
        return exit_status_of(pid)
    eventually(lambda: said(output) or has_ended(pid))
    work_for(A_WHILE)
    if has_ended(pid):
        return exit_status_of(pid)
    os.kill(pid, signal.SIGTERM)
    exit_status_of(pid)
    return None


def has_ended(pid: int) -> bool:
    """It is not collected yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def said(output: IO[bytes]) -> str:
    # Not by seeking: the position in the file is the one at which the command goes on to write.
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), size, 0).decode(errors="replace")


def main(expected: str) -> None:
    django.setup()
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in COMMANDS]
        pids = [start(words, output) for words, output in zip(COMMANDS, outputs, strict=True)]
        statuses: list[int | None] = [exit_status_of(pid) for pid in pids[:-1]]
        statuses.append(status_of_endless(pids[-1], outputs[-1], expected))
        answers = zip(COMMANDS, statuses, outputs, strict=True)
        print(json.dumps({" ".join(words): [status, said(output)] for words, status, output in answers}))


if __name__ == "__main__":
    main(sys.argv[1])
