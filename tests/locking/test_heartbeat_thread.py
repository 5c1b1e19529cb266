"""The thread that keeps the leases of code in this process."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from django_singlejob import job_lock
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.models.locks import locks
from tests.contract.acts import take
from tests.databases import APPS
from tests.locking.heartbeat_thread import renew_during, threads
from tests.waiting import eventually

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.children import Spawn

pytest_plugins = "tests.fixtures"

# With a heartbeat each tenth of a second, also on a machine that keeps it waiting.
SHORT, HEARTBEATS_PER_LEASE = timedelta(seconds=30), 300
real = pytest.mark.django_db(transaction=True, available_apps=APPS)


@pytest.fixture(autouse=True)
def _many_heartbeats(settings: Settings) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "HEARTBEATS_PER_LEASE": HEARTBEATS_PER_LEASE}


def beats() -> int:
    return sum(locks().values_list("heartbeats", flat=True))


@real
@pytest.mark.usefixtures("fresh_process")
def test_one_thread_keeps_all_leases_and_ends_after_them() -> None:
    def body() -> None:
        with job_lock("b", lease=SHORT), job_lock("c", lease=SHORT):
            eventually(lambda: beats() > 5)
            assert len(threads()) == 1

    renew_during(take("a", lease=SHORT), body)
    eventually(lambda: not threads())


@real
def test_the_next_lease_has_a_thread_again() -> None:
    for _ in range(3):
        with job_lock("a", lease=SHORT):
            eventually(beats)
        eventually(lambda: not threads())


@real
def test_it_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    beat, errors = Heartbeats.beat, [ZeroDivisionError()]

    def failing(heartbeats: Heartbeats) -> None:
        if errors:
            raise errors.pop()
        beat(heartbeats)

    monkeypatch.setattr(Heartbeats, "beat", failing)
    with job_lock("a", lease=SHORT):
        eventually(lambda: beats() > 0)
    assert "The heartbeats go on after an error." in caplog.text


@real
def test_a_lease_that_is_shorter_is_renewed_too() -> None:
    with job_lock("long", lease=timedelta(hours=100)), job_lock("short", lease=SHORT) as lease:
        eventually(lambda: locks().get(name="short").heartbeats > 3)
        lease.check()


@pytest.mark.django_db
def test_in_a_transaction_of_the_tests_there_is_none() -> None:
    with job_lock("a", lease=SHORT):
        assert not threads()


@real
@pytest.mark.parametrize("hooks", ["os.fork()", "ctypes.PyDLL(None).fork()"])
def test_a_forked_child_has_a_thread_of_its_own(spawn: Spawn, hooks: str) -> None:
    """A server that is written in C may fork without Python's hooks. If another thread computes at that moment, Python
    itself may hang in the child, so this one waits until the heartbeats' thread waits."""
    child = spawn.code(f"""
        import ctypes, os, sys, threading
        from datetime import timedelta
        from django.conf import settings
        from django.db import connection, connections
        from django_singlejob import job_lock
        from django_singlejob.models.locks import locks
        from tests.waiting import a_moment, eventually

        settings.SINGLEJOB = {{**settings.SINGLEJOB, "HEARTBEATS_PER_LEASE": {HEARTBEATS_PER_LEASE}}}

        def hold(name):
            with job_lock(name, lease=timedelta(seconds={SHORT.seconds})) as lease:
                eventually(lambda: locks().get(name=name).heartbeats > 3)
                lease.check()

        def waits():
            (thread,) = [each for each in threading.enumerate() if each.name == "heartbeats"]
            return sys._current_frames()[thread.ident].f_code.co_name == "wait"

        hold("parent")
        with job_lock("kept", lease=timedelta(hours=100)):  # so that the parent's thread is alive
            connection.close()
            eventually(waits)
            a_moment()
            pid = {hooks}
            if pid == 0:
                connections.close_all()
                hold("child")
                print("held", flush=True)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            hold("parent")
    """)
    assert child.finish() == 0, child.output
    assert "held" in child.output
