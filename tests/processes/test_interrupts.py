"""Signals that end a process: whenever one comes, the body may clean up, and no lock is left behind."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from django_singlejob import singleton_job
from django_singlejob.models import JobLock, JobRun
from django_singlejob.models.one_offs import one_offs
from django_singlejob.running.enqueue import Order
from tests.contract.acts import fall_behind
from tests.databases import APPS
from tests.processes.test_signal_rounds import handles_signals
from tests.processes.witness import ends, is_alive, is_over
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Spawn
    from tests.processes.conftest import Act

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# Signals within a second count as one burst.
A_SECOND_THOUGHT = 1.2

# Processes that acquire and release at top speed until a signal comes at a random moment. Forks save 40 start-ups.
TIGHT_LOOPS = """
    import os, random, signal, sys, time
    from contextlib import nullcontext, suppress
    from django.db import Error
    from django_singlejob import job_lock
    from django_singlejob.process.received_signals import deferred_signals
    from tests.app.jobs import *

    def loop():
        while True:
            tick()
            with job_lock("tock", lease=LEASE):
                pass

    def end(pid, signum):
        os.kill(pid, signum)
        for _ in range(1500):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                return
            time.sleep(0.01)
        say("It ignored the signal: retrying.")
        end(pid, signum)

    def repeatedly(signum, protection, leave, expected=KeyboardInterrupt):
        with protection:
            begun, tell = os.pipe()
            for _ in range(40):
                pid = os.fork()
                if pid == 0:
                    with suppress(expected):
                        os.write(tell, b".")
                        loop()
                    leave(0)
                # Python drops signals that arrive before a child's first step, which takes a while on a busy machine.
                os.read(begun, 1)
                time.sleep(random.uniform(0.01, 0.1))
                end(pid, signum)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_interrupts_the_job_and_releases_its_lock(spawn: Spawn, signum: signal.Signals) -> None:
    child = spawn.command("run_singleton", "nap")
    child.wait_for("attempt 1")
    child.send_signal(signum)
    assert child.finish() == 128 + signum
    assert "cleaned up" in child.output
    assert "Traceback" not in child.output
    assert is_over("nap", "interrupted")


@pytest.mark.parametrize("signum", [signal.SIGWINCH, signal.SIGPIPE])
def test_some_signals_do_nothing(spawn: Spawn, signum: signal.Signals) -> None:
    child = spawn.command("run_singleton", "nap")
    child.wait_for("attempt 1")
    child.send_signal(signum)
    child.terminate()
    assert child.finish() == 143
    assert is_over("nap", "interrupted")


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGRTMIN + 3])
def test_others_kill_the_command_as_any_program_and_its_guard_the_job(spawn: Spawn, signum: int) -> None:
    child = spawn.command("run_singleton", "stubborn", "--args", '["sleeps"]')
    child.wait_for("started")
    (body,) = [int(found) for found in re.findall(r"started (\d+)", child.output)]
    child.send_signal(signum)
    assert child.finish() == -signum
    eventually(lambda: not is_alive(body))
    assert JobLock.objects.filter(name="stubborn").exists()


def test_a_handler_of_the_project_is_called_all_the_same(spawn: Spawn) -> None:
    code = """
        import faulthandler, signal, sys
        from django.core.management import execute_from_command_line
        faulthandler.register(signal.SIGUSR1)
        execute_from_command_line(["manage.py", *sys.argv[1:]])
    """
    child = spawn.code(code, "run_singleton", "nap")
    child.wait_for("attempt 1")
    child.send_signal(signal.SIGUSR1)
    child.wait_for("most recent call first")
    child.terminate()
    assert child.finish() == 143
    assert is_over("nap", "interrupted")


# A server with a job whose first two attempts at a slot take longer than a test. No other slot comes due meanwhile.
SERVER = """
    import sys
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job
    from tests.app.jobs import LEASE, nap, this_run

    @singleton_job(schedule="@yearly", lease=LEASE, max_attempts=int(sys.argv[1]))
    def report():
        if this_run().attempt < 3:
            nap.func()

    execute_from_command_line(["manage.py", *sys.argv[2:]])
"""


