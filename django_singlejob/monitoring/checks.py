"""System checks for settings and jobs that cannot work, or that would only fail when a job runs."""

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from logging.handlers import RotatingFileHandler, TimedRotatingFileHandler
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error as CheckError, Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist
from django.utils.module_loading import import_string

from django_singlejob import conf
from django_singlejob.database import errors, timeline, transactions
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover, remedy_for, why_not_registered
from django_singlejob.jobs.schedule import Cron, parse
from django_singlejob.process.logs import all_loggers

# Shorter leases are only for tests.
SHORT_LEASE = timedelta(seconds=6)
# Without these, the drivers wait for many minutes. In seconds; tcp_user_timeout is in milliseconds.
# InnoDB lets a statement wait 50 seconds for a row, so read_timeout must be longer.
TIMEOUTS = {
    "postgresql": {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 5},
    "mysql": {"connect_timeout": 5, "read_timeout": 60, "write_timeout": 60},
}
# Options that name a file with further options, or that avoid the network.
ELSEWHERE = {"service", "read_default_file", "unix_socket"}
# How the handlers of Python rotate their files. Others may have one that knows about other processes.
ROLLOVERS = {RotatingFileHandler.doRollover, TimedRotatingFileHandler.doRollover}


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E001: unknown keys. E002: invalid values."""
    given = getattr(settings, "SINGLEJOB", {})
    return [
        CheckError(
            problem,
            hint="Correct the SINGLEJOB setting.",
            id="singlejob.E002" if key is None or key in conf.KEYS else "singlejob.E001",
        )
        for key, problem in [*conf.problems(given), *_problems_of_hook(given)]
    ]


def _problems_of_hook(given: Any) -> Iterator[tuple[str, str]]:
    """The function that says what to record of a command is not imported before it is used."""
    key = "RECORD_COMMAND"
    hook = given.get(key) if isinstance(given, dict) else None
    if not isinstance(hook, str) or "." not in hook:
        return
    try:
        if not callable(import_string(hook)):
            yield key, f"SINGLEJOB[{key!r}] is {hook!r}, but that is not a function."
    except Exception as error:
        yield key, f"SINGLEJOB[{key!r}] is {hook!r}, but it cannot be imported: {type(error).__name__}: {error}"


def check_time(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E003: time zones are enabled, because every instant is in UTC."""
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
    """E004: the jobs can be registered. E005, W003 to W006: they can run, one copy at once. W011: on the days
    that they seem to."""
    try:
        conf.options()
    except ImproperlyConfigured:
        return []  # check_settings and check_time say so
    missing = [
        CheckError(
            why_not_registered(error),
            hint=f"{remedy_for(error)} Until then, these jobs do not run; the others do.",
            id="singlejob.E004",
        )
        for error in autodiscover()
    ]
    return [*missing, *(message for job in registry.all_jobs() for message in _problems(job))]


def _problems(job: registry.Job) -> Iterator[CheckMessage]:
    yield from _lease_problems(job)
    yield from _lock_problems(job)
    if job.schedule is not None:
        yield from _schedule_problems(job)


def _lease_problems(job: registry.Job) -> Iterator[CheckMessage]:
    lease = job.lease or conf.options().lease
    if not job.heartbeat and job.max_runtime and job.max_runtime > lease:
        yield CheckError(
            f"The job {job.name!r} sends no heartbeats and may run for {job.max_runtime}, but its lease expires "
            f"after {lease}, so another server could run it at the same time.",
            hint="Make its lease longer than its max_runtime.",
            obj=job.path,
            id="singlejob.E005",
        )
    elif not job.heartbeat and job.lease is None:
        yield CheckWarning(
            f"The job {job.name!r} sends no heartbeats and has no lease of its own, so another server can "
            f"take over its lock {lease} after a run starts.",
            hint="Give it a lease that is longer than its longest run.",
            obj=job.path,
            id="singlejob.W004",
        )
    if job.heartbeat and lease < SHORT_LEASE:
        yield CheckWarning(
            f"The job {job.name!r} has a lease of {lease}, so one slow heartbeat can cost a healthy holder its lock.",
            hint=f"Use a lease of {SHORT_LEASE} or longer. The default is {conf.Options().lease}.",
            obj=job.path,
            id="singlejob.W003",
        )


