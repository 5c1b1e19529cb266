"""Jobs for the processes that tests start. They print what they do, and go on when the file `$GO` appears."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from uuid import uuid4

from django.conf import settings
from django.core.management.base import CommandError
from django.db import Error, connection, transaction
from django.utils.translation import activate, get_language

from django_singlejob import CurrentRun, JobStopped, Lease, LeaseLost, SkipRun, current_run, shell_job, singleton_job
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.request import LockRequest
from django_singlejob.process.clock import local_now
from django_singlejob.process.holder import this_process
from tests.app.models import Counter
from tests.waiting import work_for

# Six intervals of a second: a busy machine keeps it alive.
LEASE = timedelta(seconds=6)
# For holders that lose it as soon as they begin.
SHORT_LEASE = timedelta(seconds=2)
LONG_LEASE = timedelta(seconds=5)
# The grace is a sixth of it: a body that cleans up in that, on a busy machine too, is not killed.
LONG_GRACE = timedelta(seconds=18)
# Under it, a body that has to end has ten seconds for that before it is killed.
PATIENT_LEASE = timedelta(minutes=1)
# Before it is over, a body that then runs for too long has come to where it is to be ended, on a busy machine too.
TIME_TO_BEGIN = timedelta(seconds=3)
# Longer than any test waits: what does not end by itself has to be ended.
TOO_LONG = 600.0


def say(*words: object) -> None:
    # In one write, because other threads and processes print to the same pipe.
    print(_line(*words), end="", flush=True)


def _line(*words: object) -> str:
    return " ".join(map(str, words)) + "\n"


def write(name: str) -> None:
    Counter.objects.create(name=name)


def stop() -> None:
    """Stop as a suspended machine does, until SIGCONT."""
    say("stopping")
    os.kill(os.getpid(), signal.SIGSTOP)


def work(seconds: float = TOO_LONG) -> None:
    """Work step by step, so that an interrupt can come between two steps."""
    work_for(seconds)


def rest(seconds: float = TOO_LONG) -> None:
    """Wait in C, where a signal interrupts the main thread, but nothing interrupts another one."""
    threading.Event().wait(seconds)


def is_told() -> bool:
    return Path(os.environ["GO"]).exists()


def wait_until_told() -> None:
    while not is_told():
        work_for(0.01)


def check_until_told() -> None:
    while not is_told():
        this_run().lease.check()
        work_for(0.01)


def this_run() -> CurrentRun:
    run = current_run()
    assert run is not None
    return run


# --- how long they take


@singleton_job(lease=LEASE)
def quick() -> str:
    say("quick ran")
    return "done"


@singleton_job(lease=LEASE)
def calls_another() -> None:
    quick()


@singleton_job(lease=LEASE)
def nap(seconds: float = TOO_LONG) -> None:
    try:
        say("attempt", this_run().attempt)
        rest(seconds)
    finally:
        say("cleaned up")


@singleton_job(lease=LEASE)
def samples_its_trust(*, is_fenced: bool = False) -> None:
    """Looks at its lease until `$GO` exists, interrupt or not; then it prints when it last trusted it."""
    lease = this_run().lease
    with lease.atomic() if is_fenced else nullcontext():
        say("sampling")
        last = 0.0
        while not is_told():
            with suppress(LeaseLost):  # the interrupt, which comes once
                while not is_told():
                    sampled_at = local_now()
                    if not lease.lost:
                        last = sampled_at
                    work_for(0.002)
        say("last trusted at", last)


@singleton_job(lease=LEASE, wait=timedelta(minutes=1))
def patient() -> None:
    say("attempt", this_run().attempt)
    wait_until_told()


@singleton_job(lease=LONG_LEASE)
def until_told() -> None:
    say("started")
    wait_until_told()


def ask_until_it_has_to_end(clean_up: Callable[[Lease], object] = lambda lease: None) -> None:
    """It asks that often that it is ended by what it asks, and not by the signal that follows."""
    lease = this_run().lease
    try:
        say("started")
        while True:
            lease.check()
    finally:
        say("cleaning up")
        clean_up(lease)
        rest(0.5)
        say("cleaned up")


def ask_in_a_thread(lease: Lease) -> None:
    """It finds out, too."""

    def ask() -> None:
        with suppress(JobStopped):
            lease.check()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()


singleton_job("asks_all_the_time", lease=LONG_GRACE)(ask_until_it_has_to_end)
singleton_job("asks_in_a_thread_too", lease=LONG_GRACE)(lambda: ask_until_it_has_to_end(ask_in_a_thread))
singleton_job("asks_for_too_long", lease=PATIENT_LEASE, max_runtime=TIME_TO_BEGIN)(ask_until_it_has_to_end)


@singleton_job(lease=PATIENT_LEASE, max_runtime=timedelta(seconds=3))
def too_long_a_query() -> None:
    say("started")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(600)")


@singleton_job(lease=LONG_LEASE)
def asks_the_database() -> None:
    try:
        say("started")
        wait_until_told()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 'needle'")
    finally:
        say("cleaned up")


@singleton_job(lease=LONG_LEASE)
def leaves_a_lock() -> None:
    """A lock for the process to release when it exits."""
    left = acquire(LockRequest.of("left", lease=LONG_LEASE, heartbeat=False, wait=None, holder=this_process()))
    assert isinstance(left, Lease)
    say("started")
    wait_until_told()


@singleton_job(lease=LEASE)
def slow_to_clean_up(seconds: float) -> None:
    try:
        say("started")
        rest()
    finally:
        say("cleaning up")
        rest(seconds)
        say("cleaned up")


@singleton_job(lease=LEASE)
def tick() -> None:
    """Does nothing."""


@singleton_job(lease=LEASE, max_runtime=timedelta(milliseconds=10))
def close_call(seconds: float) -> None:
    end = local_now() + seconds
    while local_now() < end:
        pass


@singleton_job(lease=PATIENT_LEASE, max_runtime=timedelta(seconds=3))
async def async_nap() -> None:
    try:
        say("started")
        await asyncio.Event().wait()
    finally:
        say("cleaned up")


def sleeps() -> None:
    say("started")
    rest()


for _number in range(4):
    singleton_job(f"sleeps-{_number}", lease=LEASE, max_attempts=1000)(sleeps)


# --- jobs that are stopped, and wake up when another process has the lock


@singleton_job(lease=SHORT_LEASE)
def stops_then_writes() -> None:
    stop()
    with this_run().lease.atomic():
        write("by a zombie")
    say("committed")


@singleton_job(lease=SHORT_LEASE)
def stops_while_writing() -> None:
    with this_run().lease.atomic():
        write("by a zombie")
        stop()
    say("committed")


@singleton_job(lease=SHORT_LEASE)
def stops_then_works() -> None:
    stop()
    try:
        check_until_told()
    except LeaseLost:
        say("caught")
        raise


# --- jobs that work on while the database is away


@singleton_job(lease=LEASE)
def believes_what_it_is_told() -> None:
    try:
        say("started")
        check_until_told()
    except LeaseLost:
        say("gave up")
        raise


@singleton_job(lease=LEASE)
def waits_for_better_times() -> None:
    try:
        say("started")
        check_until_told()
    except LeaseLost:
        say("caught")
    while this_run().lease.lost:
        work_for(0.01)
    say("recovered")
    wait_until_told()


@singleton_job(lease=LEASE)
def commits_when_told() -> None:
    """Commits a fenced write, and prints what ended it."""
    try:
        with this_run().lease.atomic():
            write("fenced")
            say("wrote")
            wait_until_told()
    except BaseException as error:
        say("ended by", type(error).__name__)
        raise


@singleton_job(lease=LONG_LEASE)
def reads_its_settings_again() -> None:
    """Handles a signal by itself, and then runs a query that takes a while."""
    received: list[int] = []
    signal.signal(signal.SIGHUP, lambda signum, _: received.append(signum))
    say("started")
    for number in 1, 2:
        while len(received) < number:
            work_for(0.01)
        say("received", number)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(2.5)" if connection.vendor == "postgresql" else "SELECT SLEEP(2.5)")


@singleton_job(lease=LONG_LEASE)
def cleans_up_on_commit() -> None:
    """The database's own frames call what is registered with on_commit()."""
    with transaction.atomic():
        write("committed")
        transaction.on_commit(_take_long_to_clean_up)


