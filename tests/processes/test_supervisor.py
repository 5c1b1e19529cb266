"""A command runs a job in a child process. Whatever the body does, it is over before anybody else begins."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_singlejob import LockHeld, job_lock
from django_singlejob.models import JobLock, JobRun, OneOffJob
from django_singlejob.models.locks import locks
from tests.app import jobs
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.witness import ends, guard_of, is_alive, is_over, started_by
from tests.waiting import a_moment, eventually, work_for

if TYPE_CHECKING:
    from tests.children import Child, Spawn
    from tests.processes.conftest import Act
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# What the database does not matter for.
once = pytest.mark.on_database("sqlite")

A_SECOND_THOUGHT = 1.2
# Whether a signal, which raises an exception in it, ends the body.
REACHABLE = {"sleeps": True, "holds the GIL in C": False, "swallows every exception": False}
KINDS = list(REACHABLE)
WITH_GRACE = ("--lease", f"{jobs.LONG_GRACE.total_seconds():.0f}")


class Scene:
    """A body under its supervisor."""

    def __init__(self, child: Child) -> None:
        self.child = child
        child.wait_for(" of ")
        found = re.search(r"started (\d+) of (\d+)", child.output)
        assert found
        self.body, self.supervisor = map(int, found.groups())
        assert self.supervisor == child.pid

    def let_next_begin(self) -> None:
        """Wait for the next holder, which never begins while the body is alive."""
        with job_lock("stubborn", wait=timedelta(minutes=1)):
            assert not is_alive(self.body)

    def body_ends_if_it_is_told_again(self) -> bool:
        """The command may have heard a signal so late that the next one counts as one with that. It gets no more once
        the body is over: at its own end, one would do what it does to any program."""
        if is_alive(self.body):
            self.child.terminate()
            work_for(A_SECOND_THOUGHT)
        return not is_alive(self.body)


def start(spawn: Spawn, kind: str, job: str = "stubborn", *options: str, **env: str) -> Scene:
    return Scene(spawn.command("run_singleton", job, "--now", *options, "--args", f'["{kind}"]', **env))


def start_with_grace(spawn: Spawn, kind: str, job: str = "stubborn", **env: str) -> Scene:
    """A body that a signal ends has the time to clean up before it is killed, on a busy machine too."""
    is_reachable = REACHABLE.get(kind, kind == "waits in the driver")
    return start(spawn, kind, job, *(WITH_GRACE if is_reachable else ()), **env)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_was_cleared_by_force_ends_the_body(spawn: Spawn, kind: str) -> None:
    scene = start_with_grace(spawn, kind)
    JobLock.objects.all().delete()
    assert scene.child.finish() == 75
    assert not is_alive(scene.body)
    assert ("cleaned up" in scene.child.output) == REACHABLE[kind]
    assert ends("stubborn") == ["failed"]
    assert "LeaseLost" in JobRun.objects.get().error


CHECKS = """
import time
from datetime import timedelta
from django.conf import settings
from django.core.management import ManagementUtility
from django_singlejob import current_run, singleton_job

settings.SINGLEJOB = {**settings.SINGLEJOB, "HEARTBEATS_PER_LEASE": 1000}

@singleton_job(lease=timedelta(seconds=5))
def checks():
    lease = current_run().lease
    first, end = lease.expires_at, time.monotonic() + 3
    while time.monotonic() < end or lease.expires_at == first:
        lease.check()
    print("heartbeats arrived", lease.expires_at > first)

