"""A project that has what real ones have, all at once: threads that start at import, `atexit` hooks, open sessions,
files and ports, queued logs, memory. What a command runs, it runs in a new process of that project, which has its own.

`project.py` says what the project does when it is loaded, `work.py` and `jobs.py` what its runs do.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.databases import APPS
from tests.life.conftest import SECRET
from tests.life.notes import lines, read
from tests.processes.witness import ends, is_alive
from tests.processes.workers import end, enqueue, one_off
from tests.waiting import eventually, in_the_end

if TYPE_CHECKING:
    from tests.children import Child
    from tests.life.conftest import Life

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

TIDY = [
    *("reads_credential", "writes_scratch", "uses_session", "writes_global_file"),
    *("rolls_dice", "is_traced", "logs_lines", "counts"),
]
UNTIDY = ["leaves_a_hook", "leaves_a_thread", "leaves_a_file_open"]
JOBS = TIDY + UNTIDY
#: Each has some of either kind. Processes of the project begin slowly: all jobs at once would take a minute.
HALVES = {"one half": JOBS[::2], "the other half": JOBS[1::2]}
#: What leaves its process as the next run must not find it.
RUDE = ["disables_logging", "changes_the_directory", "closes_what_is_not_its_own"]
STUBBORN = ["hangs", "swallows_everything", "in_c"]
MODES = ["all day", "--drain", "--once"]


def enqueue_task(name: str) -> None:
    row = one_off("tasks.noted")
    row.task_path = f"tests.life.tasks.{name}"
    row.save()


def nothing_is_left() -> bool:
    return not OneOffJob.objects.filter(status__in=["waiting", "in_progress"]).exists()


def is_over(job: str) -> bool:
    """Whether a run is recorded, and the lock is free."""
    return bool(ends(job)) and not JobLock.objects.filter(name=job).exists()


def is_kept_alive(job: str) -> bool:
    """Whether heartbeats go on. Returns early if nobody has the lock any more."""
    begun_at = heartbeats(job)
    eventually(lambda: heartbeats(job) > begun_at + 1 or not JobLock.objects.filter(name=job).exists())
    return JobLock.objects.filter(name=job).exists()


def heartbeats(job: str) -> int:
    return sum(JobLock.objects.filter(name=job).values_list("heartbeats", flat=True))


def wait_for_note(life: Life, child: Child, about: str) -> None:
    eventually(lambda: life.notes(about) or child.poll() is not None)
    assert child.poll() is None, child.output


def work_through(life: Life, mode: str, **env: str) -> Child:
    """Have a worker do all that is due, and end."""
    if mode != "all day":
        child = life.worker(mode, **env)
        in_the_end(lambda: child.poll() is not None, JobRun.objects.count)
        assert child.finish() == 0, child.output
        return child
    child = life.worker("--interval", "0.05", "--processes", "3", **env)
    in_the_end(nothing_is_left, JobRun.objects.count)
    assert pid_file(life) == str(child.pid)
    end(child)
    return child


def pid_file(life: Life) -> str:
    """What the pid file says; empty if there is none."""
    path = life.folder / "pid"
    return path.read_text() if path.exists() else ""


def has_said_nothing_odd(child: Child) -> bool:
    odd = ["Traceback", "this process", "arning", "Exception ignored"]
    return not any(words in child.output for words in odd)


def results(name: str) -> list[object]:
    """What the rows of the job, or of the task, have kept."""
    rows = OneOffJob.objects.filter(job_name=name) | OneOffJob.objects.filter(task_path=f"tests.life.tasks.{name}")
    assert {*rows.values_list("status", "error")} <= {("done", "")}
    return [*rows.values_list("result", flat=True)]


# --- what all must be true of, whatever has run them


def all_ran(life: Life, *names: str, times: int = 2) -> None:
    assert {name: len(life.values(name)) for name in names} == dict.fromkeys(names, times)
    assert life.ran_in_executors(*names), life.notes("loaded")
    assert not JobLock.objects.exists()
    assert lines(life.folder / "warnings.log") == []


def all_is_as_it_should_be(life: Life) -> None:
    """Each run had what it needs, and nothing of it is lost or there twice."""
    assert {*life.values("reads_credential"), *life.values("writes_scratch")} <= {SECRET}
    rolled = [number for numbers in life.values("rolls_dice") for number in numbers]
    assert len(rolled) == len({*rolled})
    assert sorted(lines(life.folder / "spans")) == sorted(life.values("is_traced"))
    logged = sorted(f"{run} {number}" for run in life.values("logs_lines") for number in range(50))
    assert sorted(lines(life.folder / "direct.log")) == sorted(lines(life.folder / "queued.log")) == logged
    each_process_counted_its_own(life)
    what_runs_left_has_ended(life)
    each_process_has_tidied_up(life)


def each_process_counted_its_own(life: Life) -> None:
    numbers: dict[int, list[int]] = {}
    for note in life.notes("counts"):
        numbers.setdefault(note.pid, []).append(note.value)
    assert all(sorted(found) == [*range(1, len(found) + 1)] for found in numbers.values()), numbers


def what_runs_left_has_ended(life: Life) -> None:
    for job in "leaves_a_hook", "leaves_a_thread":
        assert sorted(life.values(f"what {job} has ended")) == sorted(life.values(job))
    for run in life.values("leaves_a_file_open"):
        assert (life.folder / f"left-{run}").read_text() == "all of it"


def each_process_has_tidied_up(life: Life) -> None:
    """Its hooks have run once, and what it still had to write is written."""
    if (life.folder / "journal").exists():
        processes = [f"opened by {note.process}" for note in life.notes("loaded")]
        assert sorted(lines(life.folder / "journal")) == sorted(processes + life.values("writes_global_file"))
    left = [path.name for path in life.folder.iterdir()]
    assert not [name for name in left if name.startswith(("credential", "scratch", "pid"))]


# --- a worker's jobs


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize(
    ("mode", "threads"),
    [*((mode, "yes") for mode in MODES), ("--drain", "no")],
    ids=[*MODES, "--drain without threads"],
)
def test_a_worker_runs_each_job_in_a_new_process_of_the_project(
    life: Life, mode: str, threads: str, half: list[str]
) -> None:
    life.go.touch()
    for job in half * 2:
        enqueue(job)
    # A file that the project keeps open gives each run a process of its own.
    journal = "yes" if mode == "--drain" and threads == "yes" else "no"
    child = work_through(life, mode, LIFE_THREADS=threads, LIFE_JOURNAL=journal)
    assert {job: ends(job) for job in half} == dict.fromkeys(half, ["successful"] * 2)
    for job in half:
        assert sorted(map(repr, results(job))) == sorted(map(repr, life.values(job)))
    all_ran(life, *half)
    all_is_as_it_should_be(life)
    assert {pid for pid, _ in life.loaded(by_executors=False)} == {child.pid}
    assert has_said_nothing_odd(child), child.output
    assert mode == "--once" or " processes and 4 threads, all queues" in child.output


def test_a_run_that_leaves_nothing_behind_keeps_its_process_for_the_next(life: Life) -> None:
    for _ in range(5):
        enqueue("counts")
    work_through(life, "--once", LIFE_JOURNAL="no")
    assert life.values("counts") == [1, 2, 3, 4, 5]
    assert life.ran_in_executors("counts")


@pytest.mark.parametrize("job", UNTIDY + RUDE)
def test_after_one_that_leaves_something_the_next_gets_a_new_process(life: Life, job: str) -> None:
    life.go.touch()
    for name in "counts", job, "counts", job, "counts":
        enqueue(name)
    work_through(life, "--once", LIFE_JOURNAL="no")
    assert ends(job) == ["successful"] * 2
    assert life.ran_in_executors(job, "counts")
    last = {note.pid: note.about for note in read(life.folder) if note.about in (job, "counts")}
    assert [*last.values()].count(job) == 2, "Something ran in its process after it."
    each_process_counted_its_own(life)
    what_runs_left_has_ended(life)


def test_a_run_is_over_only_when_what_it_leaves_has_ended(life: Life) -> None:
    job = "leaves_a_hook"
    enqueue(job)
    child = life.endless_worker()
    eventually(lambda: life.notes(f"what {job} goes on") or is_over(job))
    assert is_kept_alive(job)
    life.go.touch()
    eventually(partial(is_over, job))
    what_runs_left_has_ended(life)
    assert life.values(job) == life.values(f"what {job} has ended") == results(job)
    end(child)


def test_nor_before_what_it_has_not_written_yet_is_on_disk(life: Life) -> None:
    enqueue("leaves_a_file_open")
    child = life.endless_worker()
    eventually(partial(is_over, "leaves_a_file_open"))
    (run,) = life.values("leaves_a_file_open")
    assert (life.folder / f"left-{run}").read_text() == "all of it"
    assert life.ran_in_executors("leaves_a_file_open")
    end(child)


@pytest.mark.parametrize("job", STUBBORN)
def test_max_runtime_ends_whatever_a_job_does_and_its_neighbour_goes_on(life: Life, job: str) -> None:
    enqueue("waits")
    for _ in range(2):
        enqueue(job)
    child = life.endless_worker()
    wait_for_note(life, child, "waits")
    eventually(lambda: not OneOffJob.objects.filter(job_name=job, finished_at=None).exists())
    assert ends(job) == ["interrupted"] * 2
    assert all("JobTimeout" in error for error in JobRun.objects.filter(job_name=job).values_list("error", flat=True))
    assert {*OneOffJob.objects.filter(job_name=job).values_list("status", "attempt")} == {("failed", 1)}
    assert len(life.notes(job)) == 2
    # What an exception has ended may leave its process to the next run.
    assert job == "hangs" or not any(is_alive(note.pid) for note in life.notes(job))
    assert life.ran_in_executors(job, "waits")
    life.go.touch()
    eventually(nothing_is_left)
    assert results("waits") == ["told"]
    end(child)


def test_within_the_grace_a_run_may_finish_even_if_each_process_gets_the_signal(life: Life) -> None:
    """As it does from systemd."""
    enqueue("waits")
    child = life.endless_worker("--grace", "60")
    wait_for_note(life, child, "waits")
    for process in {child.pid} | {note.pid for note in life.notes("loaded")}:
        with suppress(ProcessLookupError):  # that of pruning may have ended
            os.kill(process, signal.SIGTERM)
    assert is_kept_alive("waits")
    life.go.touch()
    assert child.finish() == 0
    assert results("waits") == ["told"]
    assert ends("waits") == ["successful"]
    assert life.ran_in_executors("waits")
    each_process_has_tidied_up(life)


# --- run_singleton


@pytest.mark.parametrize("job", JOBS)
def test_run_singleton_runs_it_in_a_new_process_of_the_project(life: Life, job: str) -> None:
    life.go.touch()
    for _ in range(2):
        child = life.run_singleton(job)
        assert child.finish() == 0
        assert has_said_nothing_odd(child), child.output
    assert ends(job) == ["successful"] * 2
    all_ran(life, job)
    all_is_as_it_should_be(life)


def test_a_signal_to_run_singleton_interrupts_its_run(life: Life) -> None:
    child = life.run_singleton("waits")
    wait_for_note(life, child, "waits")
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 128 + signal.SIGTERM
    assert ends("waits") == ["interrupted"]
    assert life.ran_in_executors("waits")
    each_process_has_tidied_up(life)


# --- tasks


@pytest.mark.parametrize("mode", MODES)
def test_tasks_run_in_a_new_process_of_the_project(life: Life, mode: str) -> None:
    for task in TIDY * 2:
        enqueue_task(task)
    child = work_through(life, mode)
    for task in TIDY:
        assert sorted(map(repr, results(task))) == sorted(map(repr, life.values(task)))
    all_ran(life, *TIDY)
    all_is_as_it_should_be(life)
    assert has_said_nothing_odd(child), child.output
