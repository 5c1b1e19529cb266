"""What a run may be doing when it has to be over. Each process of it reports to the judge."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connection, transaction

from django_singlejob import current_run
from tests.overlap.report import is_told, report, wait_until_told

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT = [sys.executable, "-m", "tests.overlap.report"]
SHELL = "is a shell command"
#: It has a process in the background.
SHELL_COMMAND = ["sh", "-c", '"$@" part & exec "$@" body', "sh", *REPORT]

_PR_SET_PDEATHSIG = 1
_NOBODY = 65534
#: Longer than any test may last. Seconds.
FOR_EVER = 3600


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
    pid = _fork()
    sleep()
    os.waitpid(pid, 0)


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        report("part")
        wait_until_told()
        os._exit(0)
    return pid


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


# --- signals


def ignore_every_signal() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with suppress(OSError):  # some are the C library's
            signal.signal(number, signal.SIG_IGN)
    sleep()


def handle_signals_itself() -> None:
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        signal.signal(number, lambda *_: None)
    sleep()


def have_a_timer() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    sleep()
    signal.setitimer(signal.ITIMER_REAL, 0)


def stop_itself() -> None:
    report("body")
    os.kill(os.getpid(), signal.SIGSTOP)


# --- code in C


def sleep_with_the_gil() -> None:
    report("body")
    ctypes.PyDLL(None).sleep(FOR_EVER)


def wait_for_a_mutex_in_c() -> None:
    """Its threads of Python go on, but no signal ends the wait."""
    mutex = ctypes.create_string_buffer(128)
    report("body")
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


# --- threads


def have_many_threads() -> None:
    for _ in range(30):
        Thread(target=wait_until_told, daemon=True).start()
    sleep()


def leave_a_thread() -> None:
    Thread(target=sleep).start()


def leave_a_hook() -> None:
    atexit.register(sleep)


def run_an_event_loop() -> None:
    report("body")
    asyncio.run(asyncio.to_thread(wait_until_told))


def fork_in_a_thread() -> None:
    thread = Thread(target=_fork)
    thread.start()
    sleep()
    thread.join()


# --- processes


def start(*words: str, **how: Any) -> None:
    with subprocess.Popen(words, **how):
        sleep()


def start_daemon() -> None:
    subprocess.run(["sh", "-c", 'setsid "$@" stray < /dev/null > /dev/null 2>&1 &', "sh", *REPORT], check=True)
    sleep()


# --- what it has, and has not


def print_without_end() -> None:
    report("body")
    while not is_told():
        print("x" * 1000)


def close_all_files() -> None:
    report("body")
    os.closerange(3, 256)
    wait_until_told()


def close_the_streams() -> None:
    for descriptor in range(3):
        os.close(descriptor)
    sleep()


def have_no_descriptor_left() -> None:
    report("body")
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    wait_until_told()


# --- the database


def query() -> None:
    queries = {
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "postgresql": f"SELECT pg_sleep({FOR_EVER})",
        "mysql": f"SELECT sleep({FOR_EVER})",
    }
    report("body")
    with connection.cursor() as cursor:
        cursor.execute(queries[connection.vendor])


def be_in_a_transaction() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        sleep()


def be_in_a_fenced_transaction() -> None:
    run = current_run()
    assert run
    with run.lease.atomic():
        sleep()


class Body(NamedTuple):
    """
    Attributes:
        parts: how many processes of it report beside its own.
        strays: how many more, which have left its group on purpose. Nothing ends them.
        has_python: whether Python runs in its process, as our code there needs.
        ends_well: whether the run is successful once the test lets it go on.
        is_fenced: whether it keeps the row of its lock, which nobody can renew then.
        is_in_transaction: whether it has a transaction, in which SQLite lets nobody else write.
    """

    run: Callable[[], object]
    parts: int = 0
    strays: int = 0
    has_python: bool = True
    ends_well: bool = True
    is_fenced: bool = False
    is_in_transaction: bool = False

    def has_heartbeats(self) -> bool:
        return not (self.is_fenced or (self.is_in_transaction and connection.vendor == "sqlite"))


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
    "ignores every signal": Body(ignore_every_signal),
    "handles signals itself": Body(handle_signals_itself),
    "has a timer": Body(have_a_timer),
    "stops itself": Body(stop_itself, has_python=False, ends_well=False),
    "sleeps in C with the GIL": Body(sleep_with_the_gil, has_python=False, ends_well=False),
    "waits for a mutex in C": Body(wait_for_a_mutex_in_c, ends_well=False),
    "has many threads": Body(have_many_threads),
    "leaves a thread": Body(leave_a_thread),
    "leaves a hook": Body(leave_a_hook),
    "runs an event loop": Body(run_an_event_loop),
    "forks in a thread": Body(fork_in_a_thread, parts=1),
    "has a pool by forkserver": Body(partial(have_a_pool, "forkserver"), parts=2),
    "starts a pipeline": Body(partial(start, "sh", "-c", '"$@" part | "$@" part', "sh", *REPORT), parts=2),
    "starts one that ignores signals": Body(
        partial(start, "sh", "-c", 'trap "" TERM INT HUP; exec "$@" part', "sh", *REPORT), parts=1
    ),
    "starts one that is stopped": Body(
        partial(start, "sh", "-c", '"$@" part & kill -s STOP $$', "sh", *REPORT), parts=1, ends_well=False
    ),
    "prints without end": Body(print_without_end),
    "has closed its files": Body(close_all_files),
    "has closed its streams": Body(close_the_streams),
    "has no descriptor left": Body(have_no_descriptor_left),
    "waits for a query": Body(query, ends_well=False),
    "is in a transaction": Body(be_in_a_transaction, is_in_transaction=True),
    "is in a fenced transaction": Body(be_in_a_fenced_transaction, is_fenced=True, is_in_transaction=True),
    "starts a group": Body(partial(start, *REPORT, "stray", process_group=0), strays=1),
    "starts a session": Body(partial(start, *REPORT, "stray", start_new_session=True), strays=1),
    "starts a daemon": Body(start_daemon, strays=1),
    # Only `run_singleton LOCK -- COMMAND` has it, and not as a job.
    SHELL: Body(partial(os.execvp, "sh", SHELL_COMMAND), parts=1, has_python=False),
}
