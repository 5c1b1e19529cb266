"""Pausing and resuming at the gate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from django_singlejob.control.pausing import at_the_gate, pause, resume
from django_singlejob.database import transactions
from django_singlejob.models.jobs import database_now, gates
from tests.contract.acts import HOUR, closing
from tests.waiting import PATIENCE

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def test_it_says_whether_something_changed() -> None:
    assert [pause("nightly"), pause("nightly"), resume("nightly"), resume("nightly")] == [True, False, True, False]
    assert not gates().get(name="nightly").paused


def test_it_can_end_by_itself() -> None:
    now = database_now()
    assert [pause("nightly", until=now), pause("nightly", until=now + HOUR, reason="upgrade", by="anna")] == [
        False,
        True,
    ]
    assert resume("nightly") is True


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_a_gate_that_is_busy_is_left_alone() -> None:
    gates().remember("nightly")
    with ThreadPoolExecutor() as pool, transactions.durable(transactions.alias()):
        gates().touch("nightly")
        assert pool.submit(closing, pause, "nightly").result(PATIENCE) is None
        assert pool.submit(closing, at_the_gate, "nightly", int, patience=0.1).result(PATIENCE) is None
    assert pause("nightly") is True
