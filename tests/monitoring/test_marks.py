"""Each server that asks for what is due says so, and goes on if that cannot be recorded."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_singlejob import singleton_job
from django_singlejob.jobs import registry
from django_singlejob.models.jobs import database_now
from django_singlejob.models.locks import locks
from django_singlejob.models.passes import WorkerPass, passes
from django_singlejob.monitoring import marks
from django_singlejob.monitoring.marks import FORGOTTEN_AFTER, MARK_EVERY, Mark, mark, record
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.contract.acts import HOUR, MINUTE, ticked
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pytest_django.fixtures import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def marked() -> list[list[str]]:
    return list(passes().values_list("queues", flat=True))


def ask(*queues: str, hostname: str = "web-1", **facts: Any) -> WorkerPass:
    """A server asks."""
    mine = Mark(this_process()._replace(hostname=hostname), queues, **facts)
    record(mine)
    return passes().get(key=mine.key)


def age(row: WorkerPass, by: timedelta, first: timedelta | None = None) -> None:
    """As if it had been seen this long ago, and for the first time ``first`` ago."""
    passes().filter(pk=row.pk).update(seen_at=DBNow() - by, first_seen_at=DBNow() - (by if first is None else first))


# --- what a worker records


@pytest.mark.parametrize("mode", ["once", "drain"])
def test_a_pass_is_marked_with_its_queues(mode: str) -> None:
    list(Worker(Plan(once=mode == "once", drain=mode == "drain", queues=["mail"])).work())
    row = passes().get()
    assert (row.queues, row.is_once, row.hostname) == (["mail"], True, this_process().hostname)
    assert not locks().exists()


def test_a_worker_that_goes_on_is_marked_too(settings: Settings) -> None:
    settings.SINGLEJOB = {"RELEASE": "2026.11"}
    singleton_job("mail")(lambda: None).enqueue()
    list(Worker(Plan(max_jobs=1, interval=timedelta(seconds=0.01))).work())
    row = passes().get()
    assert (row.is_once, row.release, row.trouble, row.gap) == (False, "2026.11", "", None)
    assert row.clock_error is not None
    assert abs(row.clock_error) < MINUTE


def test_one_that_is_not_enabled_says_so(settings: Settings) -> None:
    settings.SINGLEJOB = {"ENABLED": False}
    assert ticked() == []
    assert "ENABLED" in passes().get().trouble


def test_what_could_not_be_registered_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.failures, "shop.jobs", ImportError("No module named 'stripe'\nat all"))
    ticked()
    assert passes().get().trouble == "Some jobs cannot be registered: ImportError: No module named 'stripe' at all."


def test_a_pass_that_was_seen_a_moment_ago_asks_one_question() -> None:
    ticked()
    with CaptureQueriesContext(connection) as queries:
        ticked()
    assert len([query for query in queries if "workerpass" in query["sql"]]) == 1


def test_a_new_release_and_a_new_trouble_are_recorded_at_once(settings: Settings) -> None:
    for release in "1", "2":
        settings.SINGLEJOB = {"RELEASE": release}
        ticked()
        assert passes().get().release == release
    settings.SINGLEJOB = {"RELEASE": "2", "ENABLED": False}
    ticked()
    assert passes().get().trouble


def test_the_same_question_says_whether_there_is_anything_else() -> None:
    rows = passes().filter(hostname="web-1")
    how = {"is_once": True, "is_first": True}
    assert mark([], [rows, rows], **how) is False
    ask()
    for _ in range(2):
        assert mark([], [rows, rows], **how) is True
    assert mark([], [], **how) is False


# --- what is recorded


def test_each_server_and_set_of_queues_has_one_row_in_whatever_order() -> None:
    ask()
    ask("mail", "media")
    ask("media", "mail", "mail")
    ask("Mail", "media")
    ask(hostname="web-2")
    assert sorted((row.hostname, row.queues) for row in passes()) == [
        ("web-1", []),
        ("web-1", ["Mail", "media"]),
        ("web-1", ["mail", "media"]),
        ("web-2", []),
    ]


def test_queues_may_be_long_and_many() -> None:
    names = ["é" * 200, *map(str, range(500))]
    assert ask(*names).queues == sorted(names)


def test_whatever_a_module_raises_it_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.failures, "shop.jobs", ImportError("\0\ud800" + "x" * 5_000))
    ticked()
    assert passes().get().trouble.endswith("x")


def test_a_long_gap_fades() -> None:
    """One that asks by day only is not missed in the evening."""
    row = ask()
    for ago, least, most in ((14 * HOUR, 14, 14.1), (5 * MINUTE, 13.9, 14), (24 * HOUR, 24, 24.1), (HOUR, 23.7, 23.9)):
        age(row, ago, 9 * DAY)
        row = ask()
        assert row.gap is not None
        assert least * HOUR <= row.gap <= most * HOUR


def test_the_gap_is_how_long_it_had_not_been_seen() -> None:
    row = ask()
    age(row, HOUR, DAY)
    row = ask()
    assert row.gap is not None
    assert HOUR <= row.gap < HOUR + MINUTE
    assert row.seen_at - row.first_seen_at > DAY - MINUTE


def test_a_clock_that_was_set_back_makes_no_gap() -> None:
    row = ask()
    age(row, -3 * HOUR, DAY)
    row = ask()
    assert not row.gap


def test_a_pass_that_lasts_is_seen_again_and_keeps_its_gap() -> None:
    row = ask()
    age(row, HOUR, DAY)
    ask()
    age(row, 10 * MINUTE, DAY)
    mine = Mark(this_process()._replace(hostname="web-1"))
    record(mine, keeps_gap=True)
    row.refresh_from_db()
    assert row.gap is not None
    assert row.gap >= HOUR
    assert passes().filter(marks.seen(MINUTE)).exists()


@pytest.mark.parametrize("year", [1500, 2300])
def test_an_instant_that_somebody_wrote_does_not_prevent_marks_for_ever(year: int) -> None:
    ticked()
    passes().update(seen_at=datetime(year, 1, 1, tzinfo=UTC))
    ticked()
    assert passes().filter(marks.seen(MINUTE)).exists()


def test_whatever_prevents_a_mark_the_question_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise DatabaseError("full")

    row = ask()
    monkeypatch.setattr(marks, "record", fail)
    assert mark(["mail"], [passes().filter(pk=row.pk)], is_once=True, is_first=True) is True


def test_one_in_the_future_is_recorded_anew() -> None:
    """The database's clock was set back."""
    ticked()
    passes().update(seen_at=DBNow() + HOUR)
    ticked()
    assert passes().get().seen_at <= database_now()


