"""`singleton_worker --alive FILE`, as a probe sees it: real workers, and the probe of the page on deployments."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock
from django_singlejob.process.alive import EVERY
from django_singlejob.running.watch import LAST_WORDS, LONGEST_CALL
from tests.databases import APPS
from tests.processes.workers import SETTINGS, all_are_done, end, enqueue, worker
from tests.recipes.test_deploy_files import PROBE, WINDOW
from tests.waiting import a_moment, eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.children import Child, Spawn
    from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


class Probed:
    """A file that a worker touches."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def passes(self) -> bool:
        """Whether the probe finds that the worker is alive."""
        probe = PROBE.replace("FILE", str(self.path))
        return subprocess.run(["sh", "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode == 0

    def age(self, seconds: float) -> None:
        """Have the last touch be that much longer ago."""
        last = self.path.stat().st_mtime - seconds
        os.utime(self.path, (last, last))


@pytest.fixture
def probed(tmp_path: Path) -> Probed:
    return Probed(tmp_path / "alive")


def alive_worker(spawn: Spawn, probed: Probed, *options: str, **env: str) -> Child:
    child = worker(spawn, "--alive", str(probed.path), *options, **env)
    eventually(lambda: probed.passes)
    return child


def is_touched_again(probed: Probed) -> None:
    probed.age(WINDOW)
    eventually(lambda: probed.passes)


def test_the_window_is_longer_than_a_worker_may_hang_until_it_ends_itself() -> None:
    assert WINDOW > EVERY + LONGEST_CALL + LAST_WORDS


def test_the_file_is_there_from_the_start_to_the_end(spawn: Spawn, probed: Probed) -> None:
    assert not probed.passes
    child = alive_worker(spawn, probed)
    is_touched_again(probed)
    end(child)
    assert not probed.path.exists()
    assert not probed.passes


def test_a_worker_that_is_stopped_fails_the_probe(spawn: Spawn, probed: Probed) -> None:
    child = alive_worker(spawn, probed)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    probed.age(WINDOW)
    a_moment()
    assert not probed.passes
    child.send_signal(signal.SIGCONT)
    eventually(lambda: probed.passes)
    end(child)


@pytest.mark.parametrize("options", [[], ["--drain"], ["--once"]], ids=["all day", "drain", "once"])
def test_a_long_job_does_not(spawn: Spawn, probed: Probed, go: Path, options: list[str]) -> None:
    enqueue("tells")
    interval = [] if options else ["--interval", "600"]  # however rarely it looks
    child = spawn_worker(spawn, probed, *options, *interval)
    eventually(JobLock.objects.filter(job_name="tells").exists)
    is_touched_again(probed)
    go.touch()
    eventually(all_are_done)
    if not options:
        child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert not probed.path.exists()


def spawn_worker(spawn: Spawn, probed: Probed, *options: str) -> Child:
    """A worker with no options but these."""
    return spawn.command("singleton_worker", "--alive", str(probed.path), *options, **SETTINGS)


def test_nor_do_runs_that_have_a_grace(spawn: Spawn, probed: Probed, go: Path) -> None:
    enqueue("tells")
    child = alive_worker(spawn, probed, "--grace", "600")
    child.wait_for("started")
    child.send_signal(signal.SIGTERM)
    is_touched_again(probed)
    go.touch()
    assert child.finish() == 0


def test_nor_does_a_worker_that_is_not_enabled(spawn: Spawn, probed: Probed) -> None:
    child = alive_worker(spawn, probed, "--interval", "600", SINGLEJOB_TEST_ENABLED="False")
    is_touched_again(probed)
    end(child)


@pytest.mark.on_database("postgresql", "mysql")
def test_nor_does_an_outage_of_the_database(spawn: Spawn, probed: Probed, proxy: Proxy, database_url: str) -> None:
    child = alive_worker(spawn, probed, DATABASE_URL=proxy.url(database_url))
    proxy.go_down()
    child.wait_for("The worker retries until it does")
    is_touched_again(probed)
    is_touched_again(probed)
    proxy.come_back()
    is_touched_again(probed)
    end(child)


@pytest.mark.on_database("postgresql", "mysql")
def test_nor_does_a_call_that_hangs_for_as_long_as_a_worker_lets_it(
    spawn: Spawn, probed: Probed, proxy: Proxy, database_url: str
) -> None:
    child = alive_worker(spawn, probed, DATABASE_URL=proxy.url(database_url))
    proxy.fall_silent_at(b"django_singlejob_jobstatus")
    assert proxy.fell_silent.wait(30)
    probed.age(LONGEST_CALL)
    a_moment()
    assert probed.passes
    assert child.poll() is None
    proxy.come_back()
    is_touched_again(probed)
    end(child)


def test_what_somebody_has_written_to_it_meanwhile_is_not_deleted(spawn: Spawn, probed: Probed) -> None:
    child = alive_worker(spawn, probed)
    probed.path.write_text("It is precious.")
    is_touched_again(probed)
    end(child)
    assert probed.path.read_text() == "It is precious."


# --- files that cannot be written


def is_a_folder(path: Path) -> None:
    path.mkdir()


def is_in_no_folder(path: Path) -> None:
    path.parent.rmdir()


def has_contents(path: Path) -> None:
    path.write_text("It is precious.")


def is_a_pipe(path: Path) -> None:
    os.mkfifo(path)


def is_a_link(path: Path) -> None:
    path.symlink_to(path.parent / "precious")


@pytest.mark.parametrize(
    ("be_refused", "why"),
    [
        (is_a_link, "it is not an empty file, and would be deleted"),
        (is_a_folder, "it is not an empty file, and would be deleted"),
        (is_a_pipe, "it is not an empty file, and would be deleted"),
        (has_contents, "it is not an empty file, and would be deleted"),
        (is_in_no_folder, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_at_the_start(
    spawn: Spawn, tmp_path: Path, be_refused: Callable[[Path], None], why: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "alive"
    be_refused(path)
    existed = path.exists()
    child = worker(spawn, "--alive", str(path))
    assert child.finish() == 2
    assert child.output == f"CommandError: The file of --alive, '{path}', cannot be written: {why}. Name another one.\n"
    assert path.exists() is existed


def test_so_is_one_whose_jobs_would_hold_up_the_worker(spawn: Spawn, probed: Probed) -> None:
    child = worker(spawn, "--alive", str(probed.path), "--inline")
    assert child.finish() == 2
    assert "--alive needs jobs to run in processes of their own" in child.output
    assert not probed.path.exists()


def test_what_a_killed_worker_has_left_is_used_again(spawn: Spawn, probed: Probed) -> None:
    alive_worker(spawn, probed).kill_all()
    probed.age(WINDOW)
    assert not probed.passes
    end(alive_worker(spawn, probed))


def test_a_file_that_is_deleted_comes_back(spawn: Spawn, probed: Probed) -> None:
    child = alive_worker(spawn, probed)
    probed.path.unlink()
    eventually(lambda: probed.passes)
    end(child)


def test_a_file_that_cannot_be_touched_later_is_told_once_and_changes_nothing(
    spawn: Spawn, tmp_path: Path, go: Path
) -> None:
    folder, moved = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    probed = Probed(folder / "alive")
    child = alive_worker(spawn, probed)
    folder.rename(moved)
    child.wait_for("cannot be touched")
    enqueue("tells")
    go.touch()
    eventually(all_are_done)
    work_for(2 * EVERY)
    moved.rename(folder)
    is_touched_again(probed)
    end(child)
    assert child.output.count("cannot be touched") == 1
