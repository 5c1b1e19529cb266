"""The three ways through a gate, each with another caller that was faster, and what a grant writes."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

from django_singlejob.database import transactions
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.locking.grant import Grant, PlannedRun, Snapshot, plan
from django_singlejob.locking.recording import Writer
from django_singlejob.locking.request import LockRequest
from django_singlejob.models.locks import locks
from django_singlejob.process.holder import this_process
from tests.contract.acts import everything, expire, gate, in_thread, last_run, lock, pass_gate, start_run, take

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("fresh_process"),
]

MINUTE = timedelta(minutes=1)


def nothing() -> None: ...


def a_dead_holder() -> None:
    take()
    expire()


def a_dead_run(job_name: str = "nightly") -> None:
    start_run(job_name, name="nightly")
    expire()


#: The request, and what was there before.
WAYS: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
    "the job's own gate": ({"job_name": "nightly", "trigger": "call"}, nothing),
    "no job": ({}, nothing),
    "the gate of several jobs": ({"job_name": "orders", "trigger": "call"}, nothing),
    "the gate of a dead holder": ({}, a_dead_holder),
    "the gate of a dead run": ({"job_name": "nightly", "trigger": "call"}, a_dead_run),
    "the gate of another job's dead run": (
        {"job_name": "orders", "trigger": "call"},
        partial(a_dead_run, "stock"),
    ),
}
each_way = pytest.mark.parametrize(("terms", "arrange"), WAYS.values(), ids=WAYS)


class Try(NamedTuple):
    grant: Grant
    snapshot: Snapshot
    planned: PlannedRun


def planned(terms: dict[str, Any]) -> Try:
    """One try, up to the transaction."""
    wanted = {"lease": MINUTE, "heartbeat_interval": None, "holder": this_process()} | terms
    request = LockRequest(name="nightly", **wanted)
    snapshot = Acquisition(request)._snapshot(locks().look_up("nightly"))
    assert snapshot
    run = plan(request, snapshot)
    assert isinstance(run, PlannedRun)
    return Try(Grant.of(request, uuid4(), run, snapshot), snapshot, run)


def carried_out(attempt: Try) -> bool:
    grant, history = attempt.grant, Writer(MINUTE)
    with transactions.durable(transactions.alias()):
        is_granted = grant.take(attempt.snapshot, attempt.planned, history)
        if not is_granted:
            transactions.roll_back(transactions.alias())
        elif grant.entry:
            grant.entry.begin(history)
    return is_granted


@each_way
def test_each_way_leads_in_once(terms: dict[str, Any], arrange: Callable[[], object]) -> None:
    arrange()
    first, second = planned(terms), planned(terms)
    assert carried_out(first)
    before = everything()
    assert not carried_out(second)
    assert everything() == before
    assert lock().token == gate().token == first.grant.token
    assert gate().fence == first.grant.fence


@each_way
def test_the_faster_caller_at_the_gate_wins(terms: dict[str, Any], arrange: Callable[[], object]) -> None:
    arrange()
    attempt = planned(terms)
    in_thread(pass_gate)
    before = everything()
    assert not carried_out(attempt)
    assert everything() == before


@pytest.mark.parametrize("way", ["the gate of several jobs", "the gate of another job's dead run"])
def test_a_start_of_the_job_behind_another_gate_counts(way: str) -> None:
    terms, arrange = WAYS[way]
    arrange()
    attempt = planned(terms)
    in_thread(lambda: pass_gate("orders"))
    assert not carried_out(attempt)


@pytest.mark.parametrize("change", ["a heartbeat", "a release"])
def test_a_holder_that_shows_a_sign_of_life_keeps_the_lock(change: str) -> None:
    """It changed nothing at the gate, so only its row shows it."""
    lease = start_run()
    expire()
    attempt = planned({"job_name": "nightly", "trigger": "call"})
    in_thread(lease.renew if change == "a heartbeat" else lambda: locks()._raw_delete("default"))
    before = everything()
    assert not carried_out(attempt)
    assert everything() == before


def test_the_lock_and_the_history_say_the_same() -> None:
    attempt = planned({"job_name": "nightly", "trigger": "call"})
    assert carried_out(attempt)
    row, run, grant = lock(), last_run(), attempt.grant
    for name in "token", "slot", "attempt", "hostname", "pid":
        assert getattr(row, name) == getattr(run, name)
    assert (run.token, run.fence, run.trigger) == (grant.token, grant.fence, "call")
    assert (row.command, row.job_name) == (grant.request.holder.command, "nightly")
    assert abs(row.acquired_at - grant.acquired_at) < timedelta(seconds=5)


def test_a_lock_without_a_job_starts_none() -> None:
    assert carried_out(planned({}))
    assert (gate().last_started_at, lock().job_name) == (None, "")
    expire()
    assert carried_out(planned({}))
    assert gate().last_started_at is None
