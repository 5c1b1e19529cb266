"""The history is a record, never a condition: no fault in it fails, repeats or prevents a run."""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import Error, connection, connections, transaction

from django_singlejob import current_run, singleton_job
from django_singlejob.conf import ZERO
from django_singlejob.locking import at_exit, recording
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import Ending
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from tests.contract.acts import (
    HOUR,
    SECOND,
    all_at_once,
    expire,
    gate,
    is_free,
    last_run,
    lock,
    start_run,
    statements,
)
from tests.contract.broken_history import History, each_trouble, history
from tests.databases import APPS
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from tests.fixtures import Elsewhere

__all__ = ["history"]

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process", "breakable_connection"),
]

ROUNDS = int(os.environ.get("SINGLEJOB_TEST_ROUNDS", "30"))


@pytest.fixture
def reported(caplog: pytest.LogCaptureFixture) -> Any:
    """The logged errors about the history: the facts of each, and the whole line."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
@each_trouble
def test_every_run_is_run_once_and_told_to_the_log(history: History, trouble: str, reported: Any) -> None:
    ran = []

    @singleton_job
    def nightly(number: int) -> int:
        ran.append(number)
        return number * 2

    with history.broken(trouble):
        returned = [nightly(number) for number in range(ROUNDS)]
        assert is_free()
    assert returned == [2 * number for number in range(ROUNDS)]
    assert ran == list(range(ROUNDS))
    assert gate().run_count == ROUNDS
    assert not runs().exists()
    lines = reported()
    assert len(lines) == ROUNDS
    for line in lines:
        assert line.startswith("A run of 'nightly', or its end, is missing from the history (")
        facts = json.loads(line[line.index("{") :])
        assert (facts["job_name"], facts["status"], facts["trigger"], facts["pid"]) == (
            "nightly",
            "successful",
            "call",
            os.getpid(),
        )
        assert facts.keys() == {
            *("job_name", "fence", "token", "trigger", "slot", "attempt", "hostname", "pid", "started_at", "status"),
            *("lock", "retried_slot"),
            *("duration", "acquire_duration", "error", "traceback", "origin", "output", "requested_by"),
        }


@pytest.mark.slow
@each_trouble
def test_a_run_whose_end_cannot_be_recorded_is_told_to_the_log_and_ends_as_an_orphan(
    history: History, trouble: str, reported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_in(history, trouble)
    assert last_run().status == "running"
    (line,) = reported()
    assert line.startswith("A run of 'nightly', or its end, is missing from the history (")
    assert '"status": "failed", ' in line
    assert "ZeroDivisionError: division by zero" in line
    assert (gate().last_status, gate().consecutive_failures) == ("failed", 1)
    come_back(monkeypatch)
    call_command("clear_stale_locks")
    assert (last_run().status, last_run().error) == ("abandoned", recording.ORPHANED)
    assert (gate().last_status, gate().consecutive_failures) == ("failed", 1)


def end_in(history: History, trouble: str, job_name: str = "nightly") -> None:
    """Run a job at whose end the history is broken."""
    trap = history.broken(trouble)

    @singleton_job(job_name)
    def job() -> None:
        trap.__enter__()
        raise ZeroDivisionError("division by zero")

    try:
        with pytest.raises(ZeroDivisionError):
            job()
    finally:
        trap.__exit__(None, None, None)
    assert is_free(job_name)


def come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time during which the process skips the history is over."""
    monkeypatch.setattr(recording, "_away_until", float("-inf"))


