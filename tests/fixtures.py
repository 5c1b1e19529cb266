"""Fixtures that the unit tests share: a plugin that they name in `pytest_plugins`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections

from django_singlejob.database.transactions import drop
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.process.received_signals import deferred_signals
from tests.contract.acts import closing
from tests.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from typing import Protocol

    Away = Callable[[], AbstractContextManager[None]]
    Elsewhere = Callable[..., Future[Any]]

    class AddDatabase(Protocol):
        def __call__(self, alias: str, **differences: Any) -> None: ...


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No jobs are registered."""
    autodiscover()  # a module registers its jobs only once, so load them before this test
    for table in ("_jobs", "_disputed", "failures"):
        monkeypatch.setattr(registry, table, {})


@pytest.fixture
def as_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that the test calls handles signals, as one that is the program of its process does."""
    for name in ("run_singleton", "singleton_worker"):
        command = f"django_singlejob.management.commands.{name}.deferred_signals"
        monkeypatch.setattr(command, lambda **_: deferred_signals())


@pytest.fixture
def breakable_connection() -> Iterator[None]:
    """The test may break its connection: the next test gets one that works."""
    yield
    drop("default")


@pytest.fixture
def newer_release(db: None) -> Iterator[None]:
    """SQLite stores statuses that only a newer release knows, as if that had changed the constraints."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        yield
        cursor.execute("PRAGMA ignore_check_constraints = OFF")


@pytest.fixture
def database_away() -> Away:
    """Inside `with database_away():`, no server answers and no file opens."""
    return go_away


@contextmanager
def go_away() -> Iterator[None]:
    nowhere = {"HOST": "127.0.0.1", "PORT": quiet_port(), "NAME": "/no/such/folder/no.sqlite3"}
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in nowhere.items():
            patch.setitem(connection.settings_dict, key, value)
        yield


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Calls a function concurrently with the test, on a connection of its own."""
    with ThreadPoolExecutor() as pool:
        yield lambda act, *arguments: pool.submit(closing, act, *arguments)


@pytest.fixture
def add_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[AddDatabase]:
    """Adds an alias that is like the default database except for the given settings."""
    added = []

    def add(alias: str, **differences: Any) -> None:
        monkeypatch.setitem(connections.settings, alias, connections["default"].settings_dict | differences)
        added.append(alias)

    yield add
    for alias in added:
        connections[alias].close()
        del connections[alias]