def _take_long_to_clean_up() -> None:
    try:
        say("started")
        work()
    finally:
        say("cleaning up")
        # It is killed three seconds after the second signal.
        with suppress(KeyboardInterrupt):
            work()
        work_for(2)
        say("cleaned up")


@singleton_job(lease=LONG_LEASE)
def leaves_a_bell_that_is_closed() -> None:
    ear, bell = socket.socketpair()
    bell.setblocking(False)
    signal.set_wakeup_fd(bell.fileno())
    ear.close()
    bell.close()


# --- jobs that a supervisor has to end

# A heartbeat each half second, which is also the grace. One that has to do something in its grace needs more.
WATCHED_LEASE = timedelta(seconds=3)


@singleton_job(lease=WATCHED_LEASE)
def stubborn(kind: str) -> None:
    _be_stubborn(kind)


@singleton_job(lock="stubborn", lease=WATCHED_LEASE)
def stubborn_with_a_process(kind: str) -> None:
    say("left", subprocess.Popen(["sleep", "600"]).pid)
    _be_stubborn(kind)


@singleton_job(lock="stubborn", lease=LEASE, max_runtime=TIME_TO_BEGIN)
def stubborn_for_too_long(kind: str) -> None:
    _be_stubborn(kind)


def _be_stubborn(kind: str) -> None:
    try:
        if kind not in ("holds the GIL in C", "swallows every exception", "leaves its group"):
            _say_where()
        _STUBBORN[kind]()
    finally:
        say("cleaned up")


