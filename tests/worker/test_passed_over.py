"""A refused job is passed over for the rest of a pass, but no job that could run is."""

from __future__ import annotations

from typing import Any

import pytest

from django_singlejob import singleton_job
from django_singlejob.exceptions import DatabaseUnreachable, JobInterrupted, UnsafeTransaction
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import local_now
from django_singlejob.worker import due_run
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.contract.acts import HOUR, MINUTE, SECOND, fall_behind, scheduled, take

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
in_each_mode = pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True)], ids=["once", "drain"])


def ran(plan: Plan) -> list[str]:
    return [report.name for report in Worker(plan).work() if not (report.reason or report.error)]


@in_each_mode
def test_a_slot_that_is_too_late_keeps_no_one_off_of_its_job_waiting(plan: Plan) -> None:
    job = scheduled(catch_up="none", misfire_grace=MINUTE)
    fall_behind(job)
    job.enqueue()
    assert ran(plan) == ["nightly"]


@in_each_mode
def test_nor_a_slot_of_another_job_with_the_same_lock(plan: Plan) -> None:
    fall_behind(scheduled("first", lock="shared", catch_up="none", misfire_grace=MINUTE), 2)
    fall_behind(scheduled("second", lock="shared"))
    assert ran(plan) == ["second"]


@in_each_mode
@pytest.mark.parametrize("lock", ["shared", "first"])
@pytest.mark.parametrize("why", ["paused", "ran already"])
def test_one_that_may_not_run_keeps_none_with_the_same_lock_waiting(plan: Plan, why: str, lock: str) -> None:
    first: Any = singleton_job("first", lock=lock, min_interval=HOUR)(lambda: None)
    second: Any = singleton_job("second", lock=lock)(lambda: None)
    first()
    if why == "paused":
        gates().filter(name="first").pause("first")
    for _ in range(2):
        first.enqueue()
        second.enqueue()
    assert ran(plan) == ["second"] * 2


@pytest.mark.parametrize("lock", ["shared", "first"])
@pytest.mark.parametrize("why", ["paused", "ran already"])
def test_nor_in_a_worker_that_goes_on(why: str, lock: str) -> None:
    first: Any = singleton_job("first", lock=lock, min_interval=HOUR)(lambda: None)
    second: Any = singleton_job("second", lock=lock)(lambda: None)
    first()
    if why == "paused":
        gates().pause("first")
    first.using(priority=1).enqueue()
    second.enqueue()
    give_up_at = local_now() + 20
    plan = Plan(interval=5 * SECOND, is_outdated=lambda: local_now() > give_up_at or is_done("second"))
    assert ran(plan) == ["second"]


def test_a_lock_that_is_held_keeps_no_job_waiting_that_has_another_lock() -> None:
    singleton_job("first", lock="shared")(lambda: None).enqueue()
    take("first")
    assert ran(Plan(drain=True)) == ["first"]


def is_done(name: str) -> bool:
    return one_offs().filter(job_name=name, status="done").exists()


@pytest.mark.parametrize("error", [DatabaseUnreachable, UnsafeTransaction, JobInterrupted])
def test_an_interrupt_that_a_body_raises_does_not_end_a_drain(error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    singleton_job("fails")(fail).enqueue()
    singleton_job("mail")(lambda: None).enqueue()
    assert ran(Plan(drain=True)) == ["mail"]


@in_each_mode
def test_one_that_was_cancelled_just_now_keeps_no_other_waiting(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel(job: Any) -> Any:
        one_offs().filter(pk=cancelled.pk).cancel()
        return job

    mail: Any = singleton_job("mail")(lambda: None)
    cancelled, *_ = [mail.enqueue() for _ in range(3)]
    monkeypatch.setattr(due_run, "waitless", cancel)
    assert ran(plan) == ["mail"] * 2


def test_what_was_held_during_a_drain_is_tried_once_more() -> None:
    lease = take("held")
    held: Any = singleton_job("held")(lambda: None)
    others: Any = singleton_job("others")(lease.release)
    held.using(priority=1).enqueue()
    others.enqueue()
    assert ran(Plan(drain=True)) == ["others", "held"]
