"""Bodies that do what they should not: each case is handled and recorded, and leaves no lock behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_singlejob import LockHeld, job_lock
from tests.app.models import Counter
from tests.contract.acts import expire
from tests.databases import APPS
from tests.processes.witness import ends, is_over

if TYPE_CHECKING:
    from tests.processes.conftest import Call

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


@pytest.mark.parametrize(("status", "ended"), [(0, "successful"), (3, "failed")])
def test_sys_exit_releases_and_reaches_the_caller(call: Call, status: int, ended: str) -> None:
    child = call(f"exits({status})")
    assert child.finish() == status
    assert "returned" not in child.output
    assert is_over("exits", ended)


def test_os_exit_leaves_the_lock_to_expire_and_the_run_to_be_abandoned(call: Call) -> None:
    assert call("exits_at_once()").finish() == 7
    with pytest.raises(LockHeld), job_lock("exits_at_once"):
        pass
    expire("exits_at_once")
    with job_lock("exits_at_once"):
        assert ends("exits_at_once") == ["abandoned"]


def test_a_forked_child_that_returns_from_the_job_holds_nothing(call: Call) -> None:
    parent = call('forks("comes back")')
    assert parent.finish() == 0
    assert "raised LeaseLost" in parent.output  # the child
    assert "returned 'parent'" in parent.output
    assert "returned 'child'" not in parent.output
    assert is_over("forks", "successful")


@pytest.mark.parametrize("job", ["closes_its_connection", "breaks_its_connection"])
def test_a_body_that_ends_without_a_connection_is_recorded_and_released(call: Call, job: str) -> None:
    child = call(f"{job}()")
    child.wait_for("returned None")
    assert is_over(job, "successful")


@pytest.mark.parametrize("job", ["begins_a_transaction", "turns_autocommit_off", "never_leaves_atomic"])
def test_a_transaction_that_a_body_leaves_open_is_rolled_back_and_the_lock_released(call: Call, job: str) -> None:
    child = call(f"{job}()")
    child.wait_for("returned None")
    assert is_over(job, "successful")
    assert not Counter.objects.exists()


def test_an_aborted_transaction_that_a_body_leaves_does_no_harm(call: Call) -> None:
    child = call("aborts_its_transaction()")
    child.wait_for("returned None")
    assert is_over("aborts_its_transaction", "successful")
    assert not Counter.objects.exists()


@pytest.mark.parametrize("job", ["turns_autocommit_off", "never_leaves_atomic"])
def test_the_next_job_of_the_process_finds_a_connection_that_works(call: Call, job: str) -> None:
    child = call(f"{job}(), quick()")
    child.wait_for("returned (None, 'done')")
    assert is_over("quick", "successful")
