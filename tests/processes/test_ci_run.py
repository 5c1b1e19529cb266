"""`.ci/run` leaves nothing on the servers: no user and no database, however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT, Child
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., Child]

# In seconds.
HOUR = 3600
SCRIPT = ROOT / ".ci" / "run"
NAMES = {
    ("runuser", "-u", "postgres", "--", "psql", "--no-psqlrc", "-At", "-c"): (
        "SELECT rolname FROM pg_roles UNION ALL SELECT datname FROM pg_database"
    ),
    ("mariadb", "--skip-column-names", "-e"): (
        "SELECT user FROM mysql.user UNION ALL SELECT schema_name FROM information_schema.schemata"
    ),
}


def names() -> list[str]:
    """The users and the databases of both servers."""
    told = [
        subprocess.run([*command, query], capture_output=True, text=True, check=True, cwd="/").stdout
        for command, query in NAMES.items()
    ]
    return "".join(told).split()


def is_possible() -> bool:
    """Whether both servers run here, and let us in as their administrators."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("runuser", "psql", "mariadb"))) or not find_spec("MySQLdb"):
        return False
    try:
        return bool(names())
    except subprocess.CalledProcessError:
        return False


pytestmark = [
    pytest.mark.on_database("postgresql"),
    pytest.mark.skipif(not is_possible(), reason="needs root, and PostgreSQL and MariaDB on this machine"),
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Runs something that leaves users and databases behind, goes on for some seconds, and exits with this status."""
    children: list[Child] = []

    def start(*, seconds: float = 0, status: int = 0, **given: str) -> Child:
        words = [sys.executable, "-m", "tests.processes.leave_something", str(seconds), str(status)]
        env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "MYSQL_URL")} | given
        code = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        children.append(Child(("-c", code, str(SCRIPT), *words), env, tmp_path / f"{len(children)}.txt"))
        return children[-1]

    yield start
    for child in children:
        print(child.output)
        if child.poll() is None:
            child.terminate()
            child.wait()


def run_of(child: Child) -> str:
    """What is in the name of everything that it makes."""
    child.wait_for("made 2")
    eventually(lambda: len(names_in(child)) == 1)  # the line may be there in part
    return names_in(child).pop()


def names_in(child: Child) -> set[str]:
    return set(re.findall(r"singlejob_[0-9a-f]{8}", child.output))


def left_of(run: str) -> list[str]:
    return [name for name in names() if run in name]


@pytest.mark.parametrize("status", [0, 7])
def test_nothing_is_left_at_the_end(start: Start, status: int) -> None:
    child = start(status=status)
    run = run_of(child)
    assert child.finish() == status
    assert not left_of(run)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_nor_after_a_signal(start: Start, name: str) -> None:
    child, number = start(seconds=HOUR), signal.Signals[name]
    run = run_of(child)
    assert len(left_of(run)) >= 6
    child.send_signal(number)
    assert child.finish() == 128 + number
    assert not left_of(run)


def test_no_password_is_known() -> None:
    for page in SCRIPT, ROOT / ".github" / "CONTRIBUTING.md":
        assert not re.search(r"singlejob:singlejob|(?i:(?:password|identified by) '\w+')", page.read_text()), page
