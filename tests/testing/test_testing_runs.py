"""What is due is run in the test's process, what waits is shown, and a run's time is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_singlejob import (
    JobTimeout,
    Reason,
    SingleJobError,
    UnknownJob,
    UnsafeTransaction,
    raise_if_stopped,
    singleton_job,
)
from django_singlejob.models import JobRun, JobStatus, OneOffJob
from django_singlejob.testing import enqueued, expire, held_elsewhere, run_due, times_out, travel
from tests.app.django_tasks import plain, stock
from tests.app.jobs import this_run

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.fixtures"]
pytestmark = pytest.mark.usefixtures("fresh_process")

SEVEN = "2027-03-28T07:00+02:00"
HOUR = timedelta(hours=1)


def scheduled(name: str = "report", schedule: str = "0 7 * * *", **settings: Any) -> Any:
    """A job that returns its slot, as text."""
    job: Any = singleton_job(name, schedule=schedule, time_zone="Europe/Rome", **settings)
    return job(lambda: str(this_run().slot))


@pytest.fixture
def greeting(fresh_process: None) -> Any:
    """The job `greet`."""

    def greet(name: str, language: str = "en") -> str:
        return f"{name}/{language}"

    return singleton_job(greet)


class TestRunDue:
    @pytest.mark.parametrize("at", [SEVEN, datetime(2027, 3, 28, 5, 0, 59, tzinfo=UTC)], ids=["text", "datetime"])
    def test_it_runs_the_slot_of_that_minute(self, at: Any) -> None:
        scheduled()
        scheduled("later", "1 7 * * *")
        [outcome] = run_due(at=at)
        assert (outcome.name, outcome.value, outcome.slot) == (
            "report",
            "2027-03-28 05:00:00+00:00",
            datetime(2027, 3, 28, 5, 0, tzinfo=UTC),
        )
        assert run_due(at=at) == []

    @pytest.mark.parametrize(("catch_up", "count"), [("latest", 1), ("all", 3), ("none", 1)])
    def test_a_later_instant_goes_on_from_there(self, catch_up: str, count: int) -> None:
        scheduled(catch_up=catch_up)
        run_due(at=SEVEN)
        assert len(run_due(at="2027-03-31T07:00+02:00")) == count

    def test_a_job_sees_that_instant(self) -> None:
        seen: list[datetime] = []
        singleton_job("report", schedule="0 5 * * *")(lambda: seen.append(timezone.now()))
        run_due(at=SEVEN)
        assert datetime(2027, 3, 28, 5, 0, tzinfo=UTC) <= seen[0] < datetime(2027, 3, 28, 5, 1, tzinfo=UTC)
        assert JobStatus.objects.get(name="report").next_slot == datetime(2027, 3, 29, 5, 0, tzinfo=UTC)

    def test_now_no_slot_is_due_that_was_before_now(self) -> None:
        singleton_job("report", schedule=HOUR)(int)
        assert run_due() == []

    def test_it_runs_one_offs_and_tasks(self, greeting: Any) -> None:
        greeting.enqueue("Ada")
        plain.enqueue(1)
        assert [outcome.value for outcome in run_due()] == ["Ada/en", [[1], {}]]
        assert {row.status for row in OneOffJob.objects.all()} == {"done"}

    def test_a_one_off_for_later_waits_until_then(self, greeting: Any) -> None:
        greeting.using(run_after=datetime(2027, 3, 28, 5, 0, tzinfo=UTC)).enqueue("Ada")
        assert run_due() == run_due(at="2027-03-28T06:59+02:00") == []
        assert [outcome.value for outcome in run_due(at=SEVEN)] == ["Ada/en"]

    def test_a_failure_is_an_outcome_and_the_others_run(self) -> None:
        singleton_job("breaks", schedule="0 5 * * *")(lambda: 1 / 0)
        scheduled()
        outcomes = {outcome.name: outcome for outcome in run_due(at=SEVEN)}
        assert {name: outcome.status for name, outcome in outcomes.items()} == {
            "breaks": "failed",
            "report": "successful",
        }
        assert isinstance(outcomes["breaks"].error, ZeroDivisionError)

    def test_what_was_raised_is_seen_in_the_message_of_a_failed_assertion(self) -> None:
        def fail() -> None:
            raise ValueError("no such customer")

        singleton_job("broken", schedule="0 7 * * *", time_zone="Europe/Rome")(fail)
        [outcome] = run_due(at=SEVEN)
        assert "name='broken', error=ValueError('no such customer')" in repr(outcome)

    def test_nobody_outside_hears_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pings: list[Any] = []
        monkeypatch.setattr("django_singlejob.integrations.pings._put", lambda ping, **_: pings.append(ping))
        report = scheduled(ping_url="http://127.0.0.1:9/{name}")
        assert [outcome.status for outcome in run_due(at=SEVEN)] == ["successful"]
        assert pings == []
        report()
        assert len(pings) == 2

    def test_it_needs_a_transaction_of_its_own(self) -> None:
        scheduled()
        with transaction.atomic(), pytest.raises(UnsafeTransaction):
            run_due(at=SEVEN)

    def test_a_lock_that_is_held_is_left_alone_until_its_holder_has_died(self) -> None:
        scheduled()
        with held_elsewhere("report"):
            assert [outcome.reason for outcome in run_due(at=SEVEN)] == [Reason.HELD]
            expire("report")
            assert [outcome.status for outcome in run_due(at=SEVEN)] == ["successful"]

    def test_a_job_that_is_disabled_does_not_pass_for_one_that_is_not_due(self, settings: Settings) -> None:
        settings.SINGLEJOB = {"ENABLED": False}
        with pytest.raises(SingleJobError, match=r"while SINGLEJOB\['ENABLED'\] is False"):
            run_due()

    def test_nor_does_one_that_cannot_be_registered(self, settings: Settings) -> None:
        singleton_job("report", schedule="0 7 * * *")(int)
        settings.TIME_ZONE = "Factory"
        with pytest.raises(SingleJobError, match=r"Some jobs cannot be registered: InvalidSchedule: .* 'report'"):
            run_due()

    def test_an_instant_needs_a_zone(self) -> None:
        with pytest.raises(SingleJobError, match="has no time zone"):
            run_due(at="2027-03-28T07:00")


class TestEnqueued:
    def test_it_lists_what_waits_the_oldest_first(self, greeting: Any) -> None:
        with transaction.atomic():
            greeting.enqueue("Ada")
            greeting.using(priority=9).enqueue("Bo", language="it")
            assert [(row.args, row.kwargs) for row in enqueued("greet")] == [
                (["Ada"], {}),
                (["Bo"], {"language": "it"}),
            ]
        assert [row.args for row in enqueued(greeting)] == [["Ada"], ["Bo"]]
        run_due()
        assert enqueued(greeting) == []

    def test_a_task_has_its_own(self, greeting: Any) -> None:
        greeting.enqueue("Ada")
        plain.enqueue(1)
        plain.using(priority=2).enqueue(number=2)
        assert [(row.args, row.kwargs) for row in enqueued(plain)] == [([1], {}), ([], {"number": 2})]

    def test_those_of_a_task_that_is_a_job_are_the_jobs(self) -> None:
        job: Any = stock.func
        stock.enqueue(1)
        job.enqueue(2)
        assert [row.args for row in enqueued(stock)] == [row.args for row in enqueued(job)] == [[1], [2]]

    def test_what_is_neither_is_refused(self) -> None:
        with pytest.raises(SingleJobError, match="3 is neither a job nor the name of one"):
            enqueued(3)
        with pytest.raises(UnknownJob, match="There is no job 'unknown'"):
            enqueued("unknown")


def fetch() -> str:
    return "fetched"


class TestTimesOut:
    @pytest.fixture(autouse=True)
    def jobs(self, fresh_process: None) -> None:
        """Two jobs, and what they have done about their time-out."""
        self.cleaned: list[str] = []

        @singleton_job(max_runtime=HOUR)
        def asks() -> None:
            try:
                raise_if_stopped()
            finally:
                self.cleaned.append("asked")

        @singleton_job(max_runtime=HOUR)
        def fetches() -> str:
            try:
                return fetch()
            except JobTimeout:
                self.cleaned.append("fetched")
                raise

        self.asks, self.fetches = asks, fetches

    def test_a_job_that_asks_is_ended_in_its_body(self) -> None:
        with times_out(self.asks), pytest.raises(JobTimeout):
            self.asks()
        assert self.cleaned == ["asked"]
        assert JobRun.objects.get().status == "interrupted"
        self.asks()

    def test_another_is_ended_where_it_calls_a_function(self) -> None:
        with times_out("fetches", at=f"{__name__}.fetch"), pytest.raises(JobTimeout):
            self.fetches()
        assert self.cleaned == ["fetched"]
        assert self.fetches() == "fetched"

    def test_other_jobs_have_their_time(self) -> None:
        with times_out("fetches"):
            self.asks()
        assert self.cleaned == ["asked"]

    def test_a_pass_says_how_it_ended(self) -> None:
        self.asks.enqueue()
        with times_out("asks"):
            [outcome] = run_due()
        assert isinstance(outcome.error, JobTimeout)

    def test_a_job_without_a_limit_is_refused(self, greeting: Any) -> None:
        with pytest.raises(SingleJobError, match="The job 'greet' has no max_runtime"), times_out("greet"):
            pytest.fail("It was accepted.")


def test_a_job_that_travels_is_run_by_a_pass_there(greeting: Any) -> None:
    with travel(SEVEN):
        greeting.using(run_after=timezone.now() + HOUR).enqueue("Ada")
        assert run_due() == []
        with travel(HOUR):
            assert [outcome.value for outcome in run_due()] == ["Ada/en"]
