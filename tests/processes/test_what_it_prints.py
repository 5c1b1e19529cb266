"""What a job prints is passed on, and its last part is kept with the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun
from django_singlejob.models.locks import locks
from tests.app import jobs
from tests.children import ROOT
from tests.databases import APPS
from tests.processes.witness import children_of, is_alive
from tests.processes.workers import enqueue
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Child, Spawn

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),  # nothing here depends on the database
]
LOGGED = {"DJANGO_SETTINGS_MODULE": "tests.processes.logging_settings"}
on_each_database = pytest.mark.on_database("sqlite", "postgresql", "mysql")


def run(spawn: Spawn, *words: str, **env: str) -> Child:
    child = spawn.command("run_singleton", *words, **env)
    child.finish()
    return child


def says(spawn: Spawn, text: str, **env: str) -> Child:
    return run(spawn, "says", "--now", "--args", json.dumps([text]), **env)


def kept() -> str:
    return JobRun.objects.get().output


def test_it_is_passed_on_and_kept(spawn: Spawn) -> None:
    child = says(spawn, "one\ntwo\nno end")
    assert child.output == kept() == "one\ntwo\nno end"


def test_standard_error_is_kept_as_well_and_they_stay_apart(spawn: Spawn) -> None:
    words = ("-m", "django", "run_singleton", "says_both", "--now")
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=spawn.env, capture_output=True, text=True, check=True, stdin=-3
    )
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert sorted(kept().split()) == ["err", "out"]


def test_both_stay_in_order_if_they_are_one_file(spawn: Spawn) -> None:
    child = run(spawn, "takes_turns", "--now")
    assert child.output.split() == [str(number) for number in range(1000)]
    assert kept() == child.output


def test_what_a_job_starts_prints_too(spawn: Spawn) -> None:
    child = run(spawn, "echoes", "--now")
    assert child.output == kept() == "from a shell\n"


def test_a_management_command_is_no_exception(spawn: Spawn) -> None:
    child = run(spawn, "-m", "check")
    assert kept() == child.output
    assert "System check identified no issues" in kept()


def test_a_shell_command_is_no_exception(spawn: Spawn) -> None:
    child = run(spawn, "backup", "--", "sh", "-c", "echo saved; echo warned >&2")
    assert sorted(child.output.split()) == sorted(kept().split()) == ["saved", "warned"]


def test_what_a_shell_command_leaves_behind_prints_as_long_as_it_holds_the_lock(spawn: Spawn) -> None:
    after_the_command = "while kill -0 $$ 2> /dev/null; do sleep 0.05; done"
    child = run(spawn, "backup", "-v0", "--", "sh", "-c", f"({after_the_command}; echo late) & echo early")
    assert child.output == kept() == "early\nlate\n"


def test_a_shell_command_ends_if_nobody_reads_it(spawn: Spawn) -> None:
    words = f"{sys.executable} -m django run_singleton backup -- yes | head -n 1"
    done = subprocess.run(["sh", "-c", words], cwd=ROOT, env=spawn.env, capture_output=True, text=True, check=True)
    assert done.stdout == "y\n"
    assert not JobLock.objects.exists()


def test_a_job_goes_on_if_nobody_reads_it(spawn: Spawn) -> None:
    words = f"{sys.executable} -m django run_singleton writes_much --now | head -c 10"
    subprocess.run(["sh", "-c", words], cwd=ROOT, env=spawn.env, capture_output=True, check=True)
    assert JobRun.objects.get().status == "successful"


def test_the_last_part_is_kept(spawn: Spawn) -> None:
    says(spawn, "".join(f"{number:05}\n" for number in range(3000)))
    assert len(kept()) == 10_000
    assert kept().endswith("\n02998\n02999\n")


def test_of_a_progress_bar_only_the_last_state_is_kept(spawn: Spawn) -> None:
    bar = 'for i in $(seq 3000); do printf "\\r%s of 3000" "$i"; done; echo'
    child = spawn.command("run_singleton", "backup", "-v0", "--", "sh", "-c", f"echo first; {bar}; printf 'last\\r\\n'")
    assert child.finish() == 0
    assert kept() == "first\n3000 of 3000\nlast\\r\n"
    assert child.output_path.read_bytes().count(b"\r") == 3001


@pytest.mark.parametrize("output", ["0", "7"])
def test_how_much_is_a_setting(spawn: Spawn, output: str) -> None:
    child = says(spawn, "0123456789", SINGLEJOB_TEST_OUTPUT=output)
    assert child.output == "0123456789"
    assert kept() == "0123456789"[10 - int(output) :]


@on_each_database
def test_whatever_it_prints_can_be_stored(spawn: Spawn) -> None:
    printed = "\0 \x1b[31mred\x1b[0m \r\n\ttab \N{SNAKE} \N{RIGHT-TO-LEFT OVERRIDE} <script>alert(1)</script> \x85\n"
    child = run(spawn, "says_bytes", "--now", "--args", json.dumps([printed]))
    assert child.output_path.read_bytes() == printed.encode() + b"\xff\xfe\n"
    expected = (
        r"\x00 \x1b[31mred\x1b[0m \r" + "\n\ttab " + r"\U0001f40d \u202e <script>alert(1)</script> \x85" + "\n��\n"
    )
    assert kept() == expected
    assert JobRun.objects.get().status == "successful"


@on_each_database
def test_output_that_is_too_much_costs_no_run(spawn: Spawn) -> None:
    run(spawn, "writes_much", "--now", SINGLEJOB_TEST_OUTPUT="1000000")
    assert len(kept()) == 1_000_000
    assert JobRun.objects.get().status == "successful"
    assert not JobLock.objects.exists()


def test_a_line_is_there_before_the_next_one(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "says_then_waits", "--now")
    child.wait_for("still here\n")
    child.send_signal(signal.SIGTERM)
    child.finish()
    assert kept() == "still here\n"


def test_a_stream_that_is_closed_stays_closed(spawn: Spawn) -> None:
    command = "sh -c 'head -c 1000000 /dev/zero; echo it ends >&2'"
    words = f"exec {sys.executable} -m django run_singleton backup -- {command} >&-"
    done = subprocess.run(["sh", "-c", words], cwd=ROOT, env=spawn.env, capture_output=True, text=True, check=True)
    assert done.stderr.endswith("it ends\n")
    assert "is not kept" not in done.stderr
    assert kept() == ""


def test_the_last_words_of_a_job_that_is_killed_are_kept(spawn: Spawn) -> None:
    run(spawn, "says_and_dies", "--now")
    assert kept() == "last words\n"
    assert JobRun.objects.get().error == "JobDied: Its process was killed by SIGKILL."


def test_a_command_error_is_logged_without_a_traceback(spawn: Spawn) -> None:
    child = run(spawn, "says_and_complains", "--now", **LOGGED)
    assert "The job 'says_and_complains' failed: " in child.output
    assert "Traceback" not in child.output


@pytest.mark.parametrize("env", [{}, LOGGED])
@pytest.mark.parametrize("how", ["run_singleton", "singleton_worker"])
def test_what_this_package_logs_is_no_output_of_the_job(spawn: Spawn, env: dict[str, str], how: str) -> None:
    """In a process that the command has forked, and in a new one."""
    name = "says_and_runs_a_command"
    enqueue(name)
    arguments = (how, name, "--now") if how == "run_singleton" else (how, "--drain")
    child = spawn.command(*arguments, **env)
    child.finish()
    assert JobRun.objects.get(job_name=name).output == "looking for it\nstill lookinga record of its own\n"
    assert "progress of 'says_and_runs_a_command' was not recorded" in child.output
    if env:
        assert f"The job {name!r} failed.\nTraceback" in child.output
        assert "'--password=s3cret'" in child.output


def test_one_that_is_started_in_a_session_of_its_own_does_not_hold_up_the_end(spawn: Spawn) -> None:
    child = run(spawn, "leaves_a_daemon", "--now")
    (pid,) = map(int, re.findall(r"left (\d+)", kept()))
    try:
        assert child.returncode == 0
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_the_output_of_several_jobs_is_never_mixed(spawn: Spawn) -> None:
    child = spawn.command("singleton_worker", "--processes", "4", "--max-jobs", "4", "--interval", "0.05")
    for number in range(4):
        jobs.TALKERS[number].enqueue()
    child.finish()
    runs = JobRun.objects.filter(job_name__startswith="talks")
    assert len(runs) == 4
    for each in runs:
        assert {*re.findall(r"\w", each.output)} == {each.job_name[-1]}
    lines = [line for line in child.output.splitlines() if re.match(r"[0-3]", line)]
    assert len(lines) == 4 * 200
    assert all(re.fullmatch(r"(\d)\1{79}", line) for line in lines)


def test_a_pass_says_which_job_prints(spawn: Spawn) -> None:
    jobs.says.enqueue("first\nsecond")
    child = spawn.command("singleton_worker", "--once", "-v2")
    child.finish()
    assert child.output.startswith("==> says <==\nfirst\nsecond\n")


@pytest.mark.parametrize(("kept", "told"), [(10_000, "still here\n"), (5, "here\n")])
def test_heartbeats_tell_the_end_of_it_but_no_more_than_is_kept(spawn: Spawn, kept: int, told: str) -> None:
    child = spawn.command("run_singleton", "says_then_waits", "--now", SINGLEJOB_TEST_OUTPUT=str(kept))
    eventually(lambda: JobLock.objects.filter(progress={"output": told}).exists())
    child.send_signal(signal.SIGTERM)
    child.finish()


def test_a_job_tells_its_progress_with_its_heartbeats(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "tells_its_progress", "--now")
    eventually(lambda: JobLock.objects.filter(progress={"done": 3, "total": 8, "text": "importing"}).exists())
    child.send_signal(signal.SIGTERM)
    child.finish()


# --- nobody reads it


@contextmanager
def unread(spawn: Spawn, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose standard output nobody reads, and the pipe to read it from."""
    read, write = os.pipe()
    with (spawn.folder / "errors.txt").open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "django", *words],
            cwd=ROOT,
            env=spawn.env,
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=errors,
            start_new_session=True,
        )
    os.close(write)
    try:
        yield child, read
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        print((spawn.folder / "errors.txt").read_text())


