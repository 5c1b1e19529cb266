"""With very many jobs and locks: only the worst are read, and what is bad is not hidden."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from django_singlejob import singleton_job
from django_singlejob.admin.job_lines import Wanted, states
from django_singlejob.admin.overview import headline
from django_singlejob.models import JobStatus
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.monitoring import health
from django_singlejob.monitoring.health import Level, State, survey
from django_singlejob.monitoring.verdict import Scope, Verdict, judge
from django_singlejob.process.clock import DBNow, utc_now
from tests.contract.acts import HOUR, MINUTE

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

pytest_plugins = ["tests.fixtures"]
pytestmark = [pytest.mark.usefixtures("fresh_process", "a_low_limit"), pytest.mark.django_db]

MOST = 5
MANY = 20


@pytest.fixture
def a_low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST", MOST)


def job(name: str, **columns: Any) -> None:
    gates().create(name=name, **{"last_started_at": DBNow() - MINUTE, "run_count": 9} | columns)


def hold(name: str, *, job_name: str = "", silent: bool = False, **columns: Any) -> None:
    facts = {"token": uuid4(), "hostname": "web-1", "pid": 1, "sent_at": utc_now()}
    times = {"acquired_at": DBNow() - MINUTE, "heartbeat_at": DBNow(), "expires_at": DBNow() + MINUTE}
    if silent:
        times |= {"heartbeat_at": DBNow() - HOUR, "expires_at": DBNow() - MINUTE}
    locks().create(name=name, job_name=job_name, **facts | times | columns)


def fine_jobs_and_locks() -> None:
    gates().bulk_create(JobStatus(name=f"a-{n:02}", last_started_at=DBNow() - MINUTE) for n in range(MANY))
    gates().bulk_create(JobStatus(name=f"b-{n:02}", fence=1) for n in range(MANY))
    for number in range(MANY):
        hold(f"b-{number:02}")


def found(verdict: Verdict) -> set[tuple[str, str]]:
    return {(str(finding.kind.value), finding.subject) for finding in verdict.findings}


def test_what_is_bad_is_not_hidden() -> None:
    fine_jobs_and_locks()
    singleton_job("z-unseen", schedule="30 2 * * *")(print)
    singleton_job("z-seen", schedule="30 2 * * *")(print)
    job("z-seen", schedule="30 2 * * *", time_zone="UTC", next_slot=DBNow() + MINUTE)
    job("z-failing", consecutive_failures=2)
    job("z-overdue", next_slot=DBNow() - HOUR)
    job("z-overrunning", mean_duration=timedelta(seconds=1))
    hold("z-lock", job_name="z-overrunning", acquired_at=DBNow() - HOUR)
    hold("z-stale", silent=True)
    hold("z-impossible", heartbeat_at=DBNow() + HOUR)
    verdict = judge()
    assert found(verdict) == {
        ("unseen", "z-unseen"),
        ("failing", "z-failing"),
        ("overdue", "z-overdue"),
        ("overrunning", "z-overrunning"),
        ("stale", "z-stale"),
        ("impossible", "z-impossible"),
    }
    assert (verdict.is_cut, verdict.is_ill_cut) == (True, False)
    assert len(verdict.healths) < 3 * MOST + 2


def test_a_job_whose_lock_is_one_of_very_many_is_not_overdue() -> None:
    fine_jobs_and_locks()
    job("z", next_slot=DBNow() - HOUR)
    hold("z-lock", job_name="z")
    for number in range(MANY):
        hold(f"c-{number}", silent=True)
    assert {one.name: one.state for one in survey().healths}["z"] == State.DELAYED
    assert survey().is_ill_cut


@pytest.mark.parametrize("paused", [True, False])
def test_what_was_not_judged_may_be_critical(paused: bool) -> None:
    """Locks of paused jobs look bad, and are not. Nor are a few failures of others, by ``failures``."""
    for number in range(MANY):
        job(f"a-{number}", paused=paused, consecutive_failures=0 if paused else 1)
        if paused:
            hold(f"a-{number}", job_name=f"a-{number}", silent=True)
    verdict = judge(failures=3)
    assert ("not_judged", "jobs and locks") in found(verdict)
    assert verdict.level == Level.CRITICAL
    locks().all().delete()
    gates().update(consecutive_failures=0)
    assert judge().level == Level.OK


def test_the_counts_say_that_there_are_more() -> None:
    assert (survey().is_cut, survey().is_ill_cut) == (False, False)
    fine_jobs_and_locks()
    verdict = judge()
    assert headline(verdict) == ("good", "All is well")
    shown = [str(state) for state, _url, _is_chosen in states(verdict, Wanted())]
    assert ["5 or more idle" in shown[0], "5 or more locks of no job" in shown[1]] == [True, True]
    gates().update(consecutive_failures=1)
    assert headline(judge()) == ("bad", "Critical: 10 or more problems need attention")
    assert judge().is_ill_cut


def test_a_name_is_found_among_very_many() -> None:
    fine_jobs_and_locks()
    job("needle-1")
    hold("needle-2")
    assert [one.name for one in survey(part="needle").healths] == ["needle-1", "needle-2"]
    assert [one.name for one in survey(["needle-1", "never"]).healths] == ["needle-1"]
    assert [one.name for one in judge(Scope(jobs=["needle-2"])).healths] == ["needle-2"]


def test_what_is_ignored_hides_nothing() -> None:
    fine_jobs_and_locks()
    names = [f"ill-{number}" for number in range(MANY)]
    for name in names:
        job(name, consecutive_failures=1)
        hold(f"lock-of-{name}", job_name=name, silent=True)
    job("z-failing", consecutive_failures=1)
    assert found(judge(Scope(ignored=names))) == {("failing", "z-failing")}


def test_it_takes_at_most_four_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    job("one")
    hold("one")
    with django_assert_num_queries(2):
        survey()
    fine_jobs_and_locks()
    with django_assert_num_queries(4):
        assert len(survey().healths) <= 3 * MOST


# --- very many jobs that are registered


def register_many(count: int = MANY) -> list[str]:
    names = [f"r-{number:02}" for number in range(count)]
    for name in names:
        singleton_job(name, schedule="30 2 * * *")(print)
    return names


def all_requested(names: list[str]) -> None:
    seen = {"schedule": "30 2 * * *", "time_zone": "UTC", "next_slot": DBNow() + MINUTE}
    for name in names:
        job(name, **seen)


def test_only_the_worst_of_the_registered_jobs_are_read(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    all_requested(register_many())
    gates().filter(name="r-13").update(consecutive_failures=1)
    with django_assert_num_queries(3):
        surveyed = survey()
    assert (len(surveyed.healths), surveyed.is_cut, surveyed.is_ill_cut) == (MOST, True, False)
    assert found(judge()) == {("failing", "r-13")}


def test_a_registered_job_that_no_server_has_requested_is_not_hidden() -> None:
    singleton_job("z-unseen", schedule="30 2 * * *")(print)
    all_requested(register_many())
    assert found(judge()) == {("unseen", "z-unseen")}


def test_of_very_many_that_no_server_has_requested_some_are_shown() -> None:
    register_many()
    verdict = judge()
    shown = {("unseen", f"r-{number:02}") for number in range(MOST)}
    assert found(verdict) == shown | {("not_judged", "jobs and locks")}
    assert (verdict.is_cut, verdict.is_ill_cut) == (True, True)


def test_a_job_without_a_schedule_that_never_ran_is_no_trouble() -> None:
    for number in range(MANY):
        singleton_job(f"r-{number:02}")(print)
    surveyed = survey()
    assert (len(surveyed.healths), surveyed.is_cut, surveyed.is_ill_cut) == (MOST, True, False)
    assert judge().level == Level.OK


def test_a_registered_job_whose_lock_is_held_is_shown_among_very_many() -> None:
    all_requested(register_many())
    hold("r-19", job_name="r-19", silent=True)
    assert found(judge()) == {("stale", "r-19")}
