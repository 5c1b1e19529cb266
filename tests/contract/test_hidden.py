"""A name that is hidden: every request shows it again, in the statement that it sends anyway, and its fence stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import LockHeld, job_lock, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.monitoring.verdict import judge
from tests.contract.acts import (
    expire,
    fall_behind,
    gate,
    nth_fence,
    scheduled,
    start_run,
    take,
    ticked,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import DjangoAssertNumQueries

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]


def hide(*names: str) -> None:
    for name in names or ("nightly",):
        gates().remember(name)
        assert gates().hide(name)


def shown() -> list[str]:
    """The jobs and locks in ``singleton_status`` and in the overview."""
    return [health.name for health in judge().healths]


def hold() -> None:
    with job_lock("nightly"):
        pass


def run() -> None:
    start_run().release()


def take_over() -> None:
    take()
    expire()
    hide()
    take().release()


def take_over_a_run() -> None:
    start_run()
    expire()
    hide()
    start_run().release()


@pytest.mark.parametrize("request_it", [hold, run, take_over, take_over_a_run])
def test_whoever_acquires_it_shows_it_again(request_it: Callable[[], None]) -> None:
    if request_it in (hold, run):
        hide()
    request_it()
    assert not gate().hidden


def test_so_it_does_under_a_lock_that_is_shared() -> None:
    hide("nightly", "shop")
    start_run("nightly", name="shop").release()
    assert not gate("nightly").hidden
    assert not gate("shop").hidden


def test_and_at_a_slot() -> None:
    scheduled()
    fall_behind(registry.get("nightly"))
    hide()
    ticked()
    assert not gate().hidden


def test_a_job_that_is_enqueued_is_shown_before_it_runs() -> None:
    run()
    hide()
    assert shown() == []
    singleton_job("nightly")(print).enqueue()
    assert shown() == ["nightly"]


def test_what_is_refused_does_not_show_it() -> None:
    lease = take()
    hide()
    with pytest.raises(LockHeld), job_lock("nightly"):
        pytest.fail("both are in")
    assert gate().hidden
    lease.release()
    assert gate().hidden


def test_its_fence_goes_on() -> None:
    hold()
    hide()
    assert gate().fence == nth_fence(1)
    assert take().fence == nth_fence(2)


def test_a_name_starts_at_the_fence_that_was_written_for_it() -> None:
    """As in an empty database after the loss of the former one."""
    gates().create(name="nightly", fence=nth_fence(1_000_000))
    assert take().fence == nth_fence(1_000_001)


def test_it_costs_no_statement(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    job = singleton_job("nightly")(lambda: None)
    job()
    with CaptureQueriesContext(connection) as usual:
        job()
    hide()
    with django_assert_num_queries(len(usual)):
        job()
    assert not gate().hidden


def test_a_lock_is_shown_while_it_is_held_and_a_dead_holder_until_it_is_cleared() -> None:
    start_run()
    hide()
    assert shown() == ["nightly"]
    expire()
    assert [finding.subject for finding in judge().findings] == ["nightly"]
    locks().all().delete()
    assert shown() == []


def test_trouble_of_what_is_hidden_is_none() -> None:
    run()
    gates().update(consecutive_failures=3)
    assert [finding.subject for finding in judge().findings] == ["nightly"]
    hide()
    assert judge().findings == []
    assert judge().level == 0
