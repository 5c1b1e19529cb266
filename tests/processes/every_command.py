"""Calls every command at once, each in a process of its own, and prints the output and the exit status of each as JSON.

The processes are forked, because starting each of them from scratch would take many seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from typing import IO

import django
from django.core.management import execute_from_command_line

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
PATIENCE, MOMENT = 60, 2


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


def exit_status_of(pid: int, deadline: float) -> int | None:
    """Its exit status, or ``None`` if it went on until the deadline."""
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    if ended != (0, 0):
        return os.waitstatus_to_exitcode(ended[1])
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    return None


def main() -> None:
    django.setup()
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in COMMANDS]
        pids = [start(words, output) for words, output in zip(COMMANDS, outputs, strict=True)]
        said = {}
        for words, output, pid in zip(COMMANDS, outputs, pids, strict=True):
            # The others are done by then.
            patience = MOMENT if words == COMMANDS[-1] else PATIENCE
            status = exit_status_of(pid, time.monotonic() + patience)
            output.seek(0)
            said[" ".join(words)] = [status, output.read().decode()]
    print(json.dumps(said))


if __name__ == "__main__":
    main()
