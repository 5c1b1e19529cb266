"""The databases of simulated processes on a server: made for the simulation, and dropped after it."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from django.db import connections

from tests.databases import named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.storage import Storage


@contextmanager
def own_database() -> Iterator[str]:
    """A new database on the server of the settings."""
    name = named("simulation")
    with connections["default"]._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    try:
        yield name
    finally:
        force = " WITH (FORCE)" if connections["default"].vendor == "postgresql" else ""
        with connections["default"]._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}{force}")


@contextmanager
def storage_on_server(database: str, isolation: str) -> Iterator[Storage]:
    """The storage on the server of the settings, which is dropped afterwards. ``isolation``: empty for the usual
    level."""
    # Not imported before, because it needs the driver of that database.
    module = import_module(f"tests.simulation.backend.{database}.storage")
    with own_database() as name:
        opened: Storage = module.OnServer(name, isolation or "read committed")
        try:
            yield opened
        finally:
            opened.close()