def has_beaten(times: int = 1) -> bool:
    """Whether the lease was kept, although the job takes no time, and a heartbeat has said what it prints."""
    return any(lock.progress for lock in JobLock.objects.filter(job_name="fills_a_pipe", heartbeats__gte=times))


def read_all(read: int) -> bytes:
    with os.fdopen(os.dup(read), "rb") as stream:
        return stream.read()


def ended_as(name: str = "fills_a_pipe") -> str:
    assert not JobLock.objects.filter(name=name).exists()
    return JobRun.objects.get(job_name=name).status


FILLS = ("run_singleton", "fills_a_pipe", "--now")


def test_the_lease_is_kept_while_nobody_reads(spawn: Spawn) -> None:
    with unread(spawn, *FILLS) as (child, read):
        eventually(lambda: has_beaten(3))
        assert len(read_all(read)) == 100_000
        child.wait()
    assert ended_as() == "successful"


def test_a_signal_ends_what_nobody_reads(spawn: Spawn) -> None:
    with unread(spawn, *FILLS) as (child, _):
        eventually(has_beaten)
        child.send_signal(signal.SIGTERM)
        child.wait()
    # On a slow machine, the signal may come while the job still prints.
    assert ended_as() in ("successful", "interrupted")


def test_a_signal_ends_a_shell_command_that_nobody_reads(spawn: Spawn, go: Path) -> None:
    fill = f"until [ -e {go} ]; do sleep 0.01; done; head -c 100000 /dev/zero"
    with unread(spawn, "run_singleton", "backup", "--", "sh", "-c", fill) as (child, _):
        eventually(lambda: children_of(child))
        go.touch()
        eventually(lambda: not children_of(child))
        child.send_signal(signal.SIGTERM)
        child.wait()
    # The signal may still come before it is known that the command has left nothing behind.
    assert ended_as("backup") in ("successful", "interrupted")


