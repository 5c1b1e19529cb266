"""A pass is marked for monitoring, and goes on if it cannot be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_singlejob import singleton_job
from django_singlejob.models.locks import locks
from django_singlejob.models.passes import MARK_EVERY, WorkerPassQuerySet, passes
from django_singlejob.process.clock import DBNow
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.contract.acts import ticked
from tests.waiting import PATIENCE

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def marked() -> list[list[str]]:
    return list(passes().values_list("queues", flat=True))


@pytest.mark.parametrize("mode", ["once", "drain"])
def test_a_pass_is_marked_with_its_queues(mode: str) -> None:
    list(Worker(Plan(once=mode == "once", drain=mode == "drain", queues=["mail"])).work())
    assert marked() == [["mail"]]
    assert not locks().exists()


def test_a_worker_that_goes_on_is_not_since_it_has_a_lock() -> None:
    singleton_job("mail")(lambda: None).enqueue()
    list(Worker(Plan(max_jobs=1, interval=timedelta(seconds=0.01))).work())
    assert marked() == []


def test_all_but_the_first_of_many_servers_ask_one_question() -> None:
    ticked()
    with CaptureQueriesContext(connection) as queries:
        ticked()
    assert len([query for query in queries if "workerpass" in query["sql"]]) == 1


def test_a_mark_that_fails_ends_no_pass(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")
        return True

    monkeypatch.setattr(WorkerPassQuerySet, "mark", fail)
    singleton_job("mail")(lambda: None).enqueue()
    assert [report.name for report in ticked()] == ["mail"]
    [told] = [record.getMessage() for record in caplog.records if "Monitoring" in record.message]
    assert told.startswith("Monitoring does not see this pass, because it could not be recorded: ")
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
    assert "Monitoring does not see this pass" in caplog.text
    ticked()
    assert passes().get().pid != 1
