"""System checks: mistakes that cannot work, or that would show only at night."""

import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error as CheckError, Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from django_singlejob import conf, database, registry, timeline
from django_singlejob.exceptions import InvalidSchedule

if django.VERSION >= (6, 0):
    # Its own check asks our backend; only a module that a project imports later might import it.
    import django.tasks

# Of a traceback, what is not the project's own.
_FRAMEWORK = ("<", *(str(Path(str(module.__file__)).parent) + os.sep for module in (conf, django)))
# Shorter leases are for tests.
SHORT_LEASE = timedelta(seconds=6)
# Without these the drivers wait for many minutes. Seconds, but for tcp_user_timeout: milliseconds.
# InnoDB lets a statement wait for a row for 50 seconds, and read_timeout must be longer.
TIMEOUTS = {
    "postgresql": {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5},
    "mysql": {"connect_timeout": 5, "read_timeout": 60, "write_timeout": 60},
}
# Options that name a file with more of them, or that need no network.
ELSEWHERE = {"service", "read_default_file", "unix_socket"}


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E001 unknown keys, E002 impossible values."""
    return [
        CheckError(
            problem,
            hint="Correct settings.SINGLEJOB.",
            id="singlejob.E002" if key is None or key in conf.KEYS else "singlejob.E001",
        )
        for key, problem in conf.problems(getattr(settings, "SINGLEJOB", {}))
    ]


def check_time(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E003: every instant is UTC."""
    if settings.USE_TZ:
        return []
    return [
        CheckError(
            conf.LOCAL_TIME,
            hint="Set USE_TZ = True.",
            id="singlejob.E003",
        )
    ]


def check_jobs(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E004: the jobs can be registered. E005, E008, W003 to W006: they can be run, and one at a time."""
    try:
        conf.options()
    except ImproperlyConfigured:
        return []  # check_settings and check_time say so
    try:
        registry.autodiscover()
    except Exception as error:
        return [
            CheckError(
                f"The jobs cannot be registered: {type(error).__name__}: {error}",
                hint=f"Fix the error in {_origin(error)}; until then no command finds the jobs.",
                id="singlejob.E004",
            )
        ]
    return [message for job in registry.all_jobs() for message in _problems(job)]


def _origin(error: Exception) -> str:
    """Where in the project it was raised: ``/srv/shop/jobs.py, line 12``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_FRAMEWORK)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "the module that this comes from"


def _problems(job: registry.Job) -> Iterator[CheckMessage]:
    yield from _lease_problems(job)
    yield from _lock_problems(job)
    if job.schedule is not None:
        yield from _schedule_problems(job)


def _lease_problems(job: registry.Job) -> Iterator[CheckMessage]:
    lease = job.lease or conf.options().lease
    if not job.heartbeat and job.max_runtime and job.max_runtime > lease:
        yield CheckError(
            f"The job {job.name!r} sends no heartbeats and may run for {job.max_runtime}, but its lease ends after "
            f"{lease}: another server would run it beside this one.",
            hint="Make its lease longer than its max_runtime.",
            obj=job.path,
            id="singlejob.E005",
        )
    elif not job.heartbeat and job.lease is None:
        yield CheckWarning(
            f"The job {job.name!r} sends no heartbeats and has no lease of its own, so its lock is free for others "
            f"{lease} after it began.",
            hint="Give it a lease that is longer than it can ever run.",
            obj=job.path,
            id="singlejob.W004",
        )
    if job.heartbeat and lease < SHORT_LEASE:
        yield CheckWarning(
            f"The job {job.name!r} has a lease of {lease}: one slow heartbeat may cost a healthy holder its lock.",
            hint=f"Make it {SHORT_LEASE} or longer; the default is {conf.Options.lease}.",
            obj=job.path,
            id="singlejob.W003",
        )


def _lock_problems(job: registry.Job) -> Iterator[CheckMessage]:
    if not registry.is_known(job.lock):
        return
    other = registry.get(job.lock)
    if other.lock != job.lock:
        yield CheckWarning(
            f"The job {job.name!r} has the lock {job.lock!r}, but the job {other.name!r} has the lock {other.lock!r}: "
            "they do not exclude each other, and may deadlock in the database.",
            hint="Give them the same lock.",
            obj=job.path,
            id="singlejob.W005",
        )


def _schedule_problems(job: registry.Job) -> Iterator[CheckMessage]:
    try:
        _ = job.policy
    except InvalidSchedule as error:
        yield CheckError(
            f"The schedule of the job {job.name!r} cannot work in the project's time zone: {error}",
            hint="Change the schedule, give the job a time_zone, or correct settings.TIME_ZONE.",
            obj=job.path,
            id="singlejob.E008",
        )
    if names := _required(job.func):
        yield CheckWarning(
            f"The job {job.name!r} has a schedule, but its function needs the arguments {', '.join(map(repr, names))}, "
            "and singleton_worker gives none.",
            hint="Give them defaults, or have run_singleton run the job, with --args.",
            obj=job.path,
            id="singlejob.W006",
        )


