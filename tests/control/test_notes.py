"""What is noted, and that nothing depends on it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_singlejob import singleton_job
from django_singlejob.control import notes as control
from django_singlejob.control.pausing import pause, resume
from django_singlejob.control.stopping import stop_run
from django_singlejob.jobs import registry
from django_singlejob.locking.clear import clear
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import JobNote, NoteKind, notes
from django_singlejob.models.passes import passes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.marks import SILENT_AFTER
from django_singlejob.process.clock import DBNow
from django_singlejob.worker.due import follow_code
from tests.contract.acts import HOUR, MINUTE, expire, fall_behind, hourly, scheduled, start_run, ticked
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def only(kind: NoteKind) -> JobNote:
    return notes().get(kind=kind)


def test_a_pause_is_noted_with_who_made_it_and_why() -> None:
    until = database_now() + HOUR
    assert pause("nightly", until=until, reason="supplier down", by="anna")
    note = only(NoteKind.PAUSED)
    assert (note.job_name, note.by, note.reason, note.until) == ("nightly", "anna", "supplier down", until)
    assert database_now() - note.at < MINUTE
    assert not pause("nightly", until=until, reason="supplier down", by="bob")  # nothing has changed
    assert resume("nightly", by="bob")
    assert not resume("nightly", by="bob")
    assert only(NoteKind.RESUMED).by == "bob"
    assert notes().count() == 2


def test_a_stop_is_noted() -> None:
    start_run(heartbeat_interval=MINUTE / 6)
    (lock,) = locks().survey()
    assert stop_run(lock, "anna") is None
    assert (only(NoteKind.STOPPED).job_name, only(NoteKind.STOPPED).by) == ("nightly", "anna")
    (lock,) = locks().survey()
    assert stop_run(lock, "bob")
    assert notes().count() == 1


def test_a_lock_that_is_cleared_is_noted_and_one_that_is_taken_over_has_a_run() -> None:
    start_run()
    expire()
    start_run()
    assert not notes().exists()
    expire()
    (lock,) = locks().survey()
    assert clear(lock, force=True, error="It was cleared.")
    assert (only(NoteKind.CLEARED).job_name, only(NoteKind.CLEARED).details) == ("nightly", lock.holder)


def test_a_new_schedule_is_noted_and_one_that_is_gone() -> None:
    job = scheduled(schedule="@hourly")
    follow_code()
    follow_code()
    note = only(NoteKind.SCHEDULE_CHANGED)
    told = json.loads(note.details)
    assert (told["before"], told["after"]) == (["", ""], [job.policy.schedule.text, "UTC"])
    assert note.first_slot == gates().get(name="nightly").next_slot
    registry.forget("nightly")
    singleton_job("nightly")(print)
    follow_code()
    note = notes().latest("pk")
    told = json.loads(note.details)
    assert (told["before"], told["after"]) == ([job.policy.schedule.text, "UTC"], ["", ""])
    assert note.first_slot is None


def test_slots_that_were_given_up_are_noted_and_one_that_is_run_late_has_a_run() -> None:
    job = scheduled(schedule=hourly(ago=30 * MINUTE))
    fall_behind(job, 3)
    ticked()
    note = only(NoteKind.MISSED)
    assert (note.number, note.details) == (2, "coalesced")
    assert note.first_slot
    assert note.last_slot
    assert note.last_slot - note.first_slot == HOUR
    assert runs().get().slot == note.last_slot + HOUR


def test_a_server_that_is_back_is_noted() -> None:
    ticked()
    passes().update(seen_at=DBNow() - SILENT_AFTER - MINUTE)
    ticked()
    note = only(NoteKind.SERVER_BACK)
    assert note.first_slot
    assert note.last_slot
    assert SILENT_AFTER < note.last_slot - note.first_slot < SILENT_AFTER + 2 * MINUTE
    assert json.loads(note.details)["queues"] == []
    passes().update(seen_at=DBNow() - SILENT_AFTER + MINUTE)
    ticked()
    assert notes().filter(kind=NoteKind.SERVER_BACK).count() == 1


def test_hostile_texts_are_escaped() -> None:
    assert pause("nightly", reason="\0\ud800\n" + "x" * 500, by="anna\0")
    assert "\0" not in only(NoteKind.PAUSED).reason


@pytest.mark.parametrize(
    ("act", "is_done"),
    [
        (lambda: pause("nightly"), lambda: gates().paused().exists()),
        (lambda: stop_run(locks().survey()[0], "anna") is None, lambda: locks().get().stopped_by == "anna"),
    ],
)
def test_a_note_that_is_refused_prevents_nothing(
    act: Callable[[], object],
    is_done: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")

    start_run(heartbeat_interval=MINUTE / 6)
    monkeypatch.setattr(type(notes()), "bulk_create", refuse)
    assert act()
    assert is_done()
    assert not notes().exists()
    assert "could not be written" in caplog.text


@pytest.mark.parametrize(
    ("act", "is_done"),
    [
        (lambda: pause("nightly"), lambda: gates().paused().exists()),
        (lambda: stop_run(locks().survey()[0], "anna") is None, lambda: locks().get().stopped_by == "anna"),
    ],
)
@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_what_undoes_the_whole_transaction_is_told(
    act: Callable[[], object], is_done: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the connection is lost: then nothing is paused, so no pause is reported."""

    def lose_all(*_: Any, **__: Any) -> None:
        connection.needs_rollback = True
        monkeypatch.setattr(connection, "savepoint_rollback", refuse)
        raise DatabaseError

    def refuse(*_: Any) -> None:
        raise DatabaseError

    start_run(heartbeat_interval=MINUTE / 6)
    monkeypatch.setattr(type(notes()), "bulk_create", lose_all)
    answer = None
    with suppress(DatabaseError):
        answer = act()
    assert not (answer and not is_done())


@pytest.mark.slow
@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_a_table_of_notes_that_is_locked_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the pause would keep the gate."""
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        pytest.skip("MySQL limits the time of SELECTs only")
    begun, enough = Event(), Event()

    def lock_it() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                if connection.vendor == "mysql":
                    cursor.execute("LOCK TABLES django_singlejob_jobnote WRITE")
                else:
                    cursor.execute("LOCK TABLE django_singlejob_jobnote")
                begun.set()
                assert enough.wait(PATIENCE)
                if connection.vendor == "mysql":
                    cursor.execute("UNLOCK TABLES")
        finally:
            connection.close()

    with ThreadPoolExecutor() as others:
        other = others.submit(lock_it)
        assert begun.wait(PATIENCE)
        try:
            assert pause("nightly")
            control.noted(NoteKind.RESUMED, "nightly")
        finally:
            enough.set()
        other.result(PATIENCE)
    assert gates().paused().exists()
    assert caplog.text.count("could not be written") == 2


def test_old_notes_are_surplus() -> None:
    control.noted(NoteKind.PAUSED, "nightly")
    control.noted(NoteKind.RESUMED, "nightly")
    notes().filter(kind=NoteKind.PAUSED).update(at=DBNow() - timedelta(days=31))
    assert [note.kind for note in notes().surplus(timedelta(days=30))] == [NoteKind.PAUSED]
