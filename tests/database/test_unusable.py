"""What is said of a database that refuses; `processes/test_wrong_set_ups.py` has the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import DatabaseError, Error, OperationalError, ProgrammingError, connection, transaction
from django.utils.connection import ConnectionDoesNotExist

from django_singlejob import DatabaseUnusable, UnsafeTransaction, job_lock, singleton_job
from django_singlejob.database.errors import is_connection_lost, is_transient
from django_singlejob.database.unusable import place_of, refusal, refused
from django_singlejob.exceptions import Lack
from django_singlejob.locking.acquire import acquire as usual_acquire
from django_singlejob.models import JobLock, OneOffJob
from django_singlejob.running import runner
from django_singlejob.running.runner import Run, outcome_of
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.pruning import PRUNING
from django_singlejob.worker.tick import Plan
from tests.children import ROOT
from tests.database.test_errors import an_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django.db.models import Model
    from pytest_django import Settings

    from django_singlejob import Lease
    from django_singlejob.locking.request import LockRequest, Refusal
    from tests.fixtures import AddDatabase

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]


@contextmanager
def renamed(model: type[Model]) -> Iterator[None]:
    """Its table has another name."""
    table = model._meta.db_table
    rename(table, "elsewhere")
    try:
        yield
    finally:
        rename("elsewhere", table)


def rename(old: str, new: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


@pytest.fixture
def no_locks() -> Iterator[None]:
    with renamed(JobLock):
        yield


def sqlites(name: str, words: str = "") -> Error:
    error = OperationalError("whatever it says")
    error.__cause__ = cause = Exception(words)
    cause.sqlite_errorname = name  # type: ignore[attr-defined]
    return error


BY_CODE = {
    Lack.TABLES: ["42P01", "42703", 1146, 1054],
    Lack.DATABASE: ["3D000", 1049],
    Lack.LOGIN: ["28000", "28P01", 1045, 1698],
    Lack.RIGHTS: ["42501", 1044, 1142, 1143, 1227, 1370],
    Lack.WRITES: ["25006", 1290, 1792, 1836],
}


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.parametrize(("lack", "code"), [(lack, code) for lack, those in BY_CODE.items() for code in those])
def test_the_code_says_what_it_lacks(lack: Lack, code: object) -> None:
    unusable = refusal(an_error(code), job_name="nightly")
    assert unusable
    assert (unusable.lack, unusable.job_name) == (lack, "nightly")
    # A former primary is replaced by another server.
    assert unusable.is_lasting == (lack is not Lack.WRITES)
    assert is_connection_lost(unusable) == (lack is Lack.WRITES)
    assert not is_transient(unusable)


@pytest.mark.parametrize(
    ("name", "lack"),
    [
        ("SQLITE_NOTADB", Lack.DATABASE),
        ("SQLITE_PERM", Lack.RIGHTS),
        ("SQLITE_AUTH", Lack.RIGHTS),
        ("SQLITE_READONLY", Lack.WRITES),
        ("SQLITE_READONLY_DBMOVED", Lack.WRITES),
    ],
)
def test_sqlites_code_may_be_an_extended_one(name: str, lack: Lack) -> None:
    unusable = refusal(sqlites(name))
    assert unusable
    assert unusable.lack is lack
    assert unusable.is_lasting


def explanation(statement: str) -> Lack | None:
    """Of the error of this statement."""
    with pytest.raises(DatabaseError) as caught, connection.cursor() as cursor:
        cursor.execute(statement)
    unusable = refusal(caught.value)
    return unusable.lack if unusable else None


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT name FROM no_such_table",
        "SELECT no_such_column FROM django_singlejob_joblock",
        "UPDATE django_singlejob_joblock SET no_such_column = 1",
        "INSERT INTO django_singlejob_joblock (no_such_column) VALUES (1)",
    ],
)
def test_a_table_or_a_column_is_missing(statement: str) -> None:
    assert explanation(statement) is Lack.TABLES


@pytest.mark.parametrize(
    "statement", ["SELEKT 'no such table'", "SELECT no_such_function(1) FROM django_singlejob_joblock"]
)
def test_another_error_of_a_statement_asks_for_no_migration(statement: str) -> None:
    assert explanation(statement) is None


# MySQL's own 1, 3, 8, 13, 23 and 26 are about its files: 3 is a disk that is full, and 23 too many open files.
FILES = [an_error(number) for number in (1, 3, 8, 13, 23, 26)]


@pytest.mark.parametrize(
    "error", [an_error("22001"), an_error(1406), sqlites("SQLITE_CONSTRAINT"), ValueError(), DatabaseError(), *FILES]
)
def test_of_another_error_it_says_nothing(error: Exception) -> None:
    assert refusal(error) is None


def test_what_will_come_again_is_a_refusal_whatever_its_code() -> None:
    unusable = refused(an_error("22001"), "'nightly' was not run: ", job_name="nightly")
    assert str(unusable).startswith("'nightly' was not run: the database 'default' (")
    assert str(unusable).endswith(") refuses a statement (22001).")
    assert (unusable.lack, unusable.is_lasting) == (None, False)
    assert not is_connection_lost(unusable)


def test_an_alias_of_its_own_is_named_to_migrate(settings: Settings, add_database: AddDatabase) -> None:
    add_database("locks", NAME="shop", HOST="db.example", PORT=5432, USER="web", PASSWORD="secret")
    settings.SINGLEJOB = {"DATABASE": "locks"}
    unusable = refusal(sqlites("SQLITE_NOTADB"))
    assert unusable
    assert str(unusable) == (
        "The database 'locks' (shop on db.example:5432, as 'web') does not exist, or is not a database (). Create it, "
        "or correct DATABASES['locks']['NAME']."
    )


# --- a connection that DATABASES forbids


@pytest.fixture
def misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "conect_timeout", 5)
    connection.close()


@pytest.mark.usefixtures("misspelt")
def test_an_error_before_the_grant_is_not_the_jobs(caplog: pytest.LogCaptureFixture) -> None:
    @singleton_job
    def nightly() -> None:
        raise AssertionError

    report = outcome_of(Run(nightly))
    assert report.is_hopeless
    assert str(report.error).startswith("'nightly' was not run: ")
    assert str(report.error).endswith(". Correct DATABASES['default'].")
    assert caplog.text == ""  # there is no lock to release


@pytest.mark.usefixtures("misspelt")
@pytest.mark.parametrize("kind", [ZeroDivisionError, TypeError, ProgrammingError])
def test_another_error_is_not_explained_by_a_connection_that_cannot_be_opened(kind: type[Exception]) -> None:
    assert refusal(kind()) is None


def test_an_error_is_not_explained_if_a_connection_can_be_opened() -> None:
    assert refusal(TypeError()) is None
    assert refusal(ImproperlyConfigured()) is None


def test_an_invalid_setting_names_no_connection(settings: Settings) -> None:
    settings.SINGLEJOB = {"DATABASE": 5}
    assert refusal(ImproperlyConfigured()) is None
    settings.SINGLEJOB = {"DATABASE": "elsewhere"}
    assert refusal(ConnectionDoesNotExist()) is None


# --- what calls it


@pytest.mark.usefixtures("no_locks")
def test_a_call_raises_what_it_used_to_with_what_to_do() -> None:
    job: Any = singleton_job("nightly")(lambda: pytest.fail("it ran"))
    with pytest.raises(
        OperationalError, match=r"^'nightly' was not run: the database .+ Run manage\.py migrate\."
    ) as caught:
        job()
    assert isinstance(caught.value, DatabaseUnusable)
    assert isinstance(caught.value, ProgrammingError)
    assert isinstance(caught.value.__cause__, DatabaseError)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_locks")
def test_so_does_a_block() -> None:
    told = r"^The lock 'block' was not acquired: the database .+ Run manage\.py migrate\."
    with pytest.raises(DatabaseUnusable, match=told), job_lock("block"):
        pytest.fail("it ran")


@pytest.mark.usefixtures("no_locks")
def test_no_run_is_no_failure_and_leaves_nothing_for_the_exit(caplog: pytest.LogCaptureFixture) -> None:
    job = singleton_job("nightly")(print)
    report = outcome_of(Run(job))
    assert report.unusable
    assert report.is_hopeless
    assert not caplog.records


def refusing(lack_code: str, times: int = 1000) -> Any:
    """Instead of ``acquire``: each of the first times the database refuses."""
    left = [lack_code] * times

    def acquire(request: LockRequest) -> Lease | Refusal:
        if not left:
            return usual_acquire(request)
        unusable = refusal(an_error(left.pop()), job_name=request.job_name)
        assert unusable
        raise unusable

    return acquire


@pytest.mark.parametrize("plan", [Plan(once=True), Plan(drain=True), Plan()], ids=["once", "drain", "endless"])
def test_a_worker_that_can_run_nothing_ends(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "acquire", refusing("42501"))
    job: Any = singleton_job("nightly")(print)
    job.enqueue()
    reports = list(Worker(plan).work())
    assert {report.is_hopeless for report in reports} == {True}
    assert reports[-1].name in ("nightly", PRUNING.name)
    assert "does not allow this user to do that" in caplog.text
    assert "Traceback" not in caplog.text


def test_one_that_is_read_only_may_be_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "acquire", refusing("25006", times=1))
    job: Any = singleton_job("nightly")(print)
    job.enqueue()
    reports = [*Worker(Plan(max_jobs=2, interval=timedelta(seconds=0.01))).work()]
    assert [report.status for report in reports if report.name == "nightly"][-1] == "successful"
    assert not any(report.is_hopeless for report in reports)


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_what_cannot_be_enqueued_is_named(is_in_transaction: bool) -> None:
    job: Any = singleton_job("nightly")(print)
    enqueue = transaction.atomic(job.enqueue) if is_in_transaction else job.enqueue
    with renamed(OneOffJob):
        told = r"^'nightly' was not enqueued: the database .+ Run manage\.py migrate\."
        with pytest.raises(DatabaseUnusable, match=told) as caught:
            enqueue()
    # The job that enqueues itself did run.
    assert caught.value.job_name == ""


# --- errors that are not the database's


def test_a_job_in_an_event_loop_gets_djangos_own_error() -> None:
    """Like any other use of the ORM there."""
    job = singleton_job("nightly")(lambda: "ran")

    async def call() -> None:
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
            job()
        with pytest.raises(SynchronousOnlyOperation), job_lock("shop"):
            pass
        with pytest.raises(SynchronousOnlyOperation):
            job.enqueue()
        assert await sync_to_async(job)() == "ran"

    async_to_sync(call)()


@pytest.mark.slow
def test_a_test_that_may_not_use_the_database_gets_the_error_of_its_framework(tmp_path: Path) -> None:
    (tmp_path / "test_jobs.py").write_text(
        dedent("""
        from django.test import SimpleTestCase
        from django_singlejob import job_lock, singleton_job

        class TestSimple(SimpleTestCase):
            def test_a_job(self):
                singleton_job("nightly")(print)()

        def test_a_lock():
            with job_lock("nightly"):
                pass
    """)
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", "/dev/null"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    environment["DATABASE_URL"] = "sqlite:///:memory:"
    options = ["--ds=tests.settings", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(
        [*command, *options], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "2 failed" in done.stdout, done.stdout
    assert "Correct DATABASES" not in done.stdout
    assert "not allowed in SimpleTestCase" in done.stdout
    assert 'use the "django_db" mark' in done.stdout


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("postgres://shop:sec/r@t@db/shop", "postgres://***@db/shop"),
        ("file:shop.db?mode=rw&Password=s", "file:shop.db?mode=rw&Password=***"),
        ("dbname=shop password=secret host=db", "dbname=shop password=*** host=db"),
    ],
)
def test_a_password_in_the_name_of_a_database_is_masked(name: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "NAME", name)
    assert place_of("default").startswith(shown)


# --- transactions


def test_what_to_do_in_a_transaction_depends_on_what_was_asked_for() -> None:
    job = singleton_job("nightly")(print)
    with transaction.atomic(), pytest.raises(UnsafeTransaction, match=r"Call the job's \.enqueue\(\) instead"):
        job()
    with transaction.atomic(), pytest.raises(UnsafeTransaction) as refusal, job_lock("nightly"):
        pass
    assert "enqueue" not in str(refusal.value)
    assert "Take the lock first, and begin the transaction inside its block" in str(refusal.value)