def _say_where() -> int:
    say(*_where())
    return 0


def _where() -> tuple[object, ...]:
    return "started", os.getpid(), "of", os.getppid()


# These say so from inside: a signal that comes before would end them.


def _hold_the_gil() -> None:
    # C calls C: with a function in Python, a signal could still come between its line and its end.
    said = map(os.write, [sys.stdout.fileno()], [_line(*_where()).encode()])
    # To lock it twice is to wait for ever, and no signal ends that. It needs no processor, which other tests do.
    mutex = ctypes.create_string_buffer(128)
    sum(chain(said, map(ctypes.PyDLL(None).pthread_mutex_lock, [mutex, mutex])))


def _swallow() -> None:
    is_said = False
    while True:
        with suppress(BaseException):
            is_said = is_said or _say_where() == 0
            rest()


def _end_by_the_signal() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rest()


def _leave_the_group() -> None:
    os.setpgid(0, os.getpgid(os.getppid()))
    _swallow()


def _wait_in_the_driver() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)" if connection.vendor == "postgresql" else "SELECT SLEEP(60)")


def _wait_for_a_row() -> None:
    Counter.objects.filter(name="locked").update(value=1)


_STUBBORN = {
    "sleeps": rest,
    "holds the GIL in C": _hold_the_gil,
    "swallows every exception": _swallow,
    "leaves its group": _leave_the_group,
    "ends by the signal": _end_by_the_signal,
    "returns": wait_until_told,
    "waits in the driver": _wait_in_the_driver,
    "waits for a row": _wait_for_a_row,
}


@singleton_job(lease=LEASE)
def handles_a_signal_and_crashes() -> None:
    received: list[int] = []
    signal.signal(signal.SIGHUP, lambda signum, _: received.append(signum))
    say("started")
    while not received:
        work_for(0.01)
    os.kill(os.getpid(), signal.SIGSEGV)


DAEMON = """
    echo $$ > "$1.pid" && mv "$1.pid" "$1.begun"
    while [ ! -e "$GO" ]; do sleep 0.05; done
    echo "it goes on" && touch "$1.ended"
"""


@singleton_job
def starts_a_daemon(file: str, *, redirects: bool) -> None:
    with Path(file).open("wb") as log:
        output = log if redirects else None
        subprocess.Popen(["sh", "-c", DAEMON, "daemon", file], start_new_session=True, stdout=output, stderr=output)
    while not Path(f"{file}.begun").exists():
        rest(0.01)


