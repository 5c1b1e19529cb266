"""When a pass was last seen."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_singlejob.database.transactions import alias
from django_singlejob.models.passes import MARK_EVERY, WorkerPassQuerySet, passes
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

SECOND = timedelta(seconds=1)


def mark(*queues: str, hostname: str = "web-1") -> bool:
    return passes().mark(queues, this_process()._replace(hostname=hostname))


def test_each_set_of_queues_has_one_row_in_whatever_order() -> None:
    assert mark()
    assert mark("mail", "media")
    assert not mark("media", "mail", "mail")
    assert mark("Mail", "media")
    assert sorted(row.queues for row in passes()) == [[], ["Mail", "media"], ["mail", "media"]]


def test_queues_may_be_long_and_many() -> None:
    names = ["é" * 200, *map(str, range(500))]
    assert mark(*names)
    assert passes().get().queues == sorted(names)


def test_a_pass_that_was_seen_a_moment_ago_is_not_recorded_again() -> None:
    assert mark(hostname="web-1")
    with CaptureQueriesContext(connections[alias()]) as statements:
        assert not mark(hostname="web-2")
    assert len(statements) == 1
    passes().update(seen_at=DBNow() - MARK_EVERY - SECOND)
    assert mark(hostname="web-2")
    row = passes().get()
    assert (row.hostname, row.holder, str(row)) == ("web-2", f"web-2, pid {row.pid}", row.holder)


def test_of_two_that_record_it_at_once_the_first_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mark(hostname="web-1")
    monkeypatch.setattr(WorkerPassQuerySet, "recent", lambda rows, within: rows.none())  # the second looked before
    mark(hostname="web-2")
    assert passes().get().hostname == "web-1"


def test_a_pass_in_the_future_is_recorded_anew() -> None:
    """The database's clock was set back."""
    mark()
    passes().update(seen_at=DBNow() + timedelta(hours=1))
    assert not passes().recent(MARK_EVERY).exists()
    assert mark()
    assert passes().recent(MARK_EVERY).exists()
