from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.children import end_other_sessions
from tests.overlap.faults import OF_THE_NETWORK
from tests.overlap.judge import Judge
from tests.overlap.report import ADDRESS
from tests.overlap.trial import SHORT, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Spawn


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge() as judge:
        yield judge


@pytest.fixture
def go() -> Iterator[Path]:
    """Touch it to let a body come to its end. Each user can see it."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "go"


@pytest.fixture
def child_env(child_env: dict[str, str], go: Path, judge: Judge) -> dict[str, str]:
    return child_env | {"GO": str(go), ADDRESS: judge.name, "DJANGO_SETTINGS_MODULE": "tests.overlap.settings"}


class Begin(Protocol):
    def __call__(self, body: str, command: str, fault: str = "", *, has_thread: bool, lease: int = SHORT) -> Trial: ...


@pytest.fixture
def begin(request: pytest.FixtureRequest, spawn: Spawn, judge: Judge, database_url: str) -> Iterator[Begin]:
    """Begins a trial."""
    trials: list[Trial] = []

    def begin(body: str, command: str, fault: str = "", *, has_thread: bool, lease: int = SHORT) -> Trial:
        env = {"OVERLAP_THREAD": "1"} if has_thread else {}
        proxy = request.getfixturevalue("proxy") if fault in OF_THE_NETWORK else None
        if proxy:
            env["DATABASE_URL"] = proxy.url(database_url)
        trial = Trial(spawn, judge, body, command, env, proxy, lease)
        trials.append(trial)
        trial.begin()
        return trial

    yield begin
    for trial in trials:
        trial.end()
    end_other_sessions()  # a server goes on with a query that nobody waits for