def _required(func: Callable[..., Any]) -> list[str]:
    """The arguments without which it cannot be called."""
    try:
        # Of a decorated function the decorator's own: it may be what fills in the others.
        parameters = inspect.signature(func, follow_wrapped=False).parameters.values()
    except Exception:  # a builtin's, or an annotation that cannot be evaluated
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def check_database(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E006: the database is there. E007, W001, W002, W007: see ``_database_problems``."""
    try:
        alias = database.alias()
    except ImproperlyConfigured:
        return []  # check_settings says so
    except ConnectionDoesNotExist as error:
        return [CheckError(str(error), hint="Correct SINGLEJOB['DATABASE'] or DATABASES.", id="singlejob.E006")]
    return list(_database_problems(alias, connections[alias]))


def _database_problems(alias: str, connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    given = connection.settings_dict
    options = given.get("OPTIONS", {})
    if connection.vendor != "postgresql" and given.get("TIME_ZONE") not in (None, "UTC"):
        yield CheckError(
            f"DATABASES[{alias!r}]['TIME_ZONE'] is {given['TIME_ZONE']!r}, but leases are judged in UTC.",
            hint="Remove TIME_ZONE, or name a database without it in SINGLEJOB['DATABASE'].",
            id="singlejob.E007",
        )
    if connection.vendor == "sqlite" and str(options.get("transaction_mode")).upper() != "IMMEDIATE":
        yield CheckWarning(
            f"The SQLite database {alias!r} begins its transactions in the deferred mode, in which one that reads "
            "before it writes fails with 'database is locked' at once, whatever its timeout.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'.",
            id="singlejob.W001",
        )
    if _pool_size(options.get("pool")) < 2:
        yield CheckWarning(
            f"The connection pool of the database {alias!r} has room for one connection, but a running job needs a "
            "second one for its heartbeats.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS']['pool'] = {{'max_size': ...}} to twice your threads.",
            id="singlejob.W002",
        )
    if missing := _missing_timeouts(connection):
        settings = ", ".join(f"{name}={value}" for name, value in missing.items())
        yield CheckWarning(
            f"The database {alias!r} is reached over a network, without {', '.join(missing)}: if the network goes "
            "silent, whatever waits for an answer hangs for many minutes.",
            hint=f"DATABASES[{alias!r}].setdefault('OPTIONS', {{}}).update({settings})",
            id="singlejob.W007",
        )


def check_server(
    app_configs: Sequence[AppConfig] | None, *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W008, W009: what only the server itself knows. It is asked by ``check --database`` and ``migrate``."""
    try:
        alias = database.alias()
    except (ImproperlyConfigured, ConnectionDoesNotExist):
        return []  # check_settings and check_database say so
    if alias not in (databases or ()):
        return []
    try:
        return list(_server_problems(alias))
    except Error:  # The server does not answer. The command that needs it reports that.
        return []


def _server_problems(alias: str) -> Iterator[CheckMessage]:
    if not timeline.is_told(alias):
        yield CheckWarning(
            f"The database {alias!r} does not tell its timeline, so an asynchronous fail-over may repeat fences.",
            hint="Let the role execute pg_current_wal_lsn() and pg_walfile_name(), or replicate synchronously.",
            id="singlejob.W008",
        )
    if database.may_read_the_past(alias):
        yield CheckWarning(
            f"The database {alias!r} is a node of a Galera cluster. It may not know yet what another node has just "
            "committed, such as a one-off that was enqueued there.",
            hint=f"DATABASES[{alias!r}].setdefault('OPTIONS', {{}})['init_command'] = "
            "'SET SESSION wsrep_sync_wait = 1'; see the page 'Run on a cluster' of the documentation.",
            id="singlejob.W009",
        )


def _missing_timeouts(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """Those that the driver needs so as not to wait for ever, with values to begin with."""
    options = connection.settings_dict.get("OPTIONS", {})
    is_elsewhere = not ELSEWHERE.isdisjoint(options)
    if is_elsewhere or not any(map(_is_remote, str(connection.settings_dict.get("HOST", "")).split(","))):
        return {}
    wanted = TIMEOUTS.get(connection.vendor, {})
    return {name: value for name, value in wanted.items() if name not in options}


def _is_remote(host: str) -> bool:
    # A socket, as a file or in the abstract namespace; or this machine.
    return not host.startswith(("/", "@")) and host not in ("", "localhost", "127.0.0.1", "::1")


def _pool_size(pool: Any) -> float:
    """How many connections there can be; psycopg_pool's own default is 4."""
    if not isinstance(pool, dict):
        return 4 if pool else float("inf")
    size = pool.get("max_size") or pool.get("min_size", 4)
    return float(size)
