from __future__ import annotations

import logging
import subprocess
import sys
from datetime import timedelta
from functools import partial, wraps
from logging.handlers import RotatingFileHandler, TimedRotatingFileHandler, WatchedFileHandler
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core.checks import CheckMessage, Tags
from django.core.checks.registry import registry as all_checks
from django.db import OperationalError, connections

from django_singlejob import singleton_job
from django_singlejob.apps import CHECKS
from django_singlejob.database import timeline
from django_singlejob.jobs import registry
from django_singlejob.monitoring.checks import (
    check_database,
    check_jobs,
    check_logging,
    check_server,
    check_settings,
    check_time,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import Settings

    from tests.fixtures import AddDatabase

pytest_plugins = "tests.fixtures"
# No test is marked `django_db`, because the checks do not use a database.
pytestmark = pytest.mark.usefixtures("fresh_process")

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "TIME_ZONE": None,
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}
POSTGRESQL: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql", "TIME_ZONE": None, "OPTIONS": {}}


def ids(messages: list[CheckMessage]) -> list[str | None]:
    assert all(message.hint for message in messages), "Each hint says what to do."
    return [message.id for message in messages]


def test_they_are_registered_and_content_with_good_settings() -> None:
    ours = [check_settings, check_time, check_jobs, check_database, check_logging, check_server]
    every = all_checks.get_checks(include_deployment_checks=True)
    found: list[Any] = [check for check in every if check.__module__ == "django_singlejob.apps"]
    assert {check.__name__ for check in found} == {check.__name__ for check in ours}
    assert {*found} == {*CHECKS}
    assert [message for check in found for message in check(None, databases=[])] == []


def test_the_one_that_asks_the_server_is_left_to_check_database() -> None:
    apps.get_app_config("django_singlejob").ready()  # once more, which changes nothing
    every: list[Any] = list(all_checks.get_checks())
    assert [check.tags for check in every if check.__name__ == "check_server"] == [(Tags.database,)]


def test_they_are_imported_only_when_they_run() -> None:
    """Every command of the project loads the app."""
    apps = "INSTALLED_APPS=['django.contrib.contenttypes', 'django_singlejob'], USE_TZ=True"
    code = (
        # Django imports colorama if it is installed, and that imports ctypes.
        "import sys; sys.modules['colorama'] = None;"
        f"import django; from django.conf import settings; settings.configure({apps}); django.setup();"
        "print([name for name in sys.modules if name.startswith(('django_singlejob.', 'cronsim', 'ctypes'))]);"
        "from django.core.checks import run_checks; run_checks();"
        "print('django_singlejob.monitoring.checks' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded, is_imported = done.stdout.splitlines()
    assert "'django_singlejob.models'" in loaded
    for name in (
        "django_singlejob.monitoring.checks",
        "django_singlejob.jobs.registry",
        "django_singlejob.running.runner",
        "cronsim",
        "ctypes",
    ):
        assert f"'{name}'" not in loaded
    assert is_imported == "True"


# --- settings


def test_e001_an_unknown_key(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASES": MINUTE}
    messages = check_settings(None)
    assert ids(messages) == ["singlejob.E001"]
    assert "SINGLEJOB contains the unknown key 'LEASES'" in messages[0].msg


@pytest.mark.parametrize("given", [{"LEASE": 60}, {"HEARTBEATS_PER_LEASE": 3}, "LEASE"])
def test_e002_an_impossible_value(settings: Settings, given: object) -> None:
    settings.SINGLEJOB = given
    messages = check_settings(None)
    assert ids(messages) == ["singlejob.E002"]
    assert "but must be" in messages[0].msg


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("shop.no_such_module.hook", "but it cannot be imported: ModuleNotFoundError: No module named 'shop'"),
        (f"{__name__}.no_such_hook", "but it cannot be imported: ImportError"),
        (f"{__name__}.SQLITE", "but that is not a function."),
    ],
)
def test_e002_a_function_that_is_not_there(settings: Settings, hook: str, problem: str) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": hook}
    messages = check_settings(None)
    assert ids(messages) == ["singlejob.E002"]
    assert f"SINGLEJOB['RECORD_COMMAND'] is {hook!r}, {problem}" in messages[0].msg


@pytest.mark.parametrize("hook", [f"{__name__}.ids", ids, "none"])
def test_a_function_that_is_there_is_fine(settings: Settings, hook: object) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": hook}
    assert check_settings(None) == []