@pytest.mark.parametrize("line", ["run_singleton report", "singleton_worker --grace 0"])
@pytest.mark.usefixtures("fresh_process")
def test_the_slot_that_a_deploy_interrupts_is_run_by_the_next_server(spawn: Spawn, line: str) -> None:
    fall_behind(singleton_job("report", schedule="@yearly")(lambda: None))
    for attempt in 1, 2:
        old = spawn.code(SERVER, "3", *line.split())
        old.wait_for(f"attempt {attempt}")
        old.terminate()
        assert old.finish() == (0 if "grace" in line else 143)
        assert "cleaned up" in old.output
        assert not JobLock.objects.exists()
    for _ in range(2):
        assert spawn.code(SERVER, "3", "singleton_worker", "--once").finish() == 0
    assert ends("report") == ["interrupted", "interrupted", "successful"]


SLEEP = "print('started', flush=True); import time; time.sleep(600)"
#: What a time-out around a line of a crontab may end each time.
LINES = {
    "by hand": ("nap", "--now"),
    "shell command": ("nap-of-shell", "--", "sh", "-c", "echo started; exec sleep 600"),
}


@pytest.mark.parametrize("line", LINES)
def test_the_second_interruption_in_a_row_is_a_failure_whatever_has_started_the_run(spawn: Spawn, line: str) -> None:
    name, *rest = LINES[line]
    for status in 0, 2:
        child = spawn.command("run_singleton", name, "--min-interval=0", *rest)
        child.wait_for("attempt 1" if line == "by hand" else "started")
        child.terminate()
        assert child.finish() == 143
        assert spawn.command("singleton_status", "--check").finish() == status
    assert is_over(name, "interrupted", "interrupted")


def test_so_it_is_for_a_one_off(spawn: Spawn) -> None:
    Order(job_name="nap").enqueue()
    for status in 0, 2:
        child = spawn.command("singleton_worker", "--once", "-v2")
        child.wait_for("attempt 1")
        child.terminate()
        assert child.finish() == 143
        assert spawn.command("singleton_status", "--check", "--job", "nap").finish() == status
    assert is_over("nap", "interrupted", "interrupted")
    assert [(each.status, each.attempt) for each in one_offs()] == [("waiting", 0)]


@pytest.mark.usefixtures("fresh_process")
def test_if_it_is_not_run_again_that_is_an_error_which_monitoring_reports(spawn: Spawn) -> None:
    fall_behind(singleton_job("report", schedule="@yearly")(lambda: None))
    old = spawn.code(SERVER, "1", "run_singleton", "report")
    old.wait_for("attempt 1")
    old.terminate()
    assert old.finish() == 143
    assert spawn.code(SERVER, "1", "singleton_worker", "--once").finish() == 0
    assert ends("report") == ["interrupted"]
    status = spawn.code(SERVER, "1", "singleton_status", "--check")
    assert status.finish() == 2
    assert "The last run of the job 'report' was interrupted." in status.output


def test_ctrl_c_ends_the_pass_but_a_job_that_raises_keyboard_interrupt_does_not(spawn: Spawn) -> None:
    for _ in range(3):
        Order(job_name="interrupts_itself").enqueue()
    Order(job_name="nap", priority=-1).enqueue()
    Order(job_name="nap", priority=-2).enqueue()
    child = spawn.command("singleton_worker", "--once", "-v2")
    child.wait_for("attempt 1")
    child.send_signal(signal.SIGINT)
    assert child.finish() == 1  # the first non-zero exit status
    assert ends("interrupts_itself") == ["failed"] * 3
    assert is_over("nap", "interrupted")
    rows = one_offs().order_by("pk").values_list("status", "attempt")
    assert list(rows) == [("failed", 1)] * 3 + [("waiting", 0)] * 2


def test_a_burst_of_signals_is_one(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "slow_to_clean_up", "--args", "[0.5]")
    child.wait_for("started")
    for _ in range(5):
        child.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert child.finish() == 143
    assert "cleaned up" in child.output
    assert is_over("slow_to_clean_up", "interrupted")


