"""What a run may be doing when it has to be over. Each process of it reports to the judge."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from tests.overlap.report import is_told, report, wait_until_told

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = [sys.executable, "-m", "tests.overlap.report"]
SHELL = "is a shell command"
#: It has a process in the background.
SHELL_COMMAND = ["sh", "-c", '"$@" part & exec "$@" body', "sh", *REPORT]

_PR_SET_PDEATHSIG = 1
_NOBODY = 65534


def sleep() -> None:
    report("body")
    wait_until_told()


def swallow_every_exception() -> None:
    is_reported = False
    while not is_told():
        with suppress(BaseException):
            if not is_reported:
                is_reported = True
                report("body")
            wait_until_told()


def hold_the_gil_in_c() -> None:
    sum(chain(_reported(), repeat(0)))


def _reported() -> Iterator[int]:
    report("body")
    yield 0


def block_every_signal() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep()


def start_a_process() -> None:
    with subprocess.Popen([*REPORT, "part"]):
        sleep()


def have_a_pool(method: str) -> None:
    with multiprocessing.get_context(method).Pool(2, report, ["part"]) as pool:
        result = pool.map_async(wait_until_told, range(2))
        sleep()
        result.get()


def fork() -> None:
    pid = os.fork()
    if pid == 0:
        report("part")
        wait_until_told()
        os._exit(0)
    sleep()
    os.waitpid(pid, 0)


def become_another_program() -> None:
    os.execv(sys.executable, [*REPORT, "body"])


def join_another_group() -> None:
    """The group of a child, because a process that leads a group cannot make another one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # until the other one has joined
        os._exit(0)
    os.close(reading)
    os.setpgid(pid, pid)
    os.setpgid(0, pid)
    os.close(writing)
    os.waitpid(pid, 0)
    sleep()


def become_another_user() -> None:
    os.setuid(_NOBODY)
    sleep()


def clear_its_parent_death_signal() -> None:
    """Nothing in its process can end it then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    hold_the_gil_in_c()


class Body(NamedTuple):
    """
    Attributes:
        parts: how many processes of it report beside its own.
        has_python: whether Python runs in its process, as our code there needs.
        ends_well: whether the run is successful once the test lets it go on.
    """

    run: Callable[[], object]
    parts: int = 0
    has_python: bool = True
    ends_well: bool = True


BODIES = {
    "sleeps": Body(sleep),
    "swallows every exception": Body(swallow_every_exception),
    "holds the GIL in C": Body(hold_the_gil_in_c, has_python=False, ends_well=False),
    "blocks every signal": Body(block_every_signal),
    "starts a process": Body(start_a_process, parts=1),
    "has a pool by fork": Body(partial(have_a_pool, "fork"), parts=2),
    "has a pool by spawn": Body(partial(have_a_pool, "spawn"), parts=2),
    "forks": Body(fork, parts=1),
    "is another program": Body(become_another_program, has_python=False, ends_well=False),
    "is in another group": Body(join_another_group),
    "is another user": Body(become_another_user),
    "has no parent-death signal": Body(clear_its_parent_death_signal, has_python=False, ends_well=False),
    # Only `run_singleton LOCK -- COMMAND` has it, and not as a job.
    SHELL: Body(partial(os.execvp, "sh", SHELL_COMMAND), parts=1, has_python=False),
}