# --- what is forgotten


def test_one_that_was_seen_for_a_short_time_is_forgotten_after_an_hour() -> None:
    for hostname, seen, first in (
        ("pod-1", HOUR + MINUTE, 2 * HOUR),
        ("pod-2", HOUR - MINUTE, HOUR),
        ("web-1", DAY, DAY + HOUR + MINUTE),
        ("web-2", FORGOTTEN_AFTER + MINUTE, 10 * DAY),
    ):
        age(ask(hostname=hostname), seen, first)
    ticked()
    assert {row.hostname for row in passes()} == {"pod-2", "web-1", this_process().hostname}


def test_of_very_many_those_that_were_seen_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST", 3)
    for number in range(5):
        age(ask(hostname=f"pod-{number}"), (50 - number) * MINUTE)
    ticked()
    assert {row.hostname for row in passes()} == {"pod-3", "pod-4", this_process().hostname}


# --- what can go wrong


def test_a_mark_that_fails_ends_no_pass(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any, **__: Any) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")
        return True

    monkeypatch.setattr(marks, "record", fail)
    singleton_job("mail")(lambda: None).enqueue()
    assert [report.name for report in ticked()] == ["mail"]
    [told] = [record.getMessage() for record in caplog.records if "Monitoring" in record.message]
    assert told.startswith("Monitoring does not see this server, because its mark could not be recorded: ")
    assert "\n" not in told


@pytest.mark.slow
@pytest.mark.on_database("postgresql", "mysql")  # on SQLite every write waits for the only writer
@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_a_mark_does_not_wait_for_long(caplog: pytest.LogCaptureFixture) -> None:
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        pytest.skip("MySQL limits the time of SELECTs only")
    ticked()
    passes().update(seen_at=DBNow() - 2 * MARK_EVERY)
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:  # the server itself must not end the wait
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 3600")
    begun, enough = Event(), Event()

    def be_in_the_way() -> None:
        try:
            with transaction.atomic():
                passes().update(pid=1)
                begun.set()
                assert enough.wait(PATIENCE)
        finally:
            connection.close()

    with ThreadPoolExecutor() as others:
        other = others.submit(be_in_the_way)
        assert begun.wait(PATIENCE)
        ticked()
        enough.set()
        other.result(PATIENCE)
    assert "Monitoring does not see this server" in caplog.text
    ticked()
    assert passes().get().pid != 1