@singleton_job
def asks_its_terminal() -> str:
    return ask_terminal()


def ask_terminal() -> str:
    """What the terminal and the input have to say."""
    answers = []
    for name, path in ("terminal", "/dev/tty"), ("input", "/dev/stdin"):
        try:
            answers.append(Path(path).read_text() or f"no {name}")
        except OSError:
            answers.append(f"no {name}")
    return ", ".join(answers)


@singleton_job(lease=LEASE)
def asks_a_question() -> None:
    say("Hello", input("What is your name?"))
    rest()


@singleton_job(lease=LEASE)
def stops_in_a_debugger(number: int = 7) -> None:
    breakpoint()  # noqa: T100
    say("went on with", number)


class Peculiar(Exception):
    """It cannot be copied by its arguments."""

    def __init__(self, *, number: int) -> None:
        super().__init__(f"number {number}")


@singleton_job(lease=LONG_LEASE)
def prints_and_tells_its_progress(lines: int = 1) -> None:
    run = this_run()
    for number in range(lines):
        say("line", number)
    print("half", end="", flush=True)
    run.progress(120, 500, "importing")
    wait_until_told()
    say(" a line")
    run.progress(500, 500, "importing")
    for number in range(lines):
        say("another line", number)


@singleton_job(lease=LEASE)
def raises_what_cannot_be_passed_on() -> None:
    raise Peculiar(number=7)


@singleton_job(lease=LEASE)
def raises_what_its_supervisor_does_not_know() -> None:
    plugin = ModuleType("plugin")
    sys.modules["plugin"] = plugin
    exec("class Unknown(Exception): pass", vars(plugin))
    raise plugin.Unknown("number 7")


@singleton_job(lease=LEASE)
def returns_what_json_does_not_know() -> object:
    return object()


@singleton_job(lease=LEASE)
def closes_all_descriptors() -> str:
    os.closerange(0, 256)
    return "closed"


# --- jobs that print


@singleton_job(lease=LEASE)
def says(text: str) -> None:
    print(text, end="")


@singleton_job(lease=LEASE)
def says_bytes(text: str) -> None:
    sys.stdout.buffer.write(text.encode() + b"\xff\xfe\n")


@singleton_job(lease=LEASE)
def says_both() -> None:
    print("out")
    print("err", file=sys.stderr)


@singleton_job(lease=LEASE)
def echoes() -> None:
    subprocess.run(["echo", "from a shell"], check=True)


@singleton_job(lease=LEASE)
def writes_much() -> None:
    for _ in range(400):
        print("\0" * 1000)


@singleton_job(lease=LEASE)
def says_then_waits() -> None:
    print("still here")
    rest()


@singleton_job(lease=LEASE)
def tells_its_progress() -> None:
    this_run().progress(3, 8, "importing")
    rest()


@singleton_job(lease=LEASE)
def says_and_dies() -> None:
    print("last words")
    os.kill(os.getpid(), signal.SIGKILL)


@singleton_job(lease=LEASE)
def says_and_fails() -> None:
    for number in range(12):
        print("line", number)
    raise ValueError("no such customer")


@singleton_job(lease=LEASE)
def says_much_and_fails() -> None:
    for number in range(1000):
        print("line", number)
    raise ValueError


@singleton_job(lease=LEASE)
def says_and_runs_a_command() -> None:
    print("looking for it")
    this_run().progress("half")  # type: ignore[arg-type]  # which is logged
    print("still looking", end="")
    logging.getLogger("tests.app").warning("a record of its own")
    subprocess.run(["sh", "-c", "exit 3", "--password=s3cret"], check=True)


@singleton_job(lease=LEASE)
def says_and_complains() -> None:
    print("looking for it")
    raise CommandError("There is no such customer.")


@singleton_job(lease=LEASE)
def takes_turns() -> None:
    for number in range(1000):
        print(number, file=(sys.stdout, sys.stderr)[number % 2])


@singleton_job(lease=LEASE)
def warns() -> None:
    print("warned", file=sys.stderr)


@singleton_job(lease=LEASE)
def fills_a_pipe() -> None:
    print(("0" * 99 + "\n") * 1000, end="")


