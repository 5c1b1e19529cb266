"""Shell commands as registered jobs: as with `run_singleton LOCK -- COMMAND`, and side by side in a worker."""

from __future__ import annotations

import pickle
import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun
from django_singlejob.running.command import CommandFailed
from tests.app import jobs
from tests.databases import APPS
from tests.processes.workers import enqueue, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),  # nothing here depends on the database
]


def says(script: str) -> dict[str, str]:
    return {"SINGLEJOB_TEST_SHELL": script}


def ended() -> list[tuple[str, str, str]]:
    rows = JobRun.objects.exclude(status="running").order_by("pk")
    return list(rows.values_list("job_name", "status", "output"))


@pytest.mark.parametrize(
    ("script", "status", "run"),
    [
        ("echo saved; echo warned >&2", 0, ("successful", "saved\nwarned\n")),
        ("echo half; exit 3", 3, ("failed", "half\n")),
        ("kill -9 $$", 137, ("failed", "")),
        ("cat", 0, ("successful", "")),  # it has no input
    ],
)
def test_its_exit_status_and_its_output_are_the_runs(
    spawn: Spawn, script: str, status: int, run: tuple[str, str]
) -> None:
    child = spawn.command("run_singleton", "shells", **says(script))
    assert child.finish() == status
    assert ended() == [("shells", *run)]
    assert not JobLock.objects.exists()


def test_a_pass_runs_it_and_says_how_it_failed(spawn: Spawn) -> None:
    enqueue("shells")
    child = spawn.command("singleton_worker", "--once", **says("exit 3"))
    child.finish()
    assert "The command exited with status 3." in child.output
    assert ended() == [("shells", "failed", "")]


def test_in_a_worker_others_run_beside_it(spawn: Spawn, go: Path) -> None:
    enqueue("shells")
    enqueue("shells_too")
    script = f'echo "begun $$"; until [ -e {go} ]; do sleep 0.02; done; echo ended'
    child = worker(spawn, "--processes", "3", **says(script))
    eventually(lambda: child.output.count("begun") == 2)
    enqueue("quick")
    eventually(lambda: [name for name, *_ in ended()] == ["quick"])
    go.touch()
    eventually(lambda: len(ended()) == 3)
    assert {(name, status) for name, status, _ in ended()} == {
        (name, "successful") for name in ("quick", "shells", "shells_too")
    }
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert not JobLock.objects.exists()


def test_what_it_leaves_behind_holds_its_lock_in_a_worker_too(spawn: Spawn, go: Path) -> None:
    enqueue("shells")
    child = worker(spawn, **says(f"(until [ -e {go} ]; do sleep 0.02; done) & echo gone"))
    child.wait_for("processes that it started are still running")
    assert JobLock.objects.filter(name="shells").exists()
    enqueue("quick")
    eventually(lambda: [name for name, *_ in ended()] == ["quick"])
    go.touch()
    eventually(lambda: ("shells", "successful", "gone\n") in ended())
    child.send_signal(signal.SIGTERM)
    child.finish()


@pytest.mark.parametrize(
    "script", ["echo begun; exec sleep 600", "trap '' TERM; echo begun; while :; do sleep 0.1; done"]
)
def test_after_its_grace_a_worker_ends_it_whether_it_hears_the_signal_or_not(spawn: Spawn, script: str) -> None:
    enqueue("shells")
    child = worker(spawn, "--grace", "0", **says(script))
    child.wait_for("begun\n")
    child.send_signal(signal.SIGTERM)
    child.finish()
    assert JobRun.objects.get(job_name="shells").status == "interrupted"
    assert not JobLock.objects.exists()


def test_its_max_runtime_ends_it(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "shells", "--max-runtime", "0.3", **says("exec sleep 600"))
    assert child.finish() != 0
    assert JobRun.objects.get().error.startswith("JobTimeout")


def test_it_can_be_called_and_fails_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINGLEJOB_TEST_SHELL", "exit 3")
    with pytest.raises(CommandFailed, match=r"^The command exited with status 3\.$") as failure:
        jobs.shells()
    assert pickle.loads(pickle.dumps(failure.value)).status == 3
    assert JobRun.objects.get().status == "failed"


def test_its_arguments_are_shown_nowhere() -> None:
    assert "eval" not in f"{jobs.shells.description} {jobs.shells.place} {jobs.shells.signature}"


# --- a file for what runs print


def test_what_runs_print_is_appended_to_a_file(spawn: Spawn, tmp_path: Path) -> None:
    log = {"SINGLEJOB_TEST_OUTPUT_FILE": f"{tmp_path}/{{name}}.log"}
    for _ in range(2):
        spawn.command("run_singleton", "shells", "--now", **says("echo out; echo err >&2"), **log).finish()
    enqueue("quick")
    enqueue("shells")
    spawn.command("singleton_worker", "--once", **says("printf 'no end'"), **log).finish()
    assert (tmp_path / "quick.log").read_text() == "quick ran\n"
    assert (tmp_path / "shells.log").read_text() == "out\nerr\nout\nerr\nno end"


def test_it_is_opened_anew_when_it_has_been_rotated(spawn: Spawn, tmp_path: Path, go: Path) -> None:
    path = tmp_path / "shells.log"
    child = spawn.command(
        "run_singleton",
        "shells",
        **says(f"echo one; until [ -e {go} ]; do sleep 0.02; done; echo two"),
        SINGLEJOB_TEST_OUTPUT_FILE=str(path),
    )
    eventually(lambda: path.exists() and path.read_text() == "one\n")
    path.rename(tmp_path / "shells.log.1")
    go.touch()
    assert child.finish() == 0
    assert (path.read_text(), (tmp_path / "shells.log.1").read_text()) == ("two\n", "one\n")


def test_one_that_cannot_be_written_costs_a_warning_and_no_run(spawn: Spawn, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "shells.log"
    env = says("echo one; sleep 3; echo two; echo three")
    child = spawn.command("run_singleton", "shells", **env, SINGLEJOB_TEST_OUTPUT_FILE=str(missing))
    assert child.finish() == 0
    words = f"What 'shells' prints is not written to {missing} any more: No such file or directory."
    assert child.output.count(words) == 1
    assert ended() == [("shells", "successful", "one\ntwo\nthree\n")]


def test_the_traceback_of_a_failure_is_appended_too(spawn: Spawn, tmp_path: Path) -> None:
    log = {"SINGLEJOB_TEST_OUTPUT_FILE": f"{tmp_path}/{{name}}.log"}
    enqueue("fails_with_a_traceback")
    spawn.command("singleton_worker", "--once", **log).finish()
    spawn.command("run_singleton", "fails_with_a_traceback", "--now", **log).finish()
    written = (tmp_path / "fails_with_a_traceback.log").read_text()
    assert written.count("Traceback (most recent call last):") == 2
    assert written.endswith("\n")
