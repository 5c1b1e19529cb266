from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.children import end_other_sessions

if TYPE_CHECKING:
    from tests.children import Child, Spawn
    from tests.proxy import Proxy


#: What is in the request that commits a grant, and in the one that commits a release: in portable ones and in single
#: statements.
GRANT = {False: b"COMMIT", True: b"WITH seen"}
RELEASE = {False: b"COMMIT", True: b"WITH held"}

#: Where a run of run_singleton gets its process from, and the environment in which it does.
WAYS: dict[str, dict[str, str]] = {
    "fork": {},
    "new process": {"DJANGO_SETTINGS_MODULE": "tests.processes.thread_settings"},
}
both_ways = pytest.mark.parametrize("way", WAYS)

Act = Callable[[], None]


class Call(Protocol):
    def __call__(self, call: str, **env: str) -> Child: ...


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Touch it to let the job `until_told` go on."""
    return tmp_path / "go"


@pytest.fixture
def child_env(child_env: dict[str, str], go: Path) -> dict[str, str]:
    return child_env | {"GO": str(go)}


@pytest.fixture
def through_proxy(proxy: Proxy, database_url: str) -> dict[str, str]:
    """The environment of a process that reaches the database through the proxy."""
    return {"DATABASE_URL": proxy.url(database_url)}


@pytest.fixture
def call(spawn: Spawn) -> Call:
    """Starts a process that calls a job of `tests/app/jobs.py` and prints the outcome: `call("nap(5)")`."""

    def call(call: str, **env: str) -> Child:
        return spawn.code(
            f"""
            from tests.app.jobs import *
            try:
                say("returned", repr(({call})))
            except Exception as error:
                say("raised", type(error).__name__, error)
            """,
            **env,
        )

    return call


@pytest.fixture
def kill_connections() -> Act:
    """Ends every connection to this test's database except our own, on the server."""
    return end_other_sessions