def test_every_mistake_is_told_at_once(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": 60, "LEASES": 60, "HOSTNAME": ""}
    assert sorted(map(str, ids(check_settings(None)))) == ["singlejob.E001", "singlejob.E002", "singlejob.E002"]


def test_e003_local_time(settings: Settings) -> None:
    settings.USE_TZ = False
    assert ids(check_time(None)) == ["singlejob.E003"]


# --- jobs


@pytest.mark.parametrize(
    "code", ["1 / 0", "1 +", "@singleton_job('No Name')\ndef job(): ...", "@singleton_job('x')(5)"]
)
def test_e004_jobs_that_cannot_be_registered(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    app = tmp_path / tmp_path.name  # a name of its own: modules are imported once
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "jobs.py").write_text(f"from django_singlejob import singleton_job\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app.name]
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.E004"]
    assert messages[0].msg.startswith("Some jobs cannot be registered: ")
    assert str(messages[0].hint).startswith(f"Fix the error in {app / 'jobs.py'}, line 2.")


def test_e004_is_not_what_settings_are(settings: Settings) -> None:
    settings.SINGLEJOB = {"AUTODISCOVER": "jobs"}
    assert check_jobs(None) == []
    assert ids(check_settings(None)) == ["singlejob.E002"]


def test_e005_a_job_that_outlives_its_lease() -> None:
    singleton_job("nightly", heartbeat=False, lease=MINUTE, max_runtime=MINUTE + SECOND)(print)
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.E005"]
    assert messages[0].obj == "builtins.print"
    assert (
        "'nightly' sends no heartbeats and may run for 0:01:01, but its lease expires after 0:01:00, "
        in messages[0].msg
    )


def test_w003_a_short_lease() -> None:
    singleton_job("nightly", lease=5 * SECOND)(print)
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.W003"]
    assert messages[0].obj == "builtins.print"
    assert "'nightly' has a lease of 0:00:05, so one slow heartbeat can cost" in messages[0].msg
    assert messages[0].hint == "Use a lease of 0:00:06 or longer. The default is 0:01:00."


def test_w004_no_heartbeats_and_no_lease_of_its_own(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": 2 * MINUTE}
    singleton_job("nightly", heartbeat=False)(print)
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.W004"]
    assert messages[0].obj == "builtins.print"
    assert "'nightly' sends no heartbeats and has no lease of its own" in messages[0].msg
    assert "0:02:00 after a run starts" in messages[0].msg


LEFT_OUT = "*/10 2 * 3 7L"  # only in the hour that Rome's clocks skip


@pytest.mark.parametrize(("zone", "schedule"), [("Europe/Rome", LEFT_OUT), ("localtime", "@daily")])
def test_e004_a_schedule_that_is_none_in_the_projects_time_zone(settings: Settings, zone: str, schedule: str) -> None:
    singleton_job("nightly", schedule=schedule)(print)
    singleton_job("weekly", schedule=schedule, time_zone="UTC")(print)
    assert check_jobs(None) == []
    settings.TIME_ZONE = zone
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.E004"]
    assert "The schedule of the job 'nightly', builtins.print, cannot work in the project's time zone: '" in (
        messages[0].msg
    )
    assert str(messages[0].hint).startswith(
        "Change the schedule, give the job a time_zone, or correct settings.TIME_ZONE."
    )


def test_w005_jobs_with_each_others_name_as_their_lock() -> None:
    singleton_job("import", lock="export")(print)
    singleton_job("export", lock="import")(print)
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.W005", "singlejob.W005"]
    assert messages[0].obj == "builtins.print"
    assert messages[0].msg == (
        "The job 'export' has the lock 'import', but the job 'import' has the lock 'export', so they do not exclude "
        "each other and may deadlock in the database."
    )
    assert messages[0].hint == "Give both jobs the same lock."


def test_w005_also_in_a_circle() -> None:
    for name, lock in ("one", "two"), ("two", "three"), ("three", "one"):
        singleton_job(name, lock=lock)(print)
    assert ids(check_jobs(None)) == ["singlejob.W005"] * 3


@pytest.mark.parametrize("locks", [("a", "a"), ("b", "b"), ("shared", "shared"), ("shared", None), (None, None)])
def test_locks_that_are_well(locks: tuple[str | None, str | None]) -> None:
    for name, lock in zip("ab", locks, strict=True):
        singleton_job(name, lock=lock)(print)
    assert check_jobs(None) == []


def needs_two(customer: str, *, day: str, copies: int = 1) -> None: ...


class Report:
    def __call__(self, customer: str) -> None: ...


@pytest.mark.parametrize(
    ("func", "missing"),
    [
        (needs_two, "'customer', 'day'"),
        (partial(needs_two, "Rossi"), "'day'"),
        (Report(), "'customer'"),
    ],
    ids=["function", "partial", "object"],
)
def test_w006_a_schedule_gives_no_arguments(func: Any, missing: str) -> None:
    singleton_job("nightly", schedule="@daily")(func)
    messages = check_jobs(None)
    assert ids(messages) == ["singlejob.W006"]
    assert messages[0].obj == registry.get("nightly").path
    assert f"The job 'nightly' has a schedule, but its function requires the arguments {missing}," in messages[0].msg


def optional(copies: int = 1, *days: str, **options: str) -> None: ...


@wraps(needs_two)
def filled_in(*given: Any) -> None: ...


class Unreadable:
    @property
    def __signature__(self) -> object:
        raise NameError("name 'Customer' is not defined")

    def __call__(self) -> None: ...


@pytest.mark.parametrize("func", [optional, filled_in, max, Unreadable()])
def test_functions_that_need_none_or_cannot_be_read(func: Any) -> None:
    singleton_job("nightly", schedule="@daily")(func)
    assert check_jobs(None) == []


def test_without_a_schedule_arguments_are_for_the_caller() -> None:
    singleton_job("nightly")(needs_two)
    assert check_jobs(None) == []


def test_settings_that_cannot_be_read_do_not_keep_the_jobs_from_being_checked(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": 60}
    singleton_job("nightly", heartbeat=False)(print)
    assert check_jobs(None) == []


def test_w003_a_short_lease_for_the_whole_project(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": SECOND}
    singleton_job("nightly")(print)
    assert ids([*check_settings(None), *check_jobs(None)]) == ["singlejob.W003"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lease": 6 * SECOND},
        {"heartbeat": False, "lease": SECOND},
        {"heartbeat": False, "lease": MINUTE, "max_runtime": MINUTE},
        {"lease": MINUTE, "max_runtime": 60 * MINUTE},
    ],
)
def test_jobs_that_are_well(settings: dict[str, Any]) -> None:
    singleton_job("nightly", **settings)(print)
    assert check_jobs(None) == []


# --- the database


@pytest.fixture
def check(add_database: AddDatabase, settings: Settings) -> Any:
    """The messages about locks on a database with these settings."""

    def check(**differences: Any) -> list[CheckMessage]:
        if differences.get("ENGINE") == MYSQL["ENGINE"]:
            pytest.importorskip("MySQLdb")  # without it Django cannot even name the vendor
        add_database("locks", **differences)
        settings.SINGLEJOB = {**settings.SINGLEJOB, "DATABASE": "locks"}
        return check_database(None)

    return check


def test_e006_a_database_that_is_not_there(settings: Settings) -> None:
    settings.SINGLEJOB = {"DATABASE": "locks"}
    messages = check_database(None)
    assert ids(messages) == ["singlejob.E006"]
    assert messages[0].msg == (
        "SINGLEJOB['DATABASE'] is 'locks', but DATABASES has no such alias. Use one of: default."
    )
    assert check_server(None, databases=["default"]) == []


def test_settings_that_cannot_be_read_are_told_once(settings: Settings) -> None:
    settings.SINGLEJOB = {"DATABASE": ""}
    assert check_database(None) == []
    assert ids(check_settings(None)) == ["singlejob.E002"]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Karachi"])
def test_e007_a_database_with_a_time_zone_of_its_own(check: Any, zone: str) -> None:
    messages = check(**SQLITE | {"TIME_ZONE": zone})
    assert ids(messages) == ["singlejob.E007"]
    assert f"DATABASES['locks']['TIME_ZONE'] is {zone!r}" in messages[0].msg


def test_utc_is_no_time_zone_of_its_own_and_postgresql_may_have_one(check: Any) -> None:
    assert check(**SQLITE | {"TIME_ZONE": "UTC"}) == []
    del connections["locks"]
    assert check(**POSTGRESQL | {"TIME_ZONE": "Europe/Berlin"}) == []


@pytest.mark.parametrize("options", [{}, {"transaction_mode": None}, {"transaction_mode": "DEFERRED"}])
def test_w001_sqlite_without_immediate_transactions(check: Any, options: dict[str, Any]) -> None:
    messages = check(**SQLITE | {"OPTIONS": options})
    assert ids(messages) == ["singlejob.W001"]
    assert messages[0].hint == "Set DATABASES['locks']['OPTIONS']['transaction_mode'] = 'IMMEDIATE'."


@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate"])
def test_sqlite_with_them(check: Any, mode: str) -> None:
    assert check(**SQLITE | {"OPTIONS": {"transaction_mode": mode}}) == []


@pytest.mark.parametrize(("database", "expected"), [("sqlite", ["singlejob.W010"]), ("postgresql", [])])
def test_w010_single_statements_on_another_database(
    check: Any, settings: Settings, database: str, expected: list[str]
) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "SINGLE_STATEMENT": True}
    given = POSTGRESQL if database == "postgresql" else SQLITE | {"OPTIONS": {"transaction_mode": "IMMEDIATE"}}
    messages = check(**given)
    assert ids(messages) == expected
    assert all("is not PostgreSQL" in message.msg and "round trips" in message.hint for message in messages)


@pytest.mark.parametrize("pool", [{"max_size": 1}, {"min_size": 1}, {"min_size": 1, "max_size": None}])
def test_w002_a_pool_without_room_for_heartbeats(check: Any, pool: object) -> None:
    assert ids(check(**POSTGRESQL | {"OPTIONS": {"pool": pool}})) == ["singlejob.W002"]


@pytest.mark.parametrize("pool", [None, False, True, {}, {"max_size": 2}, {"min_size": 2}, {"timeout": 5}])
def test_a_pool_with_room_and_no_pool(check: Any, pool: object) -> None:
    assert check(**POSTGRESQL | {"OPTIONS": {"pool": pool}}) == []


MYSQL: dict[str, Any] = {"ENGINE": "django.db.backends.mysql", "TIME_ZONE": None, "OPTIONS": {}}
PATIENT = {
    "postgresql": {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5},
    "mysql": {"connect_timeout": 5, "read_timeout": 60, "write_timeout": 60},
}
networked = pytest.mark.parametrize(("database", "vendor"), [(POSTGRESQL, "postgresql"), (MYSQL, "mysql")])


@networked
@pytest.mark.parametrize("host", ["db.example.com", "10.0.0.7", "localhost,db2.example.com"])
def test_w007_a_database_behind_a_network_without_time_outs(check: Any, database: Any, vendor: str, host: str) -> None:
    messages = check(**database | {"HOST": host})
    assert ids(messages) == ["singlejob.W007"]
    assert f"'locks' is reached over a network without {', '.join(PATIENT[vendor])}. " in messages[0].msg


@networked
def test_w007_has_a_hint_that_can_be_pasted(check: Any, database: Any, vendor: str) -> None:
    given = {name: value for name, value in database.items() if name != "OPTIONS"} | {"HOST": "db.example.com"}
    [message] = check(**given, OPTIONS={})
    databases: dict[str, dict[str, Any]] = {"locks": dict(given)}
    exec(message.hint, {"DATABASES": databases})
    assert databases["locks"]["OPTIONS"] == PATIENT[vendor]
    del connections["locks"]
    assert check(**databases["locks"]) == []


def test_w007_names_only_what_is_missing(check: Any) -> None:
    options = {"connect_timeout": 3, "read_timeout": 90}
    [message] = check(**MYSQL | {"HOST": "db.example.com", "OPTIONS": options})
    assert message.hint == "DATABASES['locks'].setdefault('OPTIONS', {}).update(write_timeout=60)"


@pytest.mark.slow
@networked
@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "::1", "/run/socket", "@abstract"])
def test_a_database_on_this_machine_needs_none(check: Any, database: Any, vendor: str, host: str) -> None:
    assert check(**database | {"HOST": host}) == []


@pytest.mark.parametrize(
    ("database", "options"),
    [(POSTGRESQL, {"service": "shop"}), (MYSQL, {"read_default_file": "~/my.cnf"}), (MYSQL, {"unix_socket": "/run/s"})],
)
def test_what_a_file_says_is_not_known(check: Any, database: Any, options: Any) -> None:
    assert check(**database | {"HOST": "db.example.com", "OPTIONS": options}) == []


def test_sqlite_has_no_network(check: Any) -> None:
    assert check(**SQLITE | {"HOST": "db.example.com"}) == []


PROJECT = """
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["django_singlejob"] + ["django_tasks"] * (django.VERSION < (6, 0)),
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKS={
        "default": {
            "BACKEND": "django_singlejob.backends.SingleJobBackend",
            "OPTIONS": {"attempts": 1, "max_attempts": 0},
        }
    },
)
django.setup()
call_command("check")
"""


def test_options_of_the_backend_of_tasks_are_looked_at_wherever_tasks_are_imported() -> None:
    checked = subprocess.run([sys.executable, "-c", PROJECT], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 1
    assert "(singlejob.E009) TASKS['default']['OPTIONS'] contains the unknown key 'attempts'." in checked.stderr
    assert "(singlejob.E010) TASKS['default']['OPTIONS']['max_attempts'] is 0, but must be 1 " in checked.stderr


# --- what only the server knows


def check_default() -> list[CheckMessage]:
    return check_server(None, databases=["default"])


@pytest.mark.django_db
def test_nothing_is_wrong_with_a_server_of_ours() -> None:
    assert check_default() == []


@pytest.mark.on_database("postgresql")
@pytest.mark.django_db
def test_w008_a_server_that_does_not_tell_its_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "SQL", "no_such_function()")
    [message] = check_default()
    assert message.id == "singlejob.W008"
    assert "'default' does not report its timeline" in message.msg


@pytest.mark.on_database("mysql")
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([("wsrep_on", "ON"), ("wsrep_sync_wait", "0")], ["singlejob.W009"]),
        ([("wsrep_on", "ON"), ("wsrep_sync_wait", "6")], ["singlejob.W009"]),
        ([("wsrep_on", "ON"), ("wsrep_sync_wait", "1")], []),
        ([("wsrep_on", "ON"), ("wsrep_sync_wait", "7")], []),
        ([("wsrep_on", "OFF"), ("wsrep_sync_wait", "0")], []),
        ([], []),
    ],
)
def test_w009_a_node_of_a_galera_cluster(
    monkeypatch: pytest.MonkeyPatch, settings: list[tuple[str, str]], expected: list[str]
) -> None:
    monkeypatch.setattr("django.db.backends.utils.CursorWrapper.fetchall", lambda cursor: settings, raising=False)
    assert ids(check_default()) == expected