def test_a_user_stops_what_nobody_reads(spawn: Spawn) -> None:
    with unread(spawn, *FILLS) as (child, _):
        eventually(has_beaten)
        eventually(lambda: not children_of(child))  # the job has ended
        lock = JobLock.objects.get()
        assert locks().stop(lock.name, lock.token, "ada")
        child.wait()
    assert ended_as() == "successful"


def test_what_nobody_reads_ends_with_the_lease(spawn: Spawn) -> None:
    with unread(spawn, *FILLS) as (child, _):
        eventually(has_beaten)
        JobLock.objects.all().delete()
        child.wait()
    assert JobRun.objects.get().error.startswith("LeaseLost")


def test_what_prints_for_ever_faster_than_it_is_read_does_not_hold_up_the_end(spawn: Spawn) -> None:
    with unread(spawn, "run_singleton", "leaves_one_that_prints", "--now") as (child, read):
        while os.read(read, 4096):
            work_for(0.001)
        assert child.wait() == 0


@pytest.mark.parametrize("redirects", [True, False])
def test_a_daemon_outlives_its_run_if_its_output_is_redirected(
    spawn: Spawn, tmp_path: Path, *, redirects: bool
) -> None:
    """Otherwise its first line after the run ends it, because nobody reads that."""
    log, go = tmp_path / "log", tmp_path / "go"
    jobs.starts_a_daemon.enqueue(str(log), redirects=redirects)
    child = spawn.command("singleton_worker", "--drain", GO=str(go))
    assert child.finish() == 0
    assert JobRun.objects.get(job_name="starts_a_daemon").status == "successful"
    daemon = int(Path(f"{log}.begun").read_text())
    assert is_alive(daemon)
    go.touch()
    eventually(lambda: not is_alive(daemon))
    assert Path(f"{log}.ended").exists() == redirects
    assert log.read_text() == ("it goes on\n" if redirects else "")
