"""`singleton_migrate`, called in this process: its arguments, what it says, and its exit status. `processes/` covers
races, deaths and signals."""

from __future__ import annotations

import sys
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.db import DatabaseError, OperationalError
from django.db.migrations import Migration
from django.utils import timezone

from django_singlejob.exceptions import DatabaseUnreachable
from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.contract.acts import everything, last_run, start_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

LOCK = "django_singlejob.migrate"
EX_UNAVAILABLE, EX_TEMPFAIL, EX_CONFIG = 69, 75, 78

EXISTS = OperationalError(1050, "Table 'goods' already exists")
DJANGOS: Any = load_command_class("django.core", "migrate")


class Migrate(BaseCommand):
    """The project's own command `migrate`."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1
        self.calls: list[dict[str, Any]] = []
        self.act: Callable[[], object] = lambda: None

    def migration_progress_callback(self, action: str, migration: Any = None, fake: bool = False) -> None:
        pass

    def fail_at(self, *names: str, error: Exception = EXISTS) -> None:
        """Begin these migrations, and fail at the last one."""
        for name in names:
            self.migration_progress_callback("apply_start", Migration(name, "shop"))
        raise error

    def add_arguments(self, parser: Any) -> None:
        DJANGOS.add_arguments(parser)
        parser.add_argument("--tenant")

    def handle(self, **options: Any) -> None:
        if options["check_unapplied"]:
            if self.left:
                sys.exit(1)
            return
        self.calls.append(options)
        self.stdout.write("  Applying shop.0001_initial...", ending="")
        self.act()
        self.stdout.write(" OK")
        self.left = 0


@pytest.fixture
def migrate(monkeypatch: pytest.MonkeyPatch) -> Migrate:
    command = Migrate()
    monkeypatch.setitem(get_commands(), "migrate", command)
    return command


def told(*words: str, **options: Any) -> str:
    output = StringIO()
    call_command("singleton_migrate", *words, stdout=output, stderr=output, no_color=True, **options)
    return output.getvalue()


def refusal(*words: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(CommandError) as refused:
        told(*words, **options)
    return refused.value.returncode, str(refused.value)


# --- what it does


def test_if_nothing_is_left_it_says_so_and_takes_no_lock() -> None:
    before = everything()
    assert told() == "Nothing to migrate.\n"
    assert told(verbosity=0) == ""
    assert everything() == before


def test_a_copy_of_production_that_runs_nothing_is_migrated_all_the_same(migrate: Migrate, settings: Settings) -> None:
    settings.SINGLEJOB = {"ENABLED": False}
    told()
    assert len(migrate.calls) == 1


def test_it_calls_migrate_under_the_lock_and_records_the_run(migrate: Migrate) -> None:
    migrate.act = lambda: held.extend(JobLock.objects.values_list("name", flat=True))
    held: list[str] = []
    assert told() == "  Applying shop.0001_initial... OK\n"
    assert held == [LOCK]
    run = last_run(LOCK)
    assert (run.status, run.trigger) == ("successful", "command")
    assert told() == "Nothing to migrate.\n"
    assert len(migrate.calls) == 1


def test_the_arguments_of_migrate_are_passed_on_even_those_that_only_the_project_has(migrate: Migrate) -> None:
    told("shop", "0002", "--fake", "--fake-initial", "--no-input", "--tenant=blue", "--database=default", "-v2")
    (given,) = migrate.calls
    assert (
        given.items()
        >= {
            "app_label": "shop",
            "migration_name": "0002",
            "fake": True,
            "fake_initial": True,
            "interactive": False,
            "tenant": "blue",
            "database": "default",
            "verbosity": 2,
        }.items()
    )
    assert not {"wait", "lease"} & given.keys()


@pytest.mark.parametrize("option", ["--prune", "--run-syncdb"])
def test_what_migrate_cannot_tell_without_doing_it_is_done(migrate: Migrate, option: str) -> None:
    migrate.left = 0
    told("shop", option)
    assert len(migrate.calls) == 1


def test_the_plan_needs_no_lock() -> None:
    start_run(LOCK)
    before = everything()
    assert told("--plan") == "Planned operations:\n  No planned migration operations.\n"
    assert told("--check") == ""
    assert everything() == before


def test_nor_does_a_check_that_finds_some(migrate: Migrate) -> None:
    with pytest.raises(SystemExit) as ended:
        told("--check")
    assert ended.value.code == 1
    assert not migrate.calls


# --- how it ends


def test_the_errors_of_migrate_are_its_own(migrate: Migrate) -> None:
    for error in ValueError("no price"), CommandError("Conflicting migrations", returncode=3), SystemExit(4):
        migrate.act = partial(raise_, error)
        with pytest.raises(type(error)) as raised:
            told()
        assert raised.value is error
        assert last_run(LOCK).status == "failed"
    assert not JobLock.objects.exists()


def raise_(error: BaseException) -> None:
    raise error


def test_if_another_server_migrates_for_too_long_it_fails(migrate: Migrate) -> None:
    start_run(LOCK)
    holder = JobLock.objects.get().holder
    status, message = refusal(wait=0)
    assert status == EX_TEMPFAIL
    assert message == f"Nothing was migrated: another server ({holder}) migrates, and --wait is over."
    assert not migrate.calls


def test_it_says_once_that_it_waits_and_looks_again(migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = start_run(LOCK)
    holder = JobLock.objects.get().holder
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            migrate.left = 0
            lease.release()

    monkeypatch.setattr("django_singlejob.management.commands.singleton_migrate.sleep", pause)
    assert told() == f"Another server migrates ({holder}): waiting.\nNothing to migrate.\n"
    assert not migrate.calls


def test_if_it_is_paused_nothing_is_migrated(migrate: Migrate) -> None:
    start_run(LOCK).release()
    JobStatus.objects.pause(LOCK)
    assert refusal() == (EX_TEMPFAIL, f"{LOCK}: skipped, paused.")
    assert not migrate.calls


def test_if_the_lease_is_lost_it_fails(migrate: Migrate) -> None:
    migrate.act = lambda: JobLock.objects.all().delete()
    status, message = refusal()
    assert status == EX_TEMPFAIL
    assert f"The lease on {LOCK!r} was lost" in message


@pytest.mark.parametrize("lease", [0, 1e-6])
def test_a_lease_that_is_too_short_is_refused(lease: float) -> None:
    assert "is too short for a lease. Use 0.5 seconds or more." in refusal(lease=lease)[1]


def test_an_unknown_database_is_refused() -> None:
    assert refusal(database="nowhere")[0] == 1


def test_a_wrong_setting_is_explained(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": 5}
    status, message = refusal()
    assert status == EX_CONFIG
    assert message.startswith("SINGLEJOB['LEASE'] is 5, but must be a timedelta")


@pytest.mark.django_db(transaction=True)
def test_if_the_database_is_away_it_is_unreachable(database_away: Away) -> None:
    with database_away():
        status, message = refusal()
    assert status == EX_UNAVAILABLE
    assert message.startswith("The database does not answer")


@pytest.mark.django_db(transaction=True)
def test_so_it_is_if_that_happens_while_it_asks_for_the_lock(migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "django_singlejob.running.runner.acquire"
    monkeypatch.setattr(path, lambda *given, **options: raise_(DatabaseUnreachable("It does not answer.")))
    assert refusal() == (EX_UNAVAILABLE, f"{LOCK}: It does not answer.")


# --- what was begun and not finished


def has_run(status: str, hostname: str = "web-1") -> None:
    facts = {"fence": 1, "token": uuid4(), "trigger": "command", "hostname": hostname, "pid": 1}
    JobRun.objects.create(job_name=LOCK, status=status, started_at=timezone.now(), **facts)


def said_of(migrate: Migrate, *names: str, error: Exception = EXISTS) -> str:
    """What it says of this error of the last of these migrations; empty if it raises the error itself."""
    migrate.act = partial(migrate.fail_at, *(names or ("0002_goods",)), error=error)
    with pytest.raises((CommandError, type(error))) as raised:
        told()
    if isinstance(raised.value, CommandError):
        return str(raised.value)
    assert raised.value is error
    return ""


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize(
    ("status", "how"),
    [("abandoned", "its process died"), ("interrupted", "it was interrupted"), ("failed", "it failed")],
)
def test_it_names_the_migration_and_the_attempt_that_did_not_finish_it(migrate: Migrate, status: str, how: str) -> None:
    has_run(status)
    run, words = JobRun.objects.get(), said_of(migrate)
    assert words.startswith(
        "shop.0002_goods cannot be applied: 1050: Table 'goods' already exists. An earlier attempt did not finish it: "
        f"run {run.pk} on web-1, which began at {run.started_at:%Y-%m-%d %H:%M:%S} UTC ({how}). "
    )
    assert words.endswith("run manage.py singleton_migrate shop 0002_goods --fake.")


@pytest.mark.on_database("mysql")
def test_it_names_the_attempt_that_was_cut_off_rather_than_those_that_failed_because_of_it(migrate: Migrate) -> None:
    for status, hostname in ("failed", "web-1"), ("abandoned", "web-2"), ("failed", "web-3"):
        has_run(status, hostname)
    assert " on web-2, " in said_of(migrate)


@pytest.mark.on_database("mysql")
def test_or_the_first_that_failed_since_the_last_success(migrate: Migrate) -> None:
    for status, hostname in ("abandoned", "web-1"), ("successful", "web-2"), ("failed", "web-3"), ("failed", "web-4"):
        has_run(status, hostname)
    assert " on web-3, " in said_of(migrate)


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("before", [[], ["abandoned", "successful"], ["running"]], ids=str)
def test_it_says_nothing_if_no_earlier_attempt_was_cut_off(migrate: Migrate, before: list[str]) -> None:
    for status in before:
        has_run(status)
    assert said_of(migrate) == ""


@pytest.mark.on_database("mysql")
@pytest.mark.parametrize("error", [OperationalError(1205, "Lock wait timeout"), DatabaseError("no code")], ids=str)
def test_nor_about_another_error(migrate: Migrate, error: Exception) -> None:
    has_run("abandoned")
    assert said_of(migrate, error=error) == ""


@pytest.mark.on_database("mysql")
def test_nor_if_another_migration_was_applied_first(migrate: Migrate) -> None:
    has_run("abandoned")
    assert said_of(migrate, "0001_initial", "0002_goods") == ""


@pytest.mark.on_database("sqlite", "postgresql")
def test_nor_on_a_database_that_rolls_back(migrate: Migrate) -> None:
    has_run("abandoned")
    assert said_of(migrate) == ""
