"""The guard, a program by itself: what it kills, when, and what it leaves alone."""

from __future__ import annotations

import mmap
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self

import pytest

from tests.mirror import PACKAGE
from tests.processes.witness import is_alive
from tests.waiting import a_moment, eventually, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pidfds")

PROGRAM = PACKAGE / "running/guard.py"
guard = SimpleNamespace(**runpy.run_path(str(PROGRAM)))
#: Seconds. A lease that nobody renews is over at once.
LEASE, GRACE = 0.1, 0.4
ENDLESS = 3600.0


class Sleeping(subprocess.Popen[str]):
    """A process that leads a group, with another one in it."""

    def __init__(self) -> None:
        script = "sleep 600 & echo $!; exec sleep 600"
        super().__init__(["sh", "-c", script], process_group=0, stdout=subprocess.PIPE, text=True)
        assert self.stdout
        self.other = int(self.stdout.readline())
        self.stdout.close()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Body:
    """Such processes, and the memory that they share with their supervisor."""

    def __init__(self, number: int, lease: float) -> None:
        self.process = Sleeping()
        self._memory = os.memfd_create("memory")
        os.ftruncate(self._memory, mmap.PAGESIZE)
        self.numbers = memoryview(mmap.mmap(self._memory, mmap.PAGESIZE)).cast("d")
        self.renew()
        self.message = guard.MESSAGE.pack(number, self.process.pid, lease, GRACE)
        self.descriptors = [self._memory, os.pidfd_open(self.process.pid)]

    def renew(self) -> None:
        self.numbers[guard.PROVEN_AT] = time.clock_gettime(time.CLOCK_BOOTTIME)

    def is_over(self) -> bool:
        return self.process.poll() == -signal.SIGKILL and not is_alive(self.process.other)

    def is_left_alone(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.end()
        for descriptor in self.descriptors:
            os.close(descriptor)


class Guarded:
    """A supervisor that only sleeps, with its guard."""

    def __init__(self) -> None:
        self.supervisor = Sleeping()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-I", "-S", PROGRAM], stdin=theirs.fileno())
        pidfd = os.pidfd_open(self.supervisor.pid)
        socket.send_fds(self._channel, [b"\0"], [pidfd])
        os.close(pidfd)
        self._bodies: list[Body] = []

    def body(self, lease: float = ENDLESS) -> Body:
        self._bodies.append(Body(len(self._bodies), lease))
        self.tell(self._bodies[-1].message, self._bodies[-1].descriptors)
        return self._bodies[-1]

    def tell(self, message: bytes, descriptors: list[int]) -> None:
        socket.send_fds(self._channel, [message], descriptors)

    def forget(self, body: Body) -> None:
        number, pid, _, grace = guard.MESSAGE.unpack(body.message)
        self.tell(guard.MESSAGE.pack(number, pid, 0.0, grace), [])

    def hang_up(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()
        for body in self._bodies:
            body.end()
        self.supervisor.end()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as guarded:
        yield guarded


def test_if_the_supervisor_is_gone_it_kills_all_runs_with_their_groups_and_ends(guarded: Guarded) -> None:
    bodies = [guarded.body(), guarded.body()]
    over = guarded.body()
    guarded.forget(over)
    guarded.supervisor.kill()
    for body in bodies:
        eventually(body.is_over)
    assert guarded.process.wait() == 0
    assert over.is_left_alone()


def test_so_it_does_if_the_supervisor_has_become_another_program(guarded: Guarded) -> None:
    body = guarded.body()
    guarded.hang_up()
    eventually(body.is_over)
    assert guarded.process.wait() == 0


def test_what_it_was_told_before_it_began_counts(guarded: Guarded) -> None:
    guarded.process.send_signal(signal.SIGSTOP)
    body = guarded.body()
    guarded.supervisor.kill()
    guarded.supervisor.wait()
    guarded.process.send_signal(signal.SIGCONT)
    eventually(body.is_over)


def test_a_lease_may_be_longer_than_the_longest_wait_of_the_system(guarded: Guarded) -> None:
    body, silent = guarded.body(100 * 86_400.0), guarded.body(LEASE)
    eventually(silent.is_over)
    assert body.is_left_alone()
    guarded.supervisor.kill()
    eventually(body.is_over)


def test_it_ignores_the_signals_that_end_a_command(guarded: Guarded) -> None:
    body = guarded.body(LEASE)
    eventually(body.is_over)
    for signum in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT:
        guarded.process.send_signal(signum)
    another = guarded.body(LEASE)
    eventually(another.is_over)


def test_a_run_whose_lease_is_over_is_killed_after_the_grace_and_has_lost_it(guarded: Guarded) -> None:
    body = guarded.body(LEASE)
    assert seconds_of(lambda: eventually(body.is_over)) > GRACE
    assert body.numbers[guard.REASON] == guard.LOST


def test_the_reason_that_the_supervisor_gave_stays(guarded: Guarded) -> None:
    body = guarded.body(LEASE)
    body.numbers[guard.REASON] = signal.SIGTERM
    eventually(body.is_over)
    assert body.numbers[guard.REASON] == signal.SIGTERM


def test_one_that_is_renewed_goes_on_and_so_does_the_only_writer(guarded: Guarded) -> None:
    renewed, writer, silent = guarded.body(2 * LEASE), guarded.body(LEASE), guarded.body(LEASE)
    writer.numbers[guard.IS_ONLY_WRITER] = 1.0

    def is_silent_one_over() -> bool:
        renewed.renew()
        return silent.is_over()

    eventually(is_silent_one_over)
    assert renewed.is_left_alone()
    assert writer.is_left_alone()
    writer.numbers[guard.IS_ONLY_WRITER] = 0.0
    eventually(writer.is_over)


def test_after_a_suspension_the_supervisor_has_a_grace_to_renew_it(guarded: Guarded) -> None:
    first = guarded.body(LEASE)
    guarded.process.send_signal(signal.SIGSTOP)
    first.numbers[guard.PROVEN_AT] -= 600
    guarded.process.send_signal(signal.SIGCONT)
    assert seconds_of(lambda: eventually(first.is_over)) > GRACE / 2


def test_what_is_left_of_a_group_is_killed_though_its_leader_was_collected(guarded: Guarded) -> None:
    body = guarded.body(LEASE)
    body.process.kill()
    body.process.wait()
    assert is_alive(body.process.other)
    eventually(lambda: not is_alive(body.process.other))


def test_a_process_that_has_the_number_of_one_that_was_collected_is_left_alone(guarded: Guarded) -> None:
    with subprocess.Popen(["true"]) as former:
        pidfd = os.pidfd_open(former.pid)
    bystander, witness = Body(7, LEASE), guarded.body(LEASE)
    try:
        message = guard.MESSAGE.pack(7, bystander.process.pid, LEASE, GRACE)
        guarded.tell(message, [bystander.descriptors[0], pidfd])
        eventually(witness.is_over)
        a_moment()
        assert bystander.is_left_alone()
    finally:
        os.close(pidfd)
        bystander.end()