ManagementUtility(["manage.py", "run_singleton", "checks"]).execute()
"""


@once
def test_a_check_that_coincides_with_a_heartbeat_finds_the_lease_as_it_is(spawn: Spawn) -> None:
    """What the two processes share has no moment in which it is neither old nor new."""
    child = spawn.code(CHECKS, "run_singleton")
    assert child.finish() == 0, child.output
    assert "heartbeats arrived True" in child.output


def stop_the_run() -> None:
    lock = JobLock.objects.get()
    assert locks().stop(lock.name, lock.token, "ada")


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_stops_the_body(spawn: Spawn, kind: str) -> None:
    scene = start_with_grace(spawn, kind)
    stop_the_run()
    assert scene.child.finish() == 1
    assert not is_alive(scene.body)
    assert ("cleaned up" in scene.child.output) == REACHABLE[kind]
    assert ends("stubborn") == ["interrupted"]
    assert JobRun.objects.get().error == "JobStopped: The run was stopped by ada."
    scene.let_next_begin()


@once
@pytest.mark.parametrize("why", ["stopped", "stopped, as a thread knows", "max_runtime", "lost"])
def test_a_body_that_has_found_out_by_itself_cleans_up_undisturbed(spawn: Spawn, why: str) -> None:
    """The signal that says the same would otherwise raise in its `finally`."""
    names = {"max_runtime": "asks_for_too_long", "stopped, as a thread knows": "asks_in_a_thread_too"}
    child = spawn.command("run_singleton", names.get(why, "asks_all_the_time"), "--now")
    child.wait_for("started")
    if why.startswith("stopped"):
        stop_the_run()
    elif why == "lost":
        JobLock.objects.all().delete()
    assert child.finish() == (75 if why == "lost" else 1)
    assert "cleaned up" in child.output


@once
def test_it_does_so_after_its_deadline_which_both_processes_watch(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "asks_all_the_time", "--now")
    child.wait_for("started")
    with transaction.atomic():  # SQLite lets no heartbeat through meanwhile
        JobLock.objects.update(pid=1)
        child.wait_for("cleaned up")
    child.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_max_runtime_ends_the_body(spawn: Spawn, kind: str) -> None:
    scene = start_with_grace(spawn, kind, "stubborn_for_too_long")
    assert scene.child.finish() == 1
    assert not is_alive(scene.body)
    assert ("cleaned up" in scene.child.output) == REACHABLE[kind]
    assert ends("stubborn_for_too_long") == ["interrupted"]
    assert "JobTimeout" in JobRun.objects.get().error
    scene.let_next_begin()


@once
def test_a_body_that_has_left_its_process_group_is_killed_too(spawn: Spawn) -> None:
    scene = start(spawn, "leaves its group", "stubborn_for_too_long")
    assert scene.child.finish() == 1
    assert not is_alive(scene.body)
    assert ends("stubborn_for_too_long") == ["interrupted"]
    scene.let_next_begin()


@once
@pytest.mark.parametrize("kind", ["holds the GIL in C", "swallows every exception"])
def test_a_second_signal_ends_the_body_whatever_it_does(spawn: Spawn, kind: str) -> None:
    scene = start(spawn, kind)
    scene.child.terminate()
    work_for(A_SECOND_THOUGHT)
    assert is_alive(scene.body)
    eventually(scene.body_ends_if_it_is_told_again)
    assert scene.child.finish() == 143
    assert not is_alive(scene.body)
    assert ends("stubborn") == ["interrupted"]
    assert not JobLock.objects.exists()


@once
@pytest.mark.parametrize("job", ["skips_itself", "skips_itself_async"])
def test_a_body_may_skip_its_run(spawn: Spawn, job: str) -> None:
    child = spawn.command("run_singleton", job, "--now", "-E", "75", "-v", "2")
    assert child.finish() == 0
    assert child.output == f"{job}: skipped itself, holiday.\n"
    assert is_over(job, "skipped")
    assert (JobRun.objects.get().error, JobRun.objects.get().traceback) == ("holiday", "")


@once
@pytest.mark.parametrize("kind", KINDS)
def test_the_body_dies_with_its_supervisor(spawn: Spawn, kind: str) -> None:
    scene = start(spawn, kind)
    scene.child.kill()
    eventually(lambda: not is_alive(scene.body))
    scene.let_next_begin()
    assert ends("stubborn") == ["abandoned"]


@once
@pytest.mark.parametrize(
    ("signum", "words"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT")]
)
def test_a_body_that_is_killed_is_recorded_and_its_lock_is_free_at_once(
    spawn: Spawn, signum: signal.Signals, words: str
) -> None:
    scene = start(spawn, "sleeps")
    os.kill(scene.body, signum)
    assert scene.child.finish() == 1
    assert ends("stubborn") == ["failed"]
    assert JobRun.objects.get().error == f"JobDied: Its process was killed by {words}."
    assert not JobLock.objects.exists()


@once
def test_a_crash_after_a_signal_that_the_job_has_handled_is_recorded_as_a_crash(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "handles_a_signal_and_crashes")
    child.wait_for("started")
    child.send_signal(signal.SIGHUP)
    assert child.finish() == 1
    assert JobRun.objects.get().error == "JobDied: Its process was killed by SIGSEGV."


@once
def test_a_body_that_is_stopped_beside_its_guard_ends_when_its_lock_is_lost(spawn: Spawn) -> None:
    scene = start(spawn, "sleeps")
    for pid in scene.body, guard_of(scene.child):
        os.kill(pid, signal.SIGSTOP)
    JobLock.objects.all().delete()
    assert scene.child.finish() == 75
    assert not is_alive(scene.body)


@once
def test_a_supervisor_that_is_stopped_ends_its_body_when_it_goes_on(spawn: Spawn) -> None:
    scene = start(spawn, "sleeps")
    scene.child.send_signal(signal.SIGSTOP)
    JobLock.objects.all().delete()
    with job_lock("stubborn"):
        scene.child.send_signal(signal.SIGCONT)
        assert scene.child.finish() == 75
    assert not is_alive(scene.body)
    assert ends("stubborn") == ["failed"]


@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_supervisor_that_is_stopped_the_body_ends_before_the_next_begins(spawn: Spawn, kind: str) -> None:
    # What nothing in its own process ends, its guard does, half a grace before the next begins.
    is_up_to_guard = kind == "holds the GIL in C"
    scene = start(spawn, kind, "stubborn", *WITH_GRACE) if is_up_to_guard else start_with_grace(spawn, kind)
    scene.child.send_signal(signal.SIGSTOP)
    scene.let_next_begin()
    scene.child.send_signal(signal.SIGCONT)
    assert scene.child.finish() == 75
    assert ("cleaned up" in scene.child.output) == REACHABLE[kind]
    assert ends("stubborn") == ["abandoned"]


@once
def test_what_a_body_has_started_dies_with_the_supervisor_too(spawn: Spawn) -> None:
    scene = start(spawn, "holds the GIL in C", "stubborn_with_a_process")
    scene.child.kill()
    eventually(lambda: not is_alive(scene.body) and not is_alive(number_left(scene.child)))


@once
@pytest.mark.parametrize("kind", ["sleeps", "holds the GIL in C"])
def test_a_guard_that_is_killed_is_replaced_and_the_next_one_knows_the_runs(spawn: Spawn, kind: str) -> None:
    scene = start(spawn, kind)
    first = guard_of(scene.child)
    os.kill(first, signal.SIGKILL)
    scene.child.wait_for("The guard of this command was killed by SIGKILL. Another one is started.")
    eventually(lambda: guard_of(scene.child) not in {0, first})
    assert is_alive(scene.body)
    scene.child.kill()
    eventually(lambda: not is_alive(scene.body))


@once
def test_a_shell_command_that_its_guard_does_not_know_yet_dies_with_its_supervisor(spawn: Spawn) -> None:
    """A guard that is stopped knows as little as one to which nobody has passed the run yet."""
    child = spawn.command("run_singleton", "nightly", "--now", "--lease", "600", "--", "sleep", "4711")
    command = eventually(partial(sleeping, child))
    guard = eventually(partial(guard_of, child))
    os.kill(guard, signal.SIGSTOP)
    try:
        child.kill()
        eventually(lambda: not is_alive(command))
    finally:
        os.kill(guard, signal.SIGKILL)


def sleeping(child: Child) -> int:
    return next((pid for pid, words in started_by(child) if words.startswith("sleep")), 0)


@once
def test_a_guard_ends_with_its_command(spawn: Spawn, go: Path) -> None:
    child = spawn.command("run_singleton", "until_told")
    child.wait_for("started")
    guard = guard_of(child)
    go.touch()
    assert child.finish() == 0
    assert not is_alive(guard)


@once
@pytest.mark.parametrize("kind", ["swallows every exception", "ends by the signal", "returns"])
def test_so_does_what_the_body_has_started(spawn: Spawn, go: Path, kind: str) -> None:
    scene = start(spawn, kind, "stubborn_with_a_process", *WITH_GRACE)
    scene.child.send_signal(signal.SIGSTOP)
    go.touch()
    with job_lock("stubborn", wait=timedelta(minutes=1)):
        assert not is_alive(scene.body)
        assert not is_alive(number_left(scene.child))
    scene.child.send_signal(signal.SIGCONT)
    scene.child.finish()


@once
def test_os_exit_is_recorded_and_the_lock_is_free_at_once(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "exits_at_once")
    assert child.finish() == 1
    assert JobRun.objects.get().error == "JobDied: Its process exited with status 7 before the job had ended."
    assert not JobLock.objects.exists()


# --- what a body does, and leaves behind


@once
def test_a_failure_is_recorded_with_its_traceback_and_logged_once(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "raises_what_cannot_be_passed_on", "--traceback")
    assert child.finish() == 1
    run = JobRun.objects.get()
    assert (run.status, run.error) == ("failed", "Peculiar: number 7")
    assert "in raises_what_cannot_be_passed_on" in run.traceback
    assert "raise Peculiar(number=7)" in run.origin
    assert child.output.count("raise Peculiar(number=7)") == 1
    assert "failed, JobFailed: Peculiar: number 7" in child.output


@once
def test_a_failure_whose_class_exists_in_the_child_only_is_recorded_and_logged_once(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "raises_what_its_supervisor_does_not_know")
    assert child.finish() == 1
    run = JobRun.objects.get()
    assert (run.status, run.error) == ("failed", "Unknown: number 7")
    assert child.output.count("failed, JobFailed: Unknown: number 7") == 1
    assert "ModuleNotFoundError" not in child.output


@once
def test_a_pass_logs_a_failure_once(spawn: Spawn) -> None:
    jobs.raises_what_cannot_be_passed_on.enqueue()
    child = spawn.code(
        """
        import logging
        from django.core.management import execute_from_command_line

        logging.basicConfig()
        execute_from_command_line(["django-admin", "singleton_worker", "--once", "-v2"])
    """,
        "singleton_worker",
    )
    assert child.finish() == 1
    assert child.output.count("The job 'raises_what_cannot_be_passed_on' failed.") == 1
    assert child.output.count("raise Peculiar(number=7)") == 1
    row = OneOffJob.objects.get()
    assert (row.status, row.error, row.error_class) == ("failed", "Peculiar: number 7", "tests.app.jobs.Peculiar")


@once
def test_a_failure_is_logged_although_the_process_is_killed_before_it_has_logged_it(spawn: Spawn) -> None:
    child = spawn.code(
        """
        import logging, os, signal
        from django.core.management import execute_from_command_line

        class Handler(logging.StreamHandler):
            supervisor = os.getpid()

            def emit(self, record):
                if os.getpid() != self.supervisor:
                    os.kill(os.getpid(), signal.SIGKILL)
                super().emit(record)

        logging.basicConfig(handlers=[Handler()])
        execute_from_command_line(["django-admin", "run_singleton", "raises_what_cannot_be_passed_on"])
    """,
        "run_singleton",
    )
    assert child.finish() == 1
    assert child.output.count("The job 'raises_what_cannot_be_passed_on' failed.") == 1
    assert child.output.count("raise Peculiar(number=7)") == 1
    run = JobRun.objects.get()
    assert (run.status, run.error) == ("failed", "Peculiar: number 7")


@once
def test_a_handler_that_raises_keeps_no_other_job_from_running(spawn: Spawn) -> None:
    for job in jobs.raises_what_cannot_be_passed_on, jobs.quick:
        job.enqueue()
    child = spawn.code(
        """
        import logging
        from django.core.management import execute_from_command_line

        class Handler(logging.Handler):
            def emit(self, record):
                if record.exc_info:
                    raise RuntimeError("this handler is broken")

        logging.getLogger("django_singlejob").addHandler(Handler())
        execute_from_command_line(["django-admin", "singleton_worker", "--drain"])
    """,
        "singleton_worker",
    )
    child.finish()
    assert "this handler is broken" in child.output
    found = set(OneOffJob.objects.values_list("job_name", "status"))
    assert found == {("raises_what_cannot_be_passed_on", "failed"), ("quick", "done")}


def test_a_task_that_fails_is_logged_once(spawn: Spawn) -> None:
    child = spawn.code(
        """
        import logging
        from django.core.management import execute_from_command_line
        from tests.app import django_tasks

        def body():
            raise ValueError("number 7")

        logging.basicConfig()
        django_tasks.body = body
        django_tasks.stock_asynchronous.enqueue()
        execute_from_command_line(["django-admin", "singleton_worker", "--once", "-v2"])
    """,
        "singleton_worker",
    )
    assert child.finish() == 1
    assert child.output.count("state=FAILED") == 1
    assert child.output.count("Traceback") == 1
    assert re.findall("^ *ValueError: number 7$", child.output, re.MULTILINE) == ["  ValueError: number 7"]


@pytest.mark.parametrize(
    ("job", "result"),
    [("quick", "done"), ("closes_all_descriptors", "closed"), ("returns_what_json_does_not_know", None)],
)
def test_the_value_of_a_one_off_is_recorded(spawn: Spawn, job: str, result: str | None) -> None:
    getattr(jobs, job).enqueue()
    assert spawn.command("singleton_worker", "--once").finish() == 0
    row = OneOffJob.objects.get()
    assert (row.status, row.result) == ("done", result)


@once
def test_a_process_that_a_body_leaves_behind_ends_with_it(spawn: Spawn) -> None:
    left = left_by(spawn, "leaves_a_process")
    eventually(lambda: not is_alive(left))  # what was killed may still be on its way out


def left_by(spawn: Spawn, job: str) -> int:
    child = spawn.command("run_singleton", job)
    assert child.finish() == 0
    eventually(lambda: not JobLock.objects.exists())
    return number_left(child)


def number_left(child: Child) -> int:
    found = re.search(r"left (\d+)", child.output)
    assert found
    return int(found[1])


@once
def test_the_lock_is_held_until_the_threads_of_a_body_have_ended(spawn: Spawn, go: Path) -> None:
    child = spawn.command("run_singleton", "leaves_a_thread")
    child.wait_for("the body has ended")
    a_moment()
    with pytest.raises(LockHeld), job_lock("leaves_a_thread"):
        pass
    go.touch()
    assert child.finish() == 0
    assert "the thread has ended" in child.output
    assert is_over("leaves_a_thread", "successful")


@once
def test_a_job_may_use_a_pool_of_processes(spawn: Spawn) -> None:
    for _ in range(20):
        jobs.uses_a_pool.enqueue()
    assert spawn.command("singleton_worker", "--once").finish() == 0
    assert set(OneOffJob.objects.values_list("status", "result")) == {("done", 4950)}


@once
def test_what_a_run_leaves_reaches_no_other(spawn: Spawn) -> None:
    for _ in range(2):
        jobs.leaves_its_language.enqueue()
    assert spawn.command("singleton_worker", "--once").finish() == 0
    first, second = OneOffJob.objects.values_list("result", flat=True)
    assert first == second


@once
def test_a_body_may_write_as_much_as_it_likes(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "writes_a_lot")
    assert child.finish() == 0
    assert child.output_path.stat().st_size >= 100_000_000


@once
def test_what_a_program_has_yet_to_write_is_written_once(spawn: Spawn) -> None:
    child = spawn(
        "-c",
        """if True:
        from django.core.management import execute_from_command_line
        print("before the command")
        execute_from_command_line(["django-admin", "run_singleton", "quick"])
        """,
        PYTHONUNBUFFERED="",
    )
    assert child.finish() == 0
    assert child.output.count("before the command") == 1


def test_a_body_keeps_its_lease_itself_and_through_a_long_transaction(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "keeps_its_lease_itself")
    assert child.finish() == 0
    assert "kept" in child.output
    assert "A heartbeat" not in child.output
    assert Counter.objects.filter(name="fenced").exists()
    assert is_over("keeps_its_lease_itself", "successful")


def test_a_body_may_release_its_lock(spawn: Spawn, go: Path) -> None:
    child = spawn.command("run_singleton", "releases_its_lock")
    child.wait_for("released True")
    with job_lock("releases_its_lock"):
        go.touch()
        assert child.finish() == 0
    assert "LeaseLost" not in child.output
    assert ends("releases_its_lock") == ["successful"]


# --- where there is no child


@once
def test_inline_runs_the_job_in_the_process_itself(spawn: Spawn) -> None:
    assert spawn.command("run_singleton", "exits_at_once", "--inline").finish() == 7


@once
def test_beside_other_threads_the_job_runs_in_the_process_itself(spawn: Spawn) -> None:
    child = spawn(
        "-c",
        """if True:
        import sys, threading, time
        threading.Thread(target=time.sleep, args=[60], daemon=True).start()
        from django.core.management import execute_from_command_line
        execute_from_command_line(["django-admin", "run_singleton", "exits_at_once"])
        """,
    )
    assert child.finish() == 7


# --- on a server


@pytest.mark.on_database("postgresql")
def test_beside_a_pool_of_connections_each_job_of_a_pass_has_its_process(spawn: Spawn) -> None:
    for _ in range(2):
        jobs.exits_at_once.enqueue()
    assert (
        spawn.command("singleton_worker", "--once", DJANGO_SETTINGS_MODULE="tests.processes.pool_settings").finish()
        == 1
    )
    assert ends("exits_at_once") == ["failed", "failed"]


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("kind", [*KINDS, "waits in the driver"])
def test_a_network_that_falls_silent_ends_the_body_before_the_next_begins(
    spawn: Spawn, proxy: Proxy, through_proxy: dict[str, str], kind: str
) -> None:
    scene = start_with_grace(spawn, kind, **through_proxy)
    proxy.black_hole()
    scene.let_next_begin()
    assert ends("stubborn") == ["abandoned"]
    assert ("cleaned up" in scene.child.output) == (REACHABLE.get(kind, connection.vendor == "postgresql"))


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize("kind", ["waits in the driver", "waits for a row"])
def test_max_runtime_ends_a_body_that_waits_in_the_driver(spawn: Spawn, kill_connections: Act, kind: str) -> None:
    Counter.objects.create(name="locked")
    with transaction.atomic():
        Counter.objects.update(value=2)
        scene = start(spawn, kind, "stubborn_for_too_long")
        assert scene.child.finish() == 1
    assert not is_alive(scene.body)
    assert ends("stubborn_for_too_long") == ["interrupted"]
    kill_connections()  # the server would work on
