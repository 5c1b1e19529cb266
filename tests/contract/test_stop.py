"""A user stops a run: the row is marked by its token, and the holder's next heartbeat finds the mark."""

from __future__ import annotations

import pickle
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import JobInterrupted, JobStopped, SkipRun, current_run, singleton_job
from django_singlejob.database.transactions import durable
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.models import JobRun
from django_singlejob.models.locks import locks
from django_singlejob.process.progress import Progress
from tests.contract.acts import expire, lock, take
from tests.databases import APPS

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process"),
]


def stop(name: str = "nightly", by: str = "ada") -> bool:
    with durable(locks().db):
        return locks().stop(name, lock(name).token, by)


def test_the_next_heartbeat_finds_the_mark_and_the_lease_goes_on() -> None:
    lease = take()
    assert stop()
    lease.check()
    lease.renew()
    assert lease.stopped_by == "ada"
    assert not lease.lost
    with pytest.raises(JobStopped, match=r"^The run was stopped by ada\.$"):
        lease.check()
    lease.renew()
    assert lock().heartbeats == 2


def test_no_other_holder_is_hit() -> None:
    take()
    assert not locks().stop("nightly", uuid4(), "ada")
    assert not locks().stop("hourly", lock().token, "ada")
    assert lock().stopped_by == ""


def test_the_next_holder_takes_no_mark_over() -> None:
    take()
    assert stop()
    locks().update(progress={"done": 1})
    expire()
    take()
    assert (lock().stopped_by, lock().progress) == ("", {})


def test_a_mark_keeps_nobody_from_releasing() -> None:
    lease = take()
    assert stop()
    assert lease.release()


def test_a_heartbeat_is_one_statement_whether_or_not_there_is_news() -> None:
    lease = take()
    lease.renew()
    for progress in Progress(), Progress(1, 2, "importing"), Progress(2, 2, "importing"):
        lease.take_progress(progress)
        with CaptureQueriesContext(connection) as queries:
            lease.renew()
        on_the_row = [query["sql"] for query in queries if "joblock" in query["sql"]]
        assert len(on_the_row) == 1
        assert "UPDATE" in on_the_row[0]
        assert lock().progress == progress.stored


def test_heartbeats_together_tell_the_news_of_each_and_find_each_mark() -> None:
    leases = {name: take(name, heartbeat_interval=timedelta(microseconds=1)) for name in ("first", "second", "third")}
    heartbeats = Heartbeats()
    for lease in leases.values():
        heartbeats.add(lease)
    leases["first"].take_progress(Progress(1, 3, "first"))
    leases["second"].take_progress(Progress(2, 3, "second"))
    heartbeats.beat()
    leases["second"].take_progress(Progress(3, 3, "second"))
    assert stop("second")
    assert stop("third")
    heartbeats.beat()
    heartbeats.beat()
    assert {name: lease.stopped_by for name, lease in leases.items()} == {"first": "", "second": "ada", "third": "ada"}
    assert min(lock(name).heartbeats for name in leases) == 3
    told = [lock(name).progress for name in leases]
    assert told == [Progress(1, 3, "first").stored, Progress(3, 3, "second").stored, {}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308])
def test_no_number_costs_the_lease(value: float) -> None:
    lease = take()
    lease.take_progress(Progress(value, value, "a\0b \N{SNAKE} \ud800"))
    lease.renew()
    assert lock().progress["text"] == r"a\x00b \U0001f40d \ud800"


def test_news_that_the_database_refuses_go_untold_and_the_lease_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take()
    monkeypatch.setattr(Progress, "stored", {"text": object()})
    with pytest.raises(TypeError):
        lease.renew()
    lease.renew()
    assert lock().heartbeats == 1


def test_news_whose_heartbeat_is_not_committed_are_told_again() -> None:
    lease = take()
    lease.take_progress(Progress(1, 2, "importing"))
    with suppress(OperationalError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "commit", _fail)
        lease.renew()
    assert lock().progress == {}
    lease.renew()
    lease.renew()
    assert lock().progress == Progress(1, 2, "importing").stored


def _fail() -> NoReturn:
    raise OperationalError


@pytest.mark.on_database("sqlite")  # elsewhere, no heartbeat is part of a fenced transaction
def test_news_of_a_fenced_transaction_that_is_not_committed_are_told_again() -> None:
    lease = take()
    lease.take_progress(Progress(1, 2, "importing"))
    with suppress(OperationalError), pytest.MonkeyPatch.context() as patch, lease.atomic():
        patch.setattr(connection, "commit", _fail)
    for _ in range(2):
        lease.renew()
    assert lock().progress == Progress(1, 2, "importing").stored


# --- in the caller's process


def test_a_job_that_asks_is_stopped() -> None:
    @singleton_job("nightly")
    def job() -> None:
        run = current_run()
        assert run is not None
        assert stop()
        run.lease.renew()
        run.lease.check()

    with pytest.raises(JobStopped):
        job()
    run = JobRun.objects.get()
    assert (run.status, run.error) == ("interrupted", "JobStopped: The run was stopped by ada.")
    assert not locks().exists()


def test_a_job_says_how_far_it_is() -> None:
    @singleton_job("nightly")
    def job() -> None:
        run = current_run()
        assert run is not None
        run.progress(1)
        run.lease.renew()
        assert Progress.read(lock().progress) == Progress(1)
        run.progress(120, 500, "importing")
        assert run.lease.progress == Progress(120, 500, "importing")
        raise SkipRun

    job()


class Wordless:
    def __str__(self) -> str:
        raise AttributeError

    __float__ = __str__


def test_what_is_no_progress_is_logged_once_and_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    @singleton_job("nightly")
    def job() -> str:
        run = current_run()
        assert run is not None
        for wrong in None, "half", "x" * 99_000, [1], timedelta(1), Wordless():
            run.progress(wrong)  # type: ignore[arg-type]
            run.progress(1, wrong or "x")  # type: ignore[arg-type]
        run.progress(1, 2, Wordless())  # type: ignore[arg-type]
        return "done"

    assert job() == "done"
    (told,) = [record.message for record in caplog.records if "progress" in record.message]
    assert told.startswith("The progress of 'nightly' was not recorded, because it is not a number: ")


@pytest.mark.parametrize("stopped_by", ["", "ada"])
def test_what_ends_a_body_can_be_passed_between_processes(stopped_by: str) -> None:
    error = pickle.loads(pickle.dumps(JobInterrupted(15, stopped_by)))
    assert (error.signum, error.stopped_by) == (15, stopped_by)
    assert str(error) == ("The job was stopped by ada." if stopped_by else "The job was interrupted by signal 15.")
    assert pickle.loads(pickle.dumps(JobStopped("ada"))).by == "ada"
