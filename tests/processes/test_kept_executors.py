"""An executor carries out one run after the other. What is left of one does not reach the next."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock, OneOffJob
from tests.app.models import Counter
from tests.databases import APPS
from tests.processes.witness import ends
from tests.processes.workers import SETTINGS, all_are_done, end, enqueue
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),
]


def work_through(spawn: Spawn, code: str, *jobs: str) -> Child:
    """Have one process after the other carry out one-offs of these jobs, which the code defines."""
    for job in jobs:
        enqueue(job)
    child = spawn.code(code, "singleton_worker", "--once", **SETTINGS)
    assert child.finish() == 0, child.output
    assert not OneOffJob.objects.exclude(status="done").exists()
    return child


# --- a lease that somebody keeps

KEEPS = """
    import os, sys
    from datetime import timedelta
    from django.core.management import execute_from_command_line
    from django_singlejob import LeaseLost, current_run, singleton_job
    from django_singlejob.models import JobLock
    from tests.app.models import Counter

    kept = []

    def write_under(lease):
        with lease.atomic():
            Counter.objects.create(name="by the first run")

    ACTS = [lambda lease: lease.check(), lambda lease: lease.renew(), write_under, lambda lease: lease.release()]

    def answer(act, lease):
        try:
            return repr(act(lease))
        except LeaseLost:
            return "LeaseLost"

    def keeps():
        mine = current_run().lease
        kept.append(mine)
        before = JobLock.objects.values().get(name=mine.name)
        answers = [answer(act, kept[0]) for act in ACTS] if len(kept) > 1 else []
        is_mine = JobLock.objects.values().get(name=mine.name) == before
        mine.check()
        mine.renew()
        return [os.getpid(), *answers, kept[0].lost, is_mine]

    # A heartbeat a minute: none of this run changes the row meanwhile.
    for name in "first", "second":
        singleton_job(name, lease=timedelta(hours=1))(keeps)
    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


def test_the_lease_of_an_earlier_run_is_lost_and_touches_nothing_of_a_later_one(spawn: Spawn) -> None:
    work_through(spawn, KEEPS, "first", "second")
    earlier, later = OneOffJob.objects.order_by("pk").values_list("result", flat=True)
    assert earlier
    process = earlier[0]
    assert earlier == [process, False, True]
    assert later == [process, "LeaseLost", "LeaseLost", "LeaseLost", "False", True, True]
    assert not Counter.objects.filter(name="by the first run").exists()
    assert not JobLock.objects.exists()


# --- one that dies while it waits

SAYS_ITS_PROCESS = """
    import os, sys
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job

    @singleton_job
    def says_its_process():
        return os.getpid()

    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


def test_one_that_dies_before_it_has_heard_its_order_costs_no_run(spawn: Spawn) -> None:
    """Another one begins the run at once. It is not given back, to wait for a better time."""
    enqueue("says_its_process")
    child = spawn.code(SAYS_ITS_PROCESS, "singleton_worker", "--interval", "0.05", "--processes", "1", **SETTINGS)
    eventually(all_are_done)
    first = OneOffJob.objects.get().result
    assert isinstance(first, int)
    os.kill(first, signal.SIGSTOP)
    enqueue("says_its_process")
    eventually(JobLock.objects.filter(name="says_its_process", heartbeats__gt=0).exists)
    os.kill(first, signal.SIGKILL)
    eventually(all_are_done)
    end(child)
    assert OneOffJob.objects.order_by("-pk")[0].result != first
    assert "has not begun" not in child.output
    assert ends("says_its_process") == ["successful"] * 2


# --- a signal that comes late

ENDS_IN_TIME = """
    import os, sys, threading
    from datetime import timedelta
    from django.core.management import execute_from_command_line
    from django_singlejob import singleton_job
    from tests.waiting import work_for

    @singleton_job(max_runtime=timedelta(seconds=0.2))
    def ends_in_time():
        work_for(0.17)
        # Until it ends, the process finds out whether it can have another run.
        threading.Thread(target=work_for, args=[0.04]).start()

    @singleton_job
    def after_it():
        work_for(0.1)

    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


def test_the_end_of_a_max_runtime_that_comes_after_the_body_interrupts_no_later_run(spawn: Spawn) -> None:
    for job in ["ends_in_time", "after_it"] * 2:
        enqueue(job)
    child = spawn.code(ENDS_IN_TIME, "singleton_worker", "--once", **SETTINGS)
    assert child.finish() in (0, 1)  # some may have had too little time
    assert ends("after_it") == ["successful"] * 2
    assert {*OneOffJob.objects.filter(job_name="after_it").values_list("status", "attempt")} == {("done", 1)}


# --- a body that closes what is not its own


# --- what keeps a file open, but buffers nothing

COUNTS = """
    import os, sys
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.environ["METRICS"]
    from django.core.management import execute_from_command_line
    from prometheus_client import Counter
    from django_singlejob import singleton_job

    orders = Counter("orders", "How many have come in.")

    @singleton_job
    def counts():
        orders.inc()
        return os.getpid()

    execute_from_command_line(["manage.py", *sys.argv[1:]])
    """


def test_metrics_that_several_processes_count_keep_an_executor(spawn: Spawn, tmp_path: Path) -> None:
    """Their files are open for writing, but are written to through shared memory."""
    for _ in range(2):
        enqueue("counts")
    child = spawn.code(COUNTS, "singleton_worker", "--once", METRICS=str(tmp_path), **SETTINGS)
    assert child.finish() == 0, child.output
    first, second = OneOffJob.objects.values_list("result", flat=True)
    assert first == second
