from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection
from django.db.backends.postgresql.operations import DatabaseOperations
from hypothesis import HealthCheck, settings as hypothesis_settings

from django_singlejob.locking import at_exit, heartbeat, recording
from tests import flush
from tests.children import ROOT, Spawn
from tests.locking.heartbeat_thread import dismiss
from tests.proxy import Proxy
from tests.selection import is_granted_both_ways

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says nothing on a busy machine.
hypothesis_settings.register_profile(
    "busy", hypothesis_settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("busy")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """`make test` prints the names of what failed on all databases as its last lines."""
    file = os.environ.get("PYTEST_FAILURES")
    if file and "PYTEST_XDIST_WORKER" not in os.environ:
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        lines = [f"FAILED {report.nodeid} on {config.getoption('--database')}\n" for report in reports]
        with Path(file).open("a") as failures:
            failures.writelines(lines)


@pytest.fixture
def database_url(django_db_setup: None) -> str:
    """The URL of this worker's test database."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()


@pytest.fixture(scope="session", autouse=True)
def no_needless_files() -> Iterator[None]:
    """PostgreSQL keeps the files of the tables that are emptied between two tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", flush.delete)
        yield


@pytest.fixture(autouse=True)
def no_history_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test did to the history before the next test."""
    monkeypatch.setattr(recording, "_away_until", float("-inf"))


@pytest.fixture(autouse=True)
def no_heartbeat_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test may fork, or replace the clocks, and begins without the threads of those before it."""
    monkeypatch.setattr(heartbeat, "IDLE", 0.1)
    yield
    dismiss()


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    """What a test still holds at its end is not released when the process exits: its holder plays dead, and the
    database is gone by then."""
    yield
    at_exit._granted.clear()


@pytest.fixture(scope="session", autouse=True)
def no_lock_is_left_at_the_end() -> Iterator[None]:
    """If this process says at its exit that a lock could not be released, the lock is none of a test's."""
    yield
    assert not at_exit.may_hold_a_lock(), f"Something other than a test has left locks: {at_exit._granted}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if is_granted_both_ways(metafunc):
        metafunc.parametrize("single_statement", [False, True], ids=[pytest.HIDDEN_PARAM, "single"], indirect=True)


@pytest.fixture
def single_statement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process, and those that the test starts, grant and release with single statements. On
    PostgreSQL, tests about grants are run both ways."""
    is_chosen = bool(getattr(request, "param", False))
    if is_chosen:
        monkeypatch.setattr(settings, "SINGLEJOB", {**settings.SINGLEJOB, "SINGLE_STATEMENT": True})
        monkeypatch.setenv("SINGLEJOB_TEST_SINGLE_STATEMENT", "1")
    return is_chosen


@pytest.fixture
def child_env(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that uses the test database."""
    return os.environ | {
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **(request.getfixturevalue("life_env") if request.config.getoption("in_life") else {}),
    }


@pytest.fixture
def life_env(life_server: str, tmp_path: Path) -> dict[str, str]:
    """What makes a process one of a project that has what real ones have: see tests/life/everywhere.py."""
    folder = tmp_path / "in-life"
    folder.mkdir()
    return {"SINGLEJOB_TEST_LIFE": str(folder), "SINGLEJOB_TEST_LIFE_SERVER": life_server}


@pytest.fixture(scope="session")
def life_server() -> Iterator[str]:
    """The port of a server for what the libraries send. It is a process, because tests may fork this one."""
    server = subprocess.Popen([sys.executable, "-m", "tests.life.server"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with server, ExitStack() as end:
        end.callback(server.terminate)
        assert server.stdout
        yield server.stdout.readline().strip()


@pytest.fixture
def spawn(child_env: dict[str, str], tmp_path: Path) -> Iterator[Spawn]:
    """Starts real processes, and kills them after the test."""
    children = Spawn(child_env, tmp_path)
    yield children
    children.end()


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """A proxy in front of the database server. Pass `proxy.url(database_url)` to a child as its DATABASE_URL."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server")
    url = urlsplit(database_url)
    with Proxy(url.hostname or "127.0.0.1", url.port or {"mysql": 3306}.get(url.scheme, 5432)) as proxy:
        yield proxy
