"""A lock that another server holds, and one whose holder has died."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import Error, connection

from django_singlejob import InvalidName, LockHeld, Reason, SingleJobError, job_lock, singleton_job, status
from django_singlejob.models import JobLock, JobRun
from django_singlejob.testing import expire, held_elsewhere

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures"]
pytestmark = pytest.mark.usefixtures("fresh_process")


def nightly(**settings: Any) -> Any:
    return singleton_job("nightly", **settings)(lambda: "ran")


@pytest.mark.parametrize("is_named", [True, False], ids=["by its name", "the job itself"])
def test_a_job_is_skipped_while_another_server_has_its_lock(is_named: bool) -> None:
    job = nightly(lock="exports")
    with held_elsewhere("nightly" if is_named else job):
        assert JobLock.objects.get().name == "exports"
        outcome = job.run()
    assert (outcome.reason, outcome.holder) == (Reason.HELD, "another-server, pid 4711")
    assert job() == "ran"
    assert not JobLock.objects.exists()


def test_so_is_a_block() -> None:
    with (
        held_elsewhere("a-lock"),
        pytest.raises(LockHeld, match="held by another-server, pid 4711"),
        job_lock("a-lock"),
    ):
        pytest.fail("The lock was granted twice.")
    with job_lock("a-lock"):
        assert JobLock.objects.exists()


def test_the_command_the_status_and_the_admin_name_the_holder(admin_client: Client) -> None:
    nightly()
    out = StringIO()
    with held_elsewhere("nightly"):
        call_command("run_singleton", "nightly", now=True, verbosity=2, stdout=out)
        page = admin_client.get("/admin/django_singlejob/joblock/").text
        shown = status().as_dict()
    assert "another-server" in out.getvalue()
    assert "another-server" in page
    assert "another-server" in str(shown)


def test_a_lock_that_is_held_cannot_be_held_elsewhere() -> None:
    with (
        job_lock("a-lock"),
        pytest.raises(LockHeld, match="The lock 'a-lock' has been held by"),
        held_elsewhere("a-lock"),
    ):
        pytest.fail("The lock was granted twice.")


def test_what_fails_in_the_block_is_raised_and_the_lock_is_released() -> None:
    with pytest.raises(ZeroDivisionError), held_elsewhere("a-lock"):
        _ = 1 / 0
    assert not JobLock.objects.exists()


def test_an_error_that_breaks_the_transaction_is_raised_too() -> None:
    with pytest.raises(Error, match="no_such_table"), held_elsewhere("a-lock"), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


def test_after_its_death_the_next_caller_takes_it_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", pytest.fail)
    job = nightly(lease=timedelta(hours=1))
    with held_elsewhere("nightly"):
        expire("nightly")
        assert job() == "ran"
        assert not JobLock.objects.exists()
    assert JobRun.objects.get().status == "successful"


def test_a_run_whose_holder_has_died_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run inside has the lock by then. The one outside learns it at its end."""
    monkeypatch.setattr("time.sleep", pytest.fail)
    inner: list[str] = []

    @singleton_job("nightly")
    def job(is_first: bool = True) -> None:
        if is_first:
            expire(job)
            inner.append(job.run(is_first=False).status)

    with pytest.raises(SingleJobError, match="taken over"):
        job()
    assert inner == ["successful"]
    assert sorted(JobRun.objects.values_list("status", "attempt")) == [("abandoned", 1), ("successful", 2)]


def test_a_lock_that_nobody_holds_cannot_expire() -> None:
    with pytest.raises(SingleJobError, match=r"Nobody holds the lock 'a-lock'.*held_elsewhere\('a-lock'\)"):
        expire("a-lock")


@pytest.mark.parametrize("act", [expire, lambda lock: held_elsewhere(lock).__enter__()], ids=["expire", "held"])
def test_what_is_no_lock_is_refused(act: Any) -> None:
    with pytest.raises(SingleJobError, match="3 is neither a job nor the name of a lock"):
        act(3)
    with pytest.raises(InvalidName, match="'A lock' is not a valid name"):
        act("A lock")