def test_a_second_signal_hurries(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "slow_to_clean_up", "--args", "[600]")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    child.wait_for("cleaning up")
    time.sleep(A_SECOND_THOUGHT)
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 143
    assert "cleaned up" not in child.output
    assert is_over("slow_to_clean_up", "interrupted")


def test_a_command_that_waits_for_a_lock_is_interrupted_too(spawn: Spawn) -> None:
    spawn.command("run_singleton", "nap").wait_for("attempt 1")
    waiting = spawn.code(
        """
        from django.db import connection
        from django_singlejob.management.commands.run_singleton import Command
        connection.ensure_connection()
        print("about to wait")
        Command().run_from_argv(["manage.py", "run_singleton", "nap", "--wait", "600", "--now"])
    """,
        "run_singleton",
    )
    waiting.wait_for("about to wait")
    eventually(lambda: handles_signals(waiting))
    time.sleep(A_SECOND_THOUGHT)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.finish() == 143
    assert ends("nap") == ["running"]


#: A management command and a shell command that end by SIGTERM, and one that does not.
TOO_LONG = {
    "management command": ("-m", "shell", "-c", SLEEP),
    "shell command": ("--", "sh", "-c", "echo started; exec sleep 600"),
    "stubborn shell command": ("--", "sh", "-c", "trap 'echo got SIGTERM' TERM; while :; do sleep 600; done"),
}


@pytest.mark.parametrize("words", TOO_LONG)
def test_max_runtime_ends_a_command(spawn: Spawn, words: str) -> None:
    # By then it has a handler, if it wants one; and the grace, in which that is called, is a sixth of the lease.
    child = spawn.command("run_singleton", "feed", "--max-runtime=3", "--lease=24", *TOO_LONG[words])
    assert child.finish() == 1
    assert "feed: failed, JobTimeout: The job ran longer than its max_runtime" in child.output
    assert ("got SIGTERM" in child.output) == ("stubborn" in words)
    assert is_over("feed", "interrupted")
    assert spawn.command("singleton_status", "--check").finish() == 2


@pytest.mark.on_database("postgresql")  # MySQL's driver handles no signal before a query has ended
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (None, 1)], ids=["signal", "max_runtime"])
def test_a_job_can_be_interrupted_in_a_query(
    spawn: Spawn, kill_connections: Act, signum: int | None, status: int
) -> None:
    child = spawn.command("run_singleton", "too_long_a_query")
    child.wait_for("started")
    if signum:
        child.send_signal(signum)
    assert child.finish() == status
    assert is_over("too_long_a_query", "interrupted")
    kill_connections()  # the server would work on for a minute


def test_a_coroutine_that_waits_can_be_interrupted(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "async_nap")
    child.wait_for("started")
    child.terminate()
    assert child.finish() == 143
    assert "cleaned up" in child.output
    assert is_over("async_nap", "interrupted")


@pytest.mark.parametrize("signum", ["SIGTERM", "SIGINT"])
def test_no_signal_at_a_random_moment_leaves_a_lock(spawn: Spawn, signum: str) -> None:
    # os._exit, because everything must be clean before anything runs at exit.
    child = spawn.code(f"{TIGHT_LOOPS}\n    repeatedly(signal.{signum}, deferred_signals(is_last=True), os._exit)")
    assert child.finish(100) == 0
    assert child.output == ""
    assert nothing_is_left_behind()


def test_a_plain_script_that_is_interrupted_at_a_random_moment_releases_at_exit(spawn: Spawn) -> None:
    # A driver may turn the interrupt into an error of its own.
    expected = "(KeyboardInterrupt, Error)"
    child = spawn.code(f"{TIGHT_LOOPS}\n    repeatedly(signal.SIGINT, nullcontext(), sys.exit, {expected})")
    assert child.finish(100) == 0
    assert "Traceback" not in child.output
    assert "could not be released" not in child.output
    assert nothing_is_left_behind()


def nothing_is_left_behind() -> bool:
    """Nor was there in between: the lock would have been taken over, and its run abandoned."""
    return not JobLock.objects.exists() and not JobRun.objects.filter(status__in=["running", "abandoned"]).exists()