def _lock_problems(job: registry.Job) -> Iterator[CheckMessage]:
    if not registry.is_known(job.lock):
        return
    other = registry.get(job.lock)
    if other.lock != job.lock:
        yield CheckWarning(
            f"The job {job.name!r} has the lock {job.lock!r}, but the job {other.name!r} has the lock {other.lock!r}, "
            "so they do not exclude each other and may deadlock in the database.",
            hint="Give both jobs the same lock.",
            obj=job.path,
            id="singlejob.W005",
        )


def _schedule_problems(job: registry.Job) -> Iterator[CheckMessage]:
    yield from _either_day(job)
    if names := _required(job.func):
        yield CheckWarning(
            f"The job {job.name!r} has a schedule, but its function requires the arguments "
            f"{', '.join(map(repr, names))}, and singleton_worker passes none.",
            hint="Give the arguments defaults, or run the job with run_singleton --args.",
            obj=job.path,
            id="singlejob.W006",
        )


def _either_day(job: registry.Job) -> Iterator[CheckMessage]:
    schedule = parse(job.schedule) if isinstance(job.schedule, str) else None
    if isinstance(schedule, Cron) and schedule.is_on_either_day:
        yield CheckWarning(
            f"The schedule {job.schedule!r} of the job {job.name!r} names days of the month and of the week. As in "
            "cron, the job runs on each day that is one or the other.",
            hint="If it has to be both, as in Celery, name only the days of the week, and check the date in the job. "
            "If not, add 'singlejob.W011' to SILENCED_SYSTEM_CHECKS.",
            obj=job.path,
            id="singlejob.W011",
        )


