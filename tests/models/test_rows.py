from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import DatabaseError, Error, connection, transaction
from django.db.models import DateTimeField

from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models import OneOffJob, WorkerPass
from django_singlejob.models.alerts import alerts
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.notes import notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.models.unreadable import Unreadable, reporting
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Order, place
from django_singlejob.tasks.batches import task_rows
from tests.contract.acts import ask, lock, start_run, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.fixtures import Away


pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)


def ended(ago: timedelta) -> None:
    place(Order(job_name="nightly"), [], {}, status="failed", attempt=1, finished_at=DBNow() - ago)


def test_one_that_is_to_be_run_again_meanwhile_is_not_pruned() -> None:
    ended(2 * DAY)

    def retry_first(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if sql.startswith("DELETE"):
            assert one_offs().retry() == 1
        return execute(sql, *others)

    with connection.execute_wrapper(retry_first):
        assert one_offs().surplus(DAY).prune() == 0
    assert one_offs().get().status == "waiting"


def test_those_whose_lock_is_gone_are_put_back_and_no_others() -> None:
    take("shop")
    for token in lock("shop").token, lock("shop").token, "00000000-0000-0000-0000-000000000001":
        place(Order(task_path="shop.tasks.mail", max_attempts=2), [], {}, status="in_progress", token=token, attempt=1)
    place(Order(job_name="nightly"), [], {}, status="done", token="00000000-0000-0000-0000-000000000002")
    assert one_offs().abandon_orphans("Its lock is gone.") == 1
    assert sorted(one_offs().values_list("status", flat=True)) == ["done", "in_progress", "in_progress", "waiting"]


def test_so_is_one_that_somebody_marked_as_in_progress_by_hand() -> None:
    """Such a row has no token at all."""
    place(Order(job_name="nightly", max_attempts=2), [], {}, status="in_progress", attempt=1)
    assert one_offs().abandon_orphans("Its lock is gone.") == 1


# --- rows that somebody wrote past Django

#: A number that is too long for Python, but JSON; and what a terminal in Latin-1 sends. Others cannot even be written.
LONG, LATIN_1 = f"'[{5000 * '9'}]'", "CAST(x'e9' AS TEXT)"


def spoil(table: str, column: str, value: str, where: str = "") -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_singlejob_{table} SET {column} = {value} {where}")


def check_that_it_is_not_granted(table: str, column: str) -> None:
    answer = ask("shop")
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED
    assert answer.detail.startswith(f"The row 'shop' of {table} cannot be read, because of {column} (")
    assert answer.detail.endswith("Correct it in the database.")


@pytest.mark.on_database("sqlite", "postgresql")
def test_a_lock_whose_row_cannot_be_read_does_not_count_as_free() -> None:
    take("shop")
    spoil("joblock", "progress", LONG)
    check_that_it_is_not_granted("JobLock", "progress")


@pytest.mark.on_database("sqlite")
def test_nor_is_a_lock_granted_if_its_gate_cannot_be_read() -> None:
    assert take("shop").release()
    spoil("jobstatus", "paused_by", LATIN_1)
    check_that_it_is_not_granted("JobStatus", "paused_by")


def names_of(found: Iterable[Any]) -> list[str]:
    return sorted(row.name for row in found)


@pytest.mark.on_database("sqlite", "postgresql")
@pytest.mark.parametrize("number", [0, 3, 6])
def test_in_a_list_only_that_row_is_left_out_and_it_is_logged_once(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    locks_of = [f"shop-{each}" for each in range(7)]
    for name in locks_of:
        take(name)
    bad = locks_of[number]
    spoil("joblock", "progress", LONG, f"WHERE name = '{bad}'")
    for _ in range(2):
        assert names_of(locks().watched()) == names_of(locks().survey()) == sorted({*locks_of} - {bad})
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"The row {bad!r} of JobLock cannot be read, because of progress"
    ]


@pytest.mark.on_database("sqlite")
def test_a_row_whose_very_name_cannot_be_read_has_its_bytes_as_its_key() -> None:
    take("shop")
    spoil("joblock", "name", LATIN_1)
    told: list[Unreadable] = []
    with reporting(told.append):
        assert locks().survey() == []
    assert [(row.table, row.key, row.column) for row in told] == [("JobLock", "E9", "name")]


@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_an_error_of_the_connection_is_no_row_s(database_away: Away) -> None:
    told: list[Unreadable] = []
    with database_away(), reporting(told.append), pytest.raises(Error):
        locks().survey()
    assert told == []


@pytest.mark.on_database("sqlite", "postgresql")
def test_one_offs_behind_some_that_cannot_be_read_are_found() -> None:
    rows = [place(Order(job_name="nightly", priority=5), [], {}) for _ in range(5)]
    bad = ", ".join(str(row.pk) for row in rows[:3])
    spoil("oneoffjob", "args", LONG, f"WHERE id IN ({bad})")
    first = one_offs().exclusive().next_due()
    assert first == rows[3]
    assert task_rows().exclusive().lock_due(5) == rows[3:]


def test_an_attempt_can_be_counted_however_many_there_were() -> None:
    place(Order(job_name="nightly"), [], {})
    with pytest.raises(DatabaseError), transaction.atomic():
        one_offs().update(attempt=2**31 - 1)
    one_offs().update(attempt=2_000_000_000)
    assert start_run("nightly", one_off=one_offs().get()).release()


# --- what the database refuses

BOUNDS = (datetime(999, 12, 31, tzinfo=UTC), datetime(9999, 1, 2, tzinfo=UTC))


def test_no_column_admits_an_instant_that_some_database_or_python_cannot_read() -> None:
    start_run("nightly", one_off=place(Order(job_name="nightly"), [], {}))
    instants = dict.fromkeys(("first_seen_at", "seen_at"), BOUNDS[0].replace(year=2026))
    WorkerPass.objects.create(key="all", hostname="web-1", pid=1, **instants)
    notes().create(kind="paused", at=instants["seen_at"])
    alerts().create(subject="nightly", kind="failing")
    tried = 0
    for model in apps.get_app_config("django_singlejob").get_models():
        for field in [] if model._meta.proxy else model._meta.concrete_fields:
            if isinstance(field, DateTimeField):
                for instant in BOUNDS:
                    with pytest.raises(DatabaseError), transaction.atomic():
                        model._base_manager.update(**{field.name: instant})
                    tried += 1
    assert tried == 2 * 29


def test_the_database_refuses_what_no_server_writes() -> None:
    lease = start_run("shop")
    row = place(Order(job_name="nightly"), [], {})
    for rows, changes in (
        (locks(), {"attempt": 0}),
        (locks(), {"heartbeat_interval": timedelta()}),
        (gates(), {"last_status": "nonsense"}),
        (runs(), {"status": "nonsense"}),
        (runs(), {"trigger": "nonsense"}),
        (runs(), {"attempt": 0}),
        (one_offs(), {"status": "nonsense"}),
        (one_offs(), {"max_attempts": 0}),
        (one_offs(), {"priority": 101}),
        (one_offs(), {"priority": -101}),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.update(**changes)
    assert lease.release()
    assert one_offs().get(pk=row.pk).status == "waiting"


def test_django_validates_a_row_by_what_the_database_admits(caplog: pytest.LogCaptureFixture) -> None:
    """It puts the values in the place of columns."""
    row = OneOffJob(job_name="nightly")
    row.validate_constraints()
    row.attempt = 2**31 - 1
    with pytest.raises(ValidationError, match="singlejob_one_off_in_range"):
        row.validate_constraints()
    assert caplog.records == []
