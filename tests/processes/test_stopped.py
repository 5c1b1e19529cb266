"""`manage.py singleton_stop` beside a worker or a shell command: what it stops ends, and the rest goes on."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.databases import APPS
from tests.processes.witness import ends, is_alive
from tests.processes.workers import enqueue, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def stop(spawn: Spawn, *words: str) -> str:
    child = spawn.command("singleton_stop", *words)
    assert child.finish() == 0, child.output
    return child.output


def one_off_of(name: str) -> OneOffJob:
    return OneOffJob.objects.get(job_name=name)


def test_a_worker_goes_on_whatever_the_job_does_that_is_stopped(spawn: Spawn) -> None:
    enqueue("stubborn", "swallows every exception")
    child = worker(spawn, "--processes", "1")
    child.wait_for(" of ")
    enqueue("quick")
    found = re.search(r"started (\d+) of", child.output)
    assert found
    stop(spawn, "stubborn")
    eventually(lambda: one_off_of("quick").status == "done")
    assert not is_alive(int(found[1]))
    row, run = one_off_of("stubborn"), JobRun.objects.get(job_name="stubborn")
    assert (row.status, row.attempt, run.status) == ("failed", 1, "interrupted")
    assert row.error == run.error
    assert re.fullmatch(r"JobStopped: The run was stopped by .+\.", row.error)
    assert "The run of 'stubborn' has to end: it was stopped by " in child.output
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0
    assert OneOffJob.objects.filter(status="waiting").count() == 0


def test_a_task_that_asks_ends_and_the_others_beside_it_go_on(spawn: Spawn) -> None:
    enqueue("tasks.asks")
    enqueue("tasks.asks")
    child = worker(spawn, "--threads", "2")
    eventually(lambda: child.output.count("started") == 2)
    first, second = OneOffJob.objects.order_by("pk")
    assert "it ends as soon as it asks" in stop(spawn, "--one-off", str(first.pk))
    eventually(lambda: OneOffJob.objects.get(pk=first.pk).status == "failed")
    second.refresh_from_db()
    assert (second.status, second.stopped_by) == ("in_progress", "")
    stop(spawn, "--one-off", str(second.pk))
    eventually(lambda: OneOffJob.objects.get(pk=second.pk).status == "failed")
    for row in OneOffJob.objects.all():
        assert (row.attempt, row.error) == (1, f"JobStopped: The run was stopped by {row.stopped_by}.")
    enqueue("tasks.nothing", 1)
    eventually(lambda: OneOffJob.objects.filter(status="done").exists())
    child.send_signal(signal.SIGTERM)
    assert child.finish() == 0


def test_a_shell_command_is_stopped_with_its_descendants(spawn: Spawn) -> None:
    script = "sleep 300 & echo rest is $!; echo command is $$; sleep 300; wait"
    child = spawn.command("run_singleton", "nightly", "--lease", "6", "--", "sh", "-c", script)
    child.wait_for("command is")
    pids = [int(number) for number in re.findall(r" is (\d+)", child.output)]
    assert len(pids) == 2
    stop(spawn, "nightly")
    assert child.finish() == 1, child.output
    assert not any(map(is_alive, pids))
    assert ends("nightly") == ["interrupted"]
    assert not JobLock.objects.exists()


def test_a_run_of_another_server_is_told_by_the_command_line_who_did_it(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "until_told", "--now")
    child.wait_for("started")
    stop(spawn, "until_told", "--token", str(JobLock.objects.get().token))
    assert child.finish() == 1
    assert re.search(r"until_told: interrupted, JobStopped: The run was stopped by .+", child.output), child.output
