"""The loop of a worker, pass by pass; `processes/test_worker.py` has real ones."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import singleton_job, worker
from django_singlejob.clock import DBNow
from django_singlejob.querysets import gates, locks, runs
from django_singlejob.queue import one_offs
from django_singlejob.scheduler import is_anything_due
from tests.contract.acts import HOUR, expire, fall_behind, gate, last_run, scheduled, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

INTERVAL = timedelta(seconds=0.01)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What happens in the pauses between the passes, one after the other; after the last one the worker ends."""
    acts: list[Callable[[], Any]] = []
    answers: list[bool] = []

    def pause(seconds: float) -> None:
        if acts:
            acts.pop(0)()
        else:
            answers.append(True)

    monkeypatch.setattr(worker, "_pause", pause)
    monkeypatch.setattr(worker, "is_told_to_end", lambda: bool(answers and answers.pop()))
    return acts


def ran() -> list[str]:
    """Work until there are no more pauses: the jobs that were run."""
    return [report.job.name for report in worker.work(INTERVAL) if report.outcome and not report.outcome.reason]


def test_it_runs_what_comes_due_until_it_is_told_to_end(passes: list[Any]) -> None:
    job: Any = singleton_job("mail")(lambda: None)
    night = scheduled()
    passes += [job.enqueue, lambda: fall_behind(night), job.enqueue, job.enqueue]
    assert ran() == ["mail", "nightly", "mail", "mail"]


def test_a_new_schedule_is_told_to_the_database_at_once(passes: list[Any]) -> None:
    job = scheduled()
    ran()
    assert gate().schedule == job.schedule


def test_idle_it_asks_one_question_at_a_time(passes: list[Any]) -> None:
    counts: list[int] = []

    def count() -> None:
        counts.append(len(queries))

    for _ in range(50):
        scheduled(f"job-{_}")
    passes += [count] * 5
    with CaptureQueriesContext(connection) as queries:
        ran()
    assert [after - before for before, after in pairwise(counts)] == [1] * 4


@pytest.mark.parametrize(
    "what", ["nothing", "a slot", "a one-off", "one of another queue", "a stale lock", "a live lock"]
)
def test_what_is_worth_a_closer_look(what: str) -> None:
    if what == "a slot":
        fall_behind(scheduled())
    elif "one" in what:
        queue = "another" if "another" in what else "default"
        singleton_job("mail")(lambda: None).using(queue_name=queue).enqueue()
    elif "lock" in what:
        take()
        if what == "a stale lock":
            expire()
    assert is_anything_due(["default"]) == (what in ("a slot", "a one-off", "a stale lock"))


def test_a_stale_lock_is_watched_though_it_looks_seldom(passes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    usual = worker._pause

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        usual(seconds)

    monkeypatch.setattr(worker, "_pause", pause)
    take(heartbeat_interval=timedelta(seconds=10))
    passes += [expire]
    list(worker.work(timedelta(seconds=60)))
    assert pauses[0] > 40
    assert pauses[1] < 2


def test_a_paused_job_is_not_asked_for(passes: list[Any]) -> None:
    job: Any = singleton_job("mail")(lambda: None)
    job()
    gates().update(paused=True)
    job.enqueue()
    passes += [lambda: gates().update(paused=False)]
    assert [report.outcome and report.outcome.reason for report in worker.work(INTERVAL)] == [None]


def test_it_goes_on_when_the_database_comes_back(
    passes: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def be_away(*_: Any) -> bool:
        raise OperationalError

    job: Any = singleton_job("mail")(lambda: None)
    usual = is_anything_due
    monkeypatch.setattr(worker, "is_anything_due", be_away)
    passes += [lambda: None, lambda: monkeypatch.setattr(worker, "is_anything_due", usual), job.enqueue]
    assert ran() == ["mail"]
    assert caplog.text.count("The database does not answer, which is tried again") == 2


def test_another_error_ends_it(passes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(worker, "is_anything_due", fail)
    with pytest.raises(ZeroDivisionError):
        ran()


def test_once_a_day_somebody_prunes(passes: list[Any], settings: Settings) -> None:
    settings.SINGLEJOB = {"HISTORY_DAYS": 1}
    job: Any = singleton_job("mail")(lambda: None)
    for _ in range(2):
        job()
        job.enqueue()
    one_offs().update(status="done", finished_at=DBNow())
    runs().filter(pk=last_run("mail").pk).update(started_at=DBNow() - 25 * HOUR)
    one_offs().filter(pk=one_offs().latest("pk").pk).update(finished_at=DBNow() - 25 * HOUR)
    ran()
    assert (runs().filter(job_name="mail").count(), one_offs().count()) == (1, 1)
    assert last_run("django_singlejob.prune").status == "successful"
    ran()
    assert runs().filter(job_name="django_singlejob.prune").count() == 1
    gates().update(last_started_at=DBNow() - 25 * HOUR)
    ran()
    assert runs().filter(job_name="django_singlejob.prune").count() == 2
    assert not locks().exists()