@pytest.mark.slow
@each_trouble
def test_a_takeover_and_a_clear_go_on(
    history: History, trouble: str, reported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("taken over", "cleared"):
        start_run(name)
        expire(name)
    with history.broken(trouble):
        start_run("taken over").release()
        assert clear(lock("cleared"), force=True)
    for name in ("taken over", "cleared"):
        assert (gate(name).last_status or "abandoned") == "abandoned"
    ends = [line for line in reported() if "is missing from the history (" in line and '"status": "abandoned"' in line]
    assert len(ends) == 2
    come_back(monkeypatch)
    call_command("clear_stale_locks")
    assert [run.status for run in runs().order_by("pk")] == ["abandoned"] * 2


def test_a_run_without_a_row_whose_holder_died_is_told(
    history: History, reported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with history.broken("full"):
        start_run()
    expire()
    come_back(monkeypatch)
    assert clear(lock())
    assert not runs().exists()
    (line,) = reported()
    assert line.startswith("A run of 'nightly', or its end, is missing from the history (it has no row): ")
    assert '"status": "abandoned"' in line


@pytest.mark.slow
@each_trouble
def test_what_a_process_that_exits_leaves_is_released(history: History, trouble: str) -> None:
    lease = start_run()
    at_exit.announce(lease.token, "nightly")
    with history.broken(trouble):
        at_exit.release_at_exit()
    assert is_free()


@pytest.mark.slow
@each_trouble
def test_it_is_waited_for_once_and_not_at_every_run(
    history: History, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "AWAY_FOR", float("inf"))
    job = singleton_job("nightly")(lambda: None)
    with history.broken(trouble):
        job()
        with statements("jobrun") as sent:
            for _ in range(10):
                job()
    assert not sent


@pytest.mark.on_database("postgresql", "mysql")
def test_locked_at_the_end_for_longer_than_a_lease(history: History, elsewhere: Elsewhere) -> None:
    """For example, by a VACUUM FULL. An earlier version ran the job twice, and in between called a free lock "held"."""
    running, ran = Event(), []

    @singleton_job(lease=HOUR)
    def nightly() -> str:
        ran.append(lock().token)
        trap.__enter__()
        running.set()
        return "done"

    @singleton_job(lock="nightly")
    def other() -> str:
        return "also done"

    trap = history.broken("locked")
    call = elsewhere(nightly)
    try:
        assert running.wait(PATIENCE)
        assert call.result(PATIENCE) == "done"
        assert elsewhere(other).result(PATIENCE) == "also done"
    finally:
        trap.__exit__(None, None, None)
    assert len(ran) == 1


@pytest.mark.slow
@each_trouble
def test_heartbeats_go_on_until_it_is_released(history: History, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the lease is, waiting for the history blocks neither the heartbeats nor other callers."""
    monkeypatch.setattr(recording, "AWAY_FOR", -1.0)  # each run waits for it

    @singleton_job(lease=6 * SECOND)
    def nightly() -> str:
        before = lock().heartbeats
        eventually(lambda: lock().heartbeats > before)
        return "done"

    with history.broken(trouble):
        assert nightly() == "done"


@pytest.mark.on_database("mysql")
def test_mysql_has_its_connection_cut(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike MariaDB, MySQL has no time limit for writing statements. The server notices a little later."""
    monkeypatch.setitem(connection.__dict__, "mysql_is_mariadb", False)
    job = singleton_job("nightly")(lambda: None)
    with history.broken("locked"):
        assert job.run().status == "successful"
        with statements("jobrun") as sent:
            assert [job.run().status for _ in range(5)] == ["successful"] * 5
    assert not sent
    assert is_free()


def test_a_run_that_the_grant_could_not_record_is_recorded_at_its_end(
    history: History, monkeypatch: pytest.MonkeyPatch, reported: Any
) -> None:
    start = recording.runs().start.__func__  # type: ignore[attr-defined]
    answers = iter([Error("a deadlock")])

    def fails_once(rows: Any, facts: Any) -> int:
        for error in answers:
            raise error
        pk: int = start(rows, facts)
        return pk

    monkeypatch.setattr(type(runs()), "start", fails_once)

    @singleton_job
    def nightly() -> str:
        run = current_run()
        assert run is not None
        assert run.run is None
        return "done"

    outcome = nightly.run()
    assert outcome.run_id == last_run().pk
    assert last_run().status == "successful"
    assert last_run().started_at < last_run().finished_at  # type: ignore[operator]
    assert not reported()


def test_what_says_nothing_of_the_history_does_not_keep_it_away(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(recording.HistoryFailed):
        recording.alone(lambda: connection.connection.close() or runs().exists())
    if connection.vendor != "sqlite":
        start_run()
        assert last_run().status == "running"


def test_no_row_no_run_id(history: History) -> None:
    inside = []

    @singleton_job
    def nightly() -> None:
        inside.append(current_run().run)  # type: ignore[union-attr]

    with history.broken("full" if connection.vendor == "sqlite" else "slow"):
        outcome = nightly.run()
    assert (outcome.status, outcome.run_id, outcome.run) == ("successful", None, None)
    assert inside == [None]


def test_what_a_body_left_open_is_rolled_back_once_even_if_the_history_is_left_out(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = start_run()
    usual, rolled_back = connection.rollback, []

    def roll_back() -> None:
        rolled_back.append("")
        usual()

    monkeypatch.setattr(connections["default"], "rollback", roll_back)
    with history.broken("renamed"):
        assert lease.finish(Ending(status="successful", duration=SECOND))
    # Beside what the body left, only the release that failed, and a transaction for the history alone, which did too.
    assert len(rolled_back) == 3
    assert is_free()


# --- statistics


@pytest.mark.slow
def test_the_mean_of_the_first_twenty_is_exact_and_later_each_counts_for_a_twentieth() -> None:
    durations = [timedelta(seconds=number * 7 % 5) for number in range(20)]
    for duration in durations:
        end_after(duration)
    assert abs(gate().mean_duration - sum(durations, ZERO) / 20) < timedelta(milliseconds=1)  # type: ignore[operator]
    gates().update(mean_duration=100 * SECOND, run_count=1000)
    end_after(120 * SECOND)
    assert gate().mean_duration == 101 * SECOND


def end_after(duration: timedelta) -> None:
    assert start_run().finish(Ending(status="successful", duration=duration))


# --- nothing waits for a process that reads or prunes it


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize(
    "act",
    [
        lambda: [rows.prune() for rows in runs().surplus(ZERO, 0)],
        lambda: runs().abandon_orphans("It is gone."),
        lambda: list(runs().all()),
    ],
    ids=["prune", "orphans", "read"],
)
def test_no_grant_and_no_release_waits_for_it(act: Any) -> None:
    job = singleton_job("nightly")(lambda: None)
    for _ in range(30):
        job()
    start_run("orphan")
    locks().filter(name="orphan")._raw_delete("default")
    running = start_run("running")
    with transaction.atomic():
        act()
        [released, granted] = all_at_once([partial(end, running), lambda: start_run("another").release()])
        assert released
        assert granted
    # Had one of them waited for the history, it would have gone on without it.
    assert last_run("running").status == "successful"
    assert last_run("another").status == "running"


def end(lease: Any) -> bool:
    ended: bool = lease.finish(Ending(status="successful", duration=SECOND))
    return ended


def test_runs_whose_gate_is_gone_are_pruned() -> None:
    job = singleton_job("nightly")(lambda: None)
    for _ in range(5):
        job()
    gates().all().delete()
    call_command("prune_singletons", "--days=30", "--keep=2")
    assert runs().count() == 2
