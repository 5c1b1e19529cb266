"""Nobody reads what a command writes, or a handler of the log, or a receiver of a signal, does not return: the leases
are kept, and the command ends as it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob import singleton_job
from django_singlejob.models import JobLock, JobRun
from tests.children import ROOT
from tests.contract.acts import fall_behind, take
from tests.databases import APPS
from tests.processes.workers import enqueue
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.children import Spawn

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),  # nothing here depends on the database
]

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.processes.stalled_settings"}
WORKER = ("singleton_worker", "--interval", "0.05")
SECOND_THOUGHT = 1.2


class Pipe:
    """What a command writes to. Nobody reads it, until somebody does."""

    def __init__(self, *, is_full: bool = True) -> None:
        self.read, self.write = os.pipe()
        self._filling = 0
        if is_full:
            os.set_blocking(self.write, False)
            with suppress(BlockingIOError):
                while True:
                    self._filling += os.write(self.write, b"." * 4096)
            os.set_blocking(self.write, True)

    def text(self, pace: float = 0.0) -> str:
        """All that the command has written, once it has ended; ``pace``: seconds for each part."""
        self.let_go()
        parts = []
        with os.fdopen(os.dup(self.read), "rb") as stream:
            while part := stream.read1(65_536):
                parts.append(part)
                if pace:
                    work_for(pace)
        return b"".join(parts)[self._filling :].decode()

    def let_go(self) -> None:
        if self.write >= 0:
            os.close(self.write)
        self.write = -1

    def close(self) -> None:
        self.let_go()
        os.close(self.read)


class Started(subprocess.Popen[bytes]):
    """A command that writes to pipes."""

    out: Pipe
    err: Pipe

    def has_ended(self) -> bool:
        return self.poll() is not None

    def send_signals(self, number: int) -> None:
        """Send SIGTERM, and again after a second."""
        for _ in range(number):
            self.ends_if_it_is_told_again()

    def ends_if_it_is_told_again(self) -> bool:
        """It may have heard a signal so late that the next one counts as one with that."""
        if not self.has_ended():
            self.send_signal(signal.SIGTERM)
            work_for(SECOND_THOUGHT)
        return self.has_ended()


@pytest.fixture
def start(spawn: Spawn) -> Iterator[Callable[..., Started]]:
    """Starts a command whose output nobody reads: `is_full` says whether the pipe is full from the start."""
    all_started: list[Started] = []

    def start(*words: str, is_full: bool = True, **env: str) -> Started:
        out, err = Pipe(is_full=is_full), Pipe(is_full=is_full)
        started = Started(
            [sys.executable, "-m", "django", *words],
            cwd=ROOT,
            env=spawn.env | SETTINGS | env,
            stdin=subprocess.DEVNULL,
            stdout=out.write,
            stderr=err.write,
            start_new_session=True,
        )
        started.out, started.err = out, err
        all_started.append(started)
        return started

    yield start
    for started in all_started:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        print(started.args, "wrote:", started.out.text(), started.err.text(), sep="\n")
        started.out.close()
        started.err.close()


def fifo(folder: Path, name: str) -> Path:
    path = folder / name
    os.mkfifo(path)
    return path


def release(pipe: Path) -> None:
    """Let what waits for the pipe go on, once it does."""
    pipe.write_bytes(b"")


def is_over(pipe: Path) -> bool:
    """Whether what has waited for the pipe has gone on."""
    return Path(f"{pipe}.over").exists()


def has_run(name: str, status: str = "successful") -> Callable[[], bool]:
    return JobRun.objects.filter(job_name=name, status=status).exists


def is_kept() -> bool:
    """Whether the lease was kept for longer than its length."""
    return JobLock.objects.filter(name="is_silent_until_told", heartbeats__gte=8).exists()


def runs_jobs_and_keeps_leases(go: Path) -> None:
    """A worker does, although something has held up what it says about the first job."""
    enqueue("quick")
    eventually(has_run("quick"))
    enqueue("is_silent_until_told")
    eventually(is_kept)
    enqueue("counts_aloud", 100_000)
    eventually(has_run("counts_aloud"))
    go.touch()
    eventually(has_run("is_silent_until_told"))
    assert not JobRun.objects.exclude(status="successful").exists()


def test_a_worker_that_nobody_reads(start: Callable[..., Started], go: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = start(*WORKER, "--alive", str(alive), SINGLEJOB_TEST_OUTPUT="0")
    runs_jobs_and_keeps_leases(go)
    child.send_signal(signal.SIGTERM)
    eventually(child.has_ended)
    assert child.wait() == 0
    assert not alive.exists()


def test_what_is_lost_is_counted_and_said_later(start: Callable[..., Started], go: Path) -> None:
    child = start(*WORKER)
    runs_jobs_and_keeps_leases(go)
    enqueue("nap", 0)
    eventually(has_run("nap"))
    child.out.let_go()
    lines: list[bytes] = []
    with os.fdopen(os.dup(child.out.read), "rb") as stream:
        while not lines or b"nap: ran" not in lines[-1]:
            lines.append(stream.readline())
    text = b"".join(lines).decode().lstrip(".")
    notices = [line for line in text.splitlines() if "were not written here, because nobody read them." in line]
    counted = [int(line) for line in text.splitlines() if line.isdecimal()]
    assert counted == sorted(counted)
    assert len(counted) < 100_000  # of what others have printed since, some may be lost, too
    assert len(counted) + sum(int(notice.split()[1]) for notice in notices) in range(100_000, 100_010)


def test_a_worker_that_is_read_slowly_loses_nothing(start: Callable[..., Started]) -> None:
    enqueue("counts_aloud", 200_000)
    child = start("singleton_worker", "--drain", is_full=False)
    lines = child.out.text(pace=0.02).splitlines()
    assert [line for line in lines if line.isdecimal()] == [f"{number:09}" for number in range(200_000)]
    assert child.wait() == 0


def test_a_reader_of_run_singleton_that_is_slow_loses_nothing(start: Callable[..., Started]) -> None:
    child = start("run_singleton", "backup", "--", "seq", "300000", is_full=False)
    assert child.out.text(pace=0.02).splitlines() == [str(number) for number in range(1, 300_001)]
    assert child.wait() == 0


def test_a_handler_that_does_not_return(start: Callable[..., Started], go: Path, tmp_path: Path) -> None:
    child = start(*WORKER, is_full=False, HANDLER=str(fifo(tmp_path, "handler")))
    enqueue("gone")
    runs_jobs_and_keeps_leases(go)
    child.send_signal(signal.SIGTERM)
    eventually(child.has_ended)
    assert child.wait() == 0
    text = child.err.text()
    assert (
        text.count("The log handler tests.processes.stalled_settings.SlowHandler has not returned for 1 seconds") == 1
    )
    assert "'gone'" in text  # the other handler has written it


def test_a_receiver_that_does_not_return(start: Callable[..., Started], go: Path, tmp_path: Path) -> None:
    pipe = fifo(tmp_path, "receiver")
    child = start(*WORKER, is_full=False, RECEIVER=str(pipe))
    runs_jobs_and_keeps_leases(go)
    child.send_signal(signal.SIGTERM)
    release(pipe)
    assert child.wait() == 0
    assert is_over(pipe)
    assert "A receiver has not returned: tests.processes.stalled_settings." in child.err.text()


@pytest.mark.parametrize("words", [("run_singleton", "quick", "--now"), ("singleton_worker", "--once")])
def test_the_end_waits_for_a_receiver(start: Callable[..., Started], tmp_path: Path, words: tuple[str, ...]) -> None:
    pipe = fifo(tmp_path, "receiver")
    enqueue("quick")
    child = start(*words, is_full=False, RECEIVER=str(pipe))
    eventually(has_run("quick"))
    release(pipe)
    assert child.wait() == 0
    assert is_over(pipe)


def test_a_receiver_that_ends_its_thread_ends_nothing_else(spawn: Spawn) -> None:
    code = """
        from django.core.management import execute_from_command_line
        from django_singlejob.signals import job_finished, job_started

        def leave(**kwargs):
            raise SystemExit(3)

        job_started.connect(leave)
        job_finished.connect(lambda **kwargs: print("it is heard of", flush=True), weak=False)
        execute_from_command_line(["manage.py", "run_singleton", "quick", "--now"])
    """
    child = spawn.code(code, "run_singleton")
    assert child.finish() == 0
    assert "SystemExit: 3" in child.output
    assert "it is heard of" in child.output


@pytest.mark.parametrize("wrapped", [{}, {"SENTRY": "yes"}], ids=["plain", "wrapped by Sentry"])
def test_a_second_signal_does_not_wait_for_a_receiver(
    start: Callable[..., Started], tmp_path: Path, wrapped: dict[str, str]
) -> None:
    alive = tmp_path / "alive"
    enqueue("quick")
    child = start(*WORKER, "--alive", str(alive), is_full=False, RECEIVER=str(fifo(tmp_path, "receiver")), **wrapped)
    eventually(has_run("quick"))
    child.send_signals(2)
    eventually(child.ends_if_it_is_told_again)
    assert child.wait() == 128 + signal.SIGTERM
    text = child.err.text()
    assert "After a second signal, tests.processes.stalled_settings." in text
    assert "a database call" not in text
    assert not alive.exists()


#: How a command may end, with its exit status. The first ones print nothing but what the command itself says.
ENDINGS = {
    "successful": ("run_singleton is_silent_until_told --now -v 2", 0),
    "a shell command": ("run_singleton backup -v 2 -- false", 1),
    "skipped": ("run_singleton nightly -E 4 -v 2 -- true", 4),
    "logged after the watch has ended": ("run_singleton is_missed -v 2", 0),
    "an unexpected error": ("singleton_worker --once", 1),
    "failed": ("run_singleton fails_with_a_traceback --now", 1),
    "failed, with a traceback": ("run_singleton fails_with_a_traceback --now --traceback", 1),
    "died": ("run_singleton says_and_dies --now", 1),
    "released": ("run_singleton releases_its_lock --now", 0),
}
SILENT = list(ENDINGS)[:5]


def start_to_end(start: Callable[..., Started], ending: str, go: Path) -> Started:
    take("nightly")
    fall_behind(singleton_job("is_missed", schedule="@yearly")(lambda: None), 3)
    go.touch()
    env = {"FAULT": "yes"} if ending == "an unexpected error" else {}
    return start(*ENDINGS[ending][0].split(), **env)


@pytest.mark.parametrize("ending", SILENT)
@pytest.mark.usefixtures("fresh_process")
def test_a_command_ends_whatever_it_has_to_say(start: Callable[..., Started], go: Path, ending: str) -> None:
    child = start_to_end(start, ending, go)
    eventually(child.has_ended)
    assert child.wait() == ENDINGS[ending][1]


@pytest.mark.parametrize(("ending", "signals"), [*((each, 1) for each in list(ENDINGS)[5:]), ("successful", 3)])
@pytest.mark.usefixtures("fresh_process")
def test_a_command_ends_after_a_signal(start: Callable[..., Started], go: Path, ending: str, signals: int) -> None:
    child = start_to_end(start, ending, go)
    work_for(2 * SECOND_THOUGHT)  # by then, it waits for its reader, if it does
    child.send_signals(signals)
    eventually(child.has_ended)
    assert child.wait() in {ENDINGS[ending][1], 128 + signal.SIGTERM, -signal.SIGTERM}
    assert not JobLock.objects.exclude(name="nightly").exists()


def test_one_that_has_not_begun_ends_after_a_signal(start: Callable[..., Started]) -> None:
    child = start("run_singleton", "no_such_job")
    child.send_signals(1)
    eventually(child.has_ended)