def test_a_server_is_asked_only_if_the_database_may_be_asked() -> None:
    assert check_server(None) == []
    assert check_server(None, databases=["other"]) == []


def test_a_server_that_does_not_answer_is_somebody_elses_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(alias: str) -> bool:
        raise OperationalError("it is away")

    monkeypatch.setattr("django_singlejob.monitoring.checks.reports_timeline", fail)
    assert check_default() == []


def test_settings_that_cannot_be_read_ask_no_server(settings: Settings) -> None:
    settings.SINGLEJOB = {"DATABASE": ""}
    assert check_server(None, databases=["default"]) == []


@pytest.mark.parametrize("schedule", ["0 8 13 * 5", "0 8 1-7 * mon"])
def test_w011_days_of_the_month_and_of_the_week(schedule: str) -> None:
    singleton_job("friday-13th", schedule=schedule)(lambda: None)
    (message,) = check_jobs(None)
    assert ids([message]) == ["singlejob.W011"]
    assert "the job runs on each day that is one or the other" in message.msg


@pytest.mark.parametrize("schedule", ["0 8 13 * *", "0 8 */2 * mon", timedelta(hours=1)])
def test_one_kind_of_days_is_fine(schedule: Any) -> None:
    singleton_job("nightly", schedule=schedule)(lambda: None)
    assert check_jobs(None) == []


