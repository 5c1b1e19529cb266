from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.jobs import registry
from tests.contract.acts import closing, committing
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.children import Spawn

    Elsewhere = Callable[..., Future[Any]]
    Ahead = Callable[[Callable[[], object]], Future[Any]]


@pytest.fixture(autouse=True)
def both_ways(single_statement: bool) -> None:
    """On PostgreSQL, a lock is the same with one statement for each grant and release."""


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test may use any names for jobs."""
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Calls a function while the test goes on, in a thread and on a connection of its own."""
    with ThreadPoolExecutor() as pool:
        yield lambda act, *arguments, **terms: pool.submit(closing, act, *arguments, **terms)


@pytest.fixture
def ahead(elsewhere: Elsewhere) -> Ahead:
    """Another transaction with these writes is open, and commits a moment later."""

    def begin(writes: Callable[[], object]) -> Future[Any]:
        begun = Event()
        transaction = elsewhere(committing, writes, begun)
        assert begun.wait(PATIENCE)
        return transaction

    return begin


@pytest.fixture
def plain_sqlite(spawn: Spawn, tmp_path: Path) -> dict[str, str]:
    """The environment for processes whose SQLite database has no options set."""
    plain = {
        "DATABASE_URL": f"sqlite:///{tmp_path / 'plain.sqlite3'}",
        "SINGLEJOB_TEST_SQLITE_DEFAULTS": "1",
    }
    migration = spawn.command("migrate", "--verbosity", "0", **plain)
    assert migration.finish() == 0
    return plain
