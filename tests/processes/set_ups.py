"""Set-ups in which no command can do its work: what is wrong, and how each command reports it."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from django.db import connection

from tests.databases import named
from tests.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

ALL = ("sqlite", "postgresql", "mysql")
SERVERS = ("postgresql", "mysql")
SECRET = secrets.token_hex(16)


@dataclass(frozen=True)
class SetUp:
    """What is wrong, and how the commands react.

    Attributes:
        status: the exit status of a command that has something to run.
        says: a pattern that its line matches.
        settings: the differences from the tests' own.
        url: a context manager that sets it up, and returns the URL of the database.
        databases: the kinds of database on which it is possible.
        endless: the exit status of a worker without a mode; ``None`` if it goes on.
        reading: the exit status of the commands that read or delete; ``None`` if they can do their work.
        listing: the exit status of the command that works without the database, too.
    """

    name: str
    status: int
    says: str
    settings: dict[str, Any] = field(default_factory=dict)
    url: Callable[[str, Path], AbstractContextManager[str]] | None = None
    databases: tuple[str, ...] = ALL
    endless: int | None = -1
    reading: int | None = -1
    listing: int = 0

    def __str__(self) -> str:
        return self.name


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def no_tables(url: str, folder: Path) -> Iterator[str]:
    if connection.vendor == "sqlite":
        yield f"sqlite:///{folder / 'empty.sqlite3'}"
        return
    name = named("empty")
    execute(f"CREATE DATABASE {name}")
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        execute(f"DROP DATABASE {name}")


def another_column(table: str) -> Any:
    """As between two releases: the table of one, and the code of the other."""

    @contextmanager
    def url_without(url: str, folder: Path) -> Iterator[str]:
        execute(f"ALTER TABLE {table} RENAME COLUMN paused TO is_paused")
        try:
            yield url
        finally:
            execute(f"ALTER TABLE {table} RENAME COLUMN is_paused TO paused")

    return url_without


@contextmanager
def read_only(url: str, folder: Path) -> Iterator[str]:
    options = {
        "sqlite": {"init_command": "PRAGMA query_only = 1"},
        "postgresql": {"options": "-c default_transaction_read_only=on"},
        "mysql": {"init_command": "SET SESSION TRANSACTION READ ONLY"},
    }
    yield f"{url}?{urlencode(options[connection.vendor])}"


def role(*grants: str) -> Any:
    """A user with these rights only."""

    @contextmanager
    def url_of_role(url: str, folder: Path) -> Iterator[str]:
        name, database = named("role"), connection.settings_dict["NAME"]
        with ExitStack() as undo:
            if connection.vendor == "postgresql":
                execute(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
                undo.callback(execute, f"DROP OWNED BY {name}", f"DROP ROLE {name}")
            else:
                execute(f"CREATE USER {name} IDENTIFIED BY '{SECRET}'")
                undo.callback(execute, f"DROP USER {name}")
                # So that it may connect to the database.
                execute(f"GRANT SELECT ON {database}.django_content_type TO {name}")
            execute(*[f"GRANT {what.format(all=all_tables())} TO {name}" for what in grants])
            yield as_user(url, name, SECRET)

    return url_of_role


@contextmanager
def a_stranger_to_the_database(url: str, folder: Path) -> Iterator[str]:
    """A user that has no right at all: it may log in, but not use the database."""
    name = named("role")
    execute(f"CREATE USER {name} IDENTIFIED BY '{SECRET}'")
    try:
        yield as_user(url, name, SECRET)
    finally:
        execute(f"DROP USER {name}")


@contextmanager
def hidden_schema(url: str, folder: Path) -> Iterator[str]:
    """A role that may use the tables, but not their schema: PostgreSQL then says that they do not exist."""
    with role("SELECT, INSERT, UPDATE, DELETE ON {all}")(url, folder) as url_of_role:
        execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
        try:
            yield url_of_role
        finally:
            execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


def all_tables() -> str:
    if connection.vendor == "postgresql":
        return "ALL TABLES IN SCHEMA public"
    return f"{connection.settings_dict['NAME']}.*"


def revoke(what: str, url: str) -> None:
    """Revoke the rights of the user in that URL."""
    execute(f"REVOKE {what.format(all=all_tables())} FROM {urlsplit(url).username}")


def as_user(url: str, name: str, password: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=f"{name}:{password}@{parts.hostname}{port}").geturl()


@contextmanager
def a_stranger(url: str, folder: Path) -> Iterator[str]:
    yield as_user(url, "nobody_knows", SECRET)


@contextmanager
def no_such_database(url: str, folder: Path) -> Iterator[str]:
    yield urlsplit(url)._replace(path="/no_such_database").geturl()


@contextmanager
def no_server(url: str, folder: Path) -> Iterator[str]:
    if connection.vendor == "sqlite":
        yield f"sqlite:///{folder}/no/such/folder.sqlite3"
    else:
        yield urlsplit(url)._replace(netloc=f"shop@127.0.0.1:{quiet_port()}").geturl()


@contextmanager
def no_such_host(url: str, folder: Path) -> Iterator[str]:
    yield urlsplit(url)._replace(netloc="shop@no-such-host.invalid").geturl()


@contextmanager
def not_a_database(url: str, folder: Path) -> Iterator[str]:
    (folder / "notes.txt").write_text("Buy milk. " * 1000)
    yield f"sqlite:///{folder / 'notes.txt'}"


def options(**given: str) -> Any:
    """With these in OPTIONS."""

    @contextmanager
    def url_with(url: str, folder: Path) -> Iterator[str]:
        yield f"{url}?{urlencode(given)}"

    return url_with


MIGRATE = r"lacks a table or a column of django_singlejob \(.+\)\. Run manage\.py migrate\.( If the tables .*)?$"
GRANT = r"does not allow this user to do that \(.+\)\. Grant SELECT, INSERT, UPDATE and DELETE on the tables"
LOGIN = r"rejects this user \(.+\)\. Correct USER and PASSWORD in DATABASES\['default'\]\.$"
CREATE = r"does not exist, or is not a database \(.+\)\. Create it, or correct DATABASES\['default'\]\['NAME'\]\.$"
NO_ALIAS = r"'locks', but DATABASES has no such alias\. Use one of: default\.$"
NOT_OPENED = r"Correct DATABASES\['default'\]\.$"
AWAY = (
    r"The database does not answer.*: .+\w\)?\. Check that (the database server is running|the folder exists and that "
    r"this user may write to it), and check "
    r"DATABASES\['default'\] \(.+\)\.$"
)

SET_UPS = [
    SetUp("no migrate", 78, MIGRATE, url=no_tables),
    SetUp("no migrate after an upgrade", 78, MIGRATE, url=another_column("django_singlejob_jobstatus"), reading=None),
    # A primary may become read-only because another one replaces it; a file is not replaced.
    SetUp("read-only file", 77, r"is read-only \(.+\)\.", url=read_only, databases=("sqlite",), reading=None),
    SetUp(
        "read-only server", 77, r"is read-only \(.+\)\.", url=read_only, databases=SERVERS, endless=None, reading=None
    ),
    SetUp("no grants at all", 77, GRANT, url=role(), databases=SERVERS),
    SetUp("may only read", 77, GRANT, url=role("SELECT ON {all}"), databases=SERVERS, reading=None),
    SetUp("not even on the database", 77, GRANT, url=a_stranger_to_the_database, databases=("mysql",)),
    SetUp(
        "not on the schema",
        78,
        r"grant this user USAGE on their schema\.$",
        url=hidden_schema,
        databases=("postgresql",),
    ),
    SetUp("wrong password", 77, LOGIN, url=a_stranger, databases=("mysql",)),
    SetUp("wrong role", 69, AWAY, url=a_stranger, databases=("postgresql",), endless=None),
    SetUp("no such database", 78, CREATE, url=no_such_database, databases=("mysql",)),
    SetUp("no such database", 69, AWAY, url=no_such_database, databases=("postgresql",), endless=None),
    SetUp("not a database", 78, CREATE, url=not_a_database, databases=("sqlite",)),
    SetUp("no server", 69, AWAY, url=no_server, endless=None),
    SetUp("no such host", 69, AWAY, url=no_such_host, databases=SERVERS, endless=None),
    SetUp(
        "misspelt mode",
        78,
        rf"'IMEDIATE'\. Use one of .+, or None\. {NOT_OPENED}",
        url=options(transaction_mode="IMEDIATE"),
        databases=("sqlite",),
        listing=78,
    ),
    SetUp(
        "misspelt option",
        78,
        rf"keyword argument.+\. {NOT_OPENED}",
        url=options(isolation="none"),
        databases=("sqlite", "mysql"),
        listing=78,
    ),
    SetUp(
        "misspelt option",
        78,
        rf'[Ii]nvalid connection option "conect_timeout"\. {NOT_OPENED}',
        url=options(conect_timeout="5"),
        databases=("postgresql",),
    ),
    SetUp("no ENGINE", 78, "Please supply the ENGINE value", {"DATABASES": {}}, listing=78),
    SetUp(
        "unknown alias", 78, rf"SINGLEJOB\['DATABASE'\] is {NO_ALIAS}", {"SINGLEJOB": {"DATABASE": "locks"}}, listing=78
    ),
    SetUp(
        "a router's unknown alias",
        78,
        rf"The routers send JobLock to {NO_ALIAS}",
        {"DATABASE_ROUTERS": ["tests.processes.set_ups.Router"]},
        listing=78,
    ),
    SetUp("USE_TZ = False", 78, r"USE_TZ is False, .+ Set USE_TZ = True\.$", {"USE_TZ": False}, listing=78),
    SetUp(
        "LEASE = 60",
        78,
        r"SINGLEJOB\['LEASE'\] is 60, but must be a timedelta",
        {"SINGLEJOB": {"LEASE": 60}},
        listing=78,
    ),
]


class Router:
    """Sends the locks to a database that does not exist."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "locks" if model._meta.app_label == "django_singlejob" else None