def _required(func: Callable[..., Any]) -> list[str]:
    """The arguments without a default."""
    try:
        # For a decorated function, use the decorator's signature: the decorator may supply the other arguments.
        parameters = inspect.signature(func, follow_wrapped=False).parameters.values()
    except Exception:  # a builtin, or an annotation that cannot be evaluated
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def check_database(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E006: the database alias exists. E007, W001, W002, W007, W010: see ``_database_problems``."""
    try:
        alias = transactions.alias()
    except ImproperlyConfigured:
        return []  # check_settings reports this
    except ConnectionDoesNotExist as error:
        return [CheckError(str(error), hint="Correct SINGLEJOB['DATABASE'] or DATABASES.", id="singlejob.E006")]
    return list(_database_problems(alias, connections[alias]))


def _database_problems(alias: str, connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    given = connection.settings_dict
    options = given.get("OPTIONS", {})
    if connection.vendor != "postgresql" and given.get("TIME_ZONE") not in (None, "UTC"):
        yield CheckError(
            f"DATABASES[{alias!r}]['TIME_ZONE'] is {given['TIME_ZONE']!r}, but leases are measured in UTC.",
            hint="Remove TIME_ZONE, or set SINGLEJOB['DATABASE'] to a database without it.",
            id="singlejob.E007",
        )
    if connection.vendor == "sqlite" and str(options.get("transaction_mode")).upper() != "IMMEDIATE":
        yield CheckWarning(
            f"The SQLite database {alias!r} starts transactions in deferred mode. A transaction that reads before it "
            "writes can then fail with 'database is locked' at once, whatever the timeout.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'.",
            id="singlejob.W001",
        )
    if _pool_size(options.get("pool")) < 2:
        yield CheckWarning(
            f"The connection pool of the database {alias!r} allows only one connection, but a running job needs a "
            "second one for its heartbeats.",
            hint=f"Set DATABASES[{alias!r}]['OPTIONS']['pool'] = {{'max_size': N}}, where N is twice the number of "
            "threads.",
            id="singlejob.W002",
        )
    if connection.vendor != "postgresql" and _wants_single_statement():
        yield CheckWarning(
            f"SINGLEJOB['SINGLE_STATEMENT'] is True, but the database {alias!r} is not PostgreSQL, so each grant and "
            "each release is still a transaction of several statements.",
            hint="Remove SINGLE_STATEMENT, or set SINGLEJOB['DATABASE'] to a PostgreSQL database. Locks are as safe "
            "either way; with PostgreSQL, the setting saves round trips.",
            id="singlejob.W010",
        )
    if missing := _missing_timeouts(connection):
        settings = ", ".join(f"{name}={value}" for name, value in missing.items())
        yield CheckWarning(
            f"The database {alias!r} is reached over a network without {', '.join(missing)}. If the network stops "
            "answering, database calls hang for many minutes.",
            hint=f"DATABASES[{alias!r}].setdefault('OPTIONS', {{}}).update({settings})",
            id="singlejob.W007",
        )


def check_logging(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W013: no log file is rotated by one process while others write to it."""
    return [
        CheckWarning(
            f"A {type(handler).__name__} writes to {getattr(handler, 'baseFilename', '')!r}. Jobs run in several "
            "processes, and when one of them rotates the file, lines of the others are lost.",
            hint="Use logging.handlers.WatchedFileHandler and let logrotate rotate the file, or log to the console.",
            id="singlejob.W013",
        )
        for handler in filter(_rotates, _handlers())
    ]


def _handlers() -> Sequence[logging.Handler]:
    """The handlers of all loggers, each once."""
    return [*dict.fromkeys(handler for logger in all_loggers().values() for handler in logger.handlers)]


def _rotates(handler: logging.Handler) -> bool:
    # With 0 bytes, which is the default, a RotatingFileHandler never does.
    return getattr(type(handler), "doRollover", None) in ROLLOVERS and getattr(handler, "maxBytes", 1) > 0


def check_server(
    app_configs: Sequence[AppConfig] | None, *, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W008, W009: what only the database server knows. ``check --database`` and ``migrate`` run this check."""
    try:
        alias = transactions.alias()
    except (ImproperlyConfigured, ConnectionDoesNotExist):
        return []  # check_settings and check_database report this
    if alias not in (databases or ()):
        return []
    try:
        return list(_server_problems(alias))
    except Error:  # The server does not answer. The command that needs it reports this.
        return []


def _server_problems(alias: str) -> Iterator[CheckMessage]:
    if not reports_timeline(alias):
        yield CheckWarning(
            f"The database {alias!r} does not report its timeline, so fences may repeat after an asynchronous "
            "failover.",
            hint="Let the role execute pg_current_wal_lsn() and pg_walfile_name(), or use synchronous replication.",
            id="singlejob.W008",
        )
    if may_read_the_past(alias):
        yield CheckWarning(
            f"The database {alias!r} is a node of a Galera cluster, so a read may miss what another node has just "
            "committed, such as a new one-off.",
            hint=f"DATABASES[{alias!r}].setdefault('OPTIONS', {{}})['init_command'] = "
            "'SET SESSION wsrep_sync_wait = 1'; see 'Failover and Galera' in the documentation.",
            id="singlejob.W009",
        )


def reports_timeline(alias: str) -> bool:
    """Whether the database reports its timeline. Also ``True`` if it is not PostgreSQL and so has none."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return True
    try:
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            cursor.execute(f"SELECT {timeline.SQL}")
    except Error as error:
        if not errors.is_refused(error):
            raise
        return False
    return True


def may_read_the_past(alias: str) -> bool:
    """Whether this is a node of a Galera cluster whose reads do not wait for commits on the other nodes."""
    connection = connections[alias]
    if connection.vendor != "mysql":
        return False
    with connection.cursor() as cursor:
        # Not @@wsrep_on, which MySQL does not know.
        cursor.execute("SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_sync_wait')")
        settings = dict(cursor.fetchall())
    return settings.get("wsrep_on") == "ON" and not int(settings["wsrep_sync_wait"]) & 1


def _wants_single_statement() -> bool:
    try:
        return conf.options().single_statement
    except ImproperlyConfigured:
        return False  # check_settings and check_time report this


def _missing_timeouts(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """The time-outs that the driver needs but does not have, with suggested values."""
    options = connection.settings_dict.get("OPTIONS", {})
    is_elsewhere = not ELSEWHERE.isdisjoint(options)
    if is_elsewhere or not any(map(_is_remote, str(connection.settings_dict.get("HOST", "")).split(","))):
        return {}
    wanted = TIMEOUTS.get(connection.vendor, {})
    return {name: value for name, value in wanted.items() if name not in options}


def _is_remote(host: str) -> bool:
    # Not remote: a Unix socket (a file or in the abstract namespace), and this machine.
    return not host.startswith(("/", "@")) and host not in ("", "localhost", "127.0.0.1", "::1")


def _pool_size(pool: Any) -> float:
    """The most connections that the pool can hold. The default of psycopg_pool is 4."""
    if not isinstance(pool, dict):
        return 4 if pool else float("inf")
    size = pool.get("max_size") or pool.get("min_size", 4)
    return float(size)