@singleton_job(lease=LONG_LEASE)
def is_silent_until_told() -> None:
    wait_until_told()


@singleton_job(lease=LEASE)
def counts_aloud(lines: int) -> None:
    for number in range(lines):
        print(f"{number:09}")


@singleton_job(lease=LEASE)
def fails_with_a_traceback() -> None:
    raise ValueError("It failed.")


def talks(letter: str) -> None:
    for _ in range(200):
        print(letter * 40, end="")
        print(letter * 40)


TALKERS = [singleton_job(f"talks-{letter}", lease=LEASE)(partial(talks, str(letter))) for letter in range(4)]


@singleton_job(lease=LEASE)
def leaves_a_process() -> None:
    say("left", subprocess.Popen(["sleep", "600"]).pid)


@singleton_job(lease=LEASE)
def leaves_a_daemon() -> None:
    say("left", subprocess.Popen(["sleep", "60"], start_new_session=True).pid)


@singleton_job(lease=LEASE)
def leaves_one_that_prints() -> None:
    subprocess.Popen(["yes"], start_new_session=True)


@singleton_job(lease=LEASE)
def leaves_a_thread() -> None:
    def go_on() -> None:
        wait_until_told()
        say("the thread has ended")

    threading.Thread(target=go_on).start()
    say("the body has ended")


@singleton_job(lease=LEASE)
def uses_a_pool() -> int:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        return sum(pool.map(abs, range(100)))


@singleton_job(lease=LEASE)
def leaves_its_language() -> str:
    before = get_language()
    activate("de")
    return str(before)


@singleton_job(lease=LEASE)
def writes_a_lot() -> None:
    for _ in range(100):
        sys.stdout.write("x" * 1_000_000)


@singleton_job(lease=LONG_LEASE)
def keeps_its_lease_itself() -> None:
    lease = this_run().lease
    end = local_now() + 1.5 * LONG_LEASE.total_seconds()
    with lease.atomic():
        write("fenced")
        while local_now() < end:
            lease.check()
            work_for(0.1)
    lease.renew()
    say("kept")


@singleton_job(lease=LEASE)
def releases_its_lock() -> None:
    say("released", this_run().lease.release())
    wait_until_told()


# --- jobs that do what a body should not do


@singleton_job(lease=LEASE)
def exits(status: int) -> None:
    sys.exit(status)


@singleton_job(lease=LEASE)
def interrupts_itself() -> None:
    raise KeyboardInterrupt


@singleton_job(lease=LEASE)
def exits_at_once() -> None:
    os._exit(7)


@singleton_job(lease=LEASE)
def forks(how_the_child_ends: str) -> str:
    """The child returns from this function too, unless it exits here."""
    pid = os.fork()
    if pid == 0:
        if how_the_child_ends == "exits":
            sys.exit(0)
        if how_the_child_ends == "has a thread":  # as libraries start one after a fork
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        return "child"
    os.waitpid(pid, 0)
    return "parent"


@singleton_job(lease=LEASE)
def closes_its_connection() -> None:
    connection.close()


@singleton_job(lease=LEASE)
def breaks_its_connection() -> None:
    connection.connection.close()


@singleton_job(lease=LEASE)
def begins_a_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    write("never committed")


@singleton_job(lease=LEASE)
def turns_autocommit_off() -> None:
    transaction.set_autocommit(False)
    write("never committed")


@singleton_job(lease=LEASE)
def never_leaves_atomic() -> None:
    transaction.atomic().__enter__()
    write("never committed")


@singleton_job(lease=LEASE)
def aborts_its_transaction() -> None:
    transaction.atomic().__enter__()
    write("never committed")
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT nonsense")


# --- one-offs


@singleton_job(lease=LEASE, max_attempts=1000)
def noted(number: int, seconds: float = 0.0) -> None:
    """Each run that comes to its end leaves a row."""
    work(seconds)
    write(f"{number}/{this_run().attempt}/{this_run().lease.fence}")


# --- for the threads of a worker