# --- logging


class OfSeveralProcesses(TimedRotatingFileHandler):
    """One that knows about other processes."""

    def doRollover(self) -> None:  # noqa: N802  (Python has named it)
        pass


@pytest.fixture(params=["", "shop.orders"])
def logger(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """The logger above all, and another one."""
    logger = logging.getLogger(request.param)
    before = [*logger.handlers]
    yield logger
    for handler in [*logger.handlers]:
        if handler not in before:
            logger.removeHandler(handler)
            handler.close()


@pytest.mark.parametrize("kind", [partial(RotatingFileHandler, maxBytes=1_000_000), TimedRotatingFileHandler])
def test_w013_a_file_that_one_of_several_processes_rotates(logger: logging.Logger, kind: Any, tmp_path: Path) -> None:
    handler = kind(tmp_path / "shop.log")
    for each in logger, logging.getLogger("shop"):
        each.addHandler(handler)
    try:
        (message,) = check_logging(None)
    finally:
        logging.getLogger("shop").removeHandler(handler)
    assert ids([message]) == ["singlejob.W013"]
    assert message.msg.startswith(f"A {type(handler).__name__} writes to {str(tmp_path / 'shop.log')!r}.")


@pytest.mark.parametrize("kind", [logging.FileHandler, WatchedFileHandler, RotatingFileHandler, OfSeveralProcesses])
def test_other_files_are_fine(logger: logging.Logger, kind: Any, tmp_path: Path) -> None:
    logger.addHandler(kind(tmp_path / "shop.log"))
    assert check_logging(None) == []