def note(number: int, attempt: int, seconds: float = 0.0, file: str = "") -> None:
    """Work for `seconds`, then leave a line in the file, or else a row. Each repetition leaves another."""
    work_for(seconds)
    if file:
        with Path(file).open("a") as notes:
            notes.write(f"{number}/{attempt}\n")
    else:
        write(f"{number}/{attempt}/{uuid4().hex}")


def note_as_job(number: int, seconds: float = 0.0, file: str = "") -> None:
    note(number, this_run().attempt, seconds, file)


for _number in range(20):
    # A long lease: SQLite does not queue the writes of twenty threads, which are many beside other tests.
    singleton_job(f"many-{_number}", lease=2 * LONG_LEASE, max_attempts=1000)(note_as_job)


def add_one(counter: str) -> None:
    """A step that must never overlap with another; it leaves a record of its begin and its end."""
    begun_at = local_now()
    value = Counter.objects.get_or_create(name=counter)[0].value
    work_for(0.01)
    Counter.objects.filter(name=counter).update(value=value + 1)
    write(f"{begun_at!r}/{local_now()!r}/{uuid4().hex}")


@singleton_job(lease=LEASE, lock="one_at_a_time")
def adds() -> None:
    add_one("sum")


@singleton_job(lease=LEASE, lock="one_at_a_time")
def adds_too() -> None:
    add_one("sum")


@singleton_job(lease=LEASE, max_attempts=1000)
def adds_again_and_again() -> None:
    add_one("sum")
    adds_again_and_again.enqueue()


def meet(number: int, count: int) -> None:
    """Arrive, and stay until `count` guests are there."""
    write(f"guest {number}")
    while Counter.objects.filter(name__startswith="guest ").count() < count:
        work_for(0.01)


for _number in range(10):
    # With the default lease: ten of them in one process may delay each other's heartbeats by seconds.
    singleton_job(f"guest-{_number}")(meet)


def wait_or_tell() -> None:
    try:
        say("started")
        wait_until_told()
    except BaseException as error:
        say(f"caught {type(error).__name__}")  # in one piece, because others print at the same time
        raise


@singleton_job(lease=LEASE, max_attempts=1000)
def tells() -> int:
    wait_or_tell()
    return this_run().attempt


@singleton_job(lease=LEASE)
async def tells_async() -> None:
    try:
        say("started")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        say("caught")
        raise


@singleton_job(lease=LEASE)
def ends_a_child() -> int:
    """Returns how the child ended: by the signal, unless it was started with signals blocked."""
    code = "import time; print('started', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        child.terminate()
        return child.wait()


@singleton_job(lease=LEASE)
def says_how_a_command_ended() -> None:
    say("status", subprocess.run(["sh", "-c", "exit 3"], check=False).returncode)


@singleton_job(lease=LEASE)
def tells_the_edition() -> int:
    edition: int = getattr(settings, "EDITION", 0)
    return edition


@singleton_job(lease=LEASE)
def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@singleton_job(lease=LEASE)
def leaves_an_orphan() -> None:
    """A process that outlives its parent, but not the job's process group."""
    subprocess.run(["sh", "-c", "sleep 60 &"], check=True)


@singleton_job(lease=LEASE)
def counts_zombies() -> int:
    return sum(" Z " in path.read_text() for path in Path("/proc").glob("[0-9]*/stat"))


@singleton_job(lease=LEASE)
def outlasts_its_lease() -> None:
    say("started")
    work_for(1.5 * LEASE.total_seconds())


@singleton_job(lease=LEASE)
def skips_itself() -> None:
    raise SkipRun("holiday")


@singleton_job(lease=LEASE)
async def skips_itself_async() -> None:
    raise SkipRun("holiday")


_FOR_ALL_RUNS = TemporaryDirectory()


@singleton_job(lease=LEASE)
def uses_a_directory_of_the_process() -> None:
    Path(_FOR_ALL_RUNS.name, "file").write_text("")


# What the shell does, the test says.
SHELL = ["sh", "-c", 'eval "$SINGLEJOB_TEST_SHELL"']
shells = shell_job("shells", SHELL, lease=LEASE)
shells_too = shell_job("shells_too", SHELL, lease=LEASE)
shells_and_fails = shell_job("shells_and_fails", ["sh", "-c", "echo saved; exit 3"], lease=LEASE)
