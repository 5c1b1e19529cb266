"""After `migrate`, servers still run the package as it was: its contract holds with the new tables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.on_database("sqlite", "postgresql", "mysql")]
MIGRATIONS = "django_singlejob/migrations"
# What writes to each table.
FILES = [f"tests/contract/test_{what}.py" for what in ("one_offs", "gate", "run_history", "passes")]
# It relied on the order in which PostgreSQL happened to return rows.
WITHOUT = "not one_after_the_other_however_long"
# So that no test lasts long. All but one run at night.
PARTS = 5


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def columns(migrations: str) -> list[str]:
    return sorted(re.findall(r'\(\s*"(\w+)",\s*models\.\w+\(', migrations))


def earlier_commits() -> Iterator[str]:
    """Those before a commit that touched the migrations, the newest first."""
    for commit in git("log", "--format=%H", "--", MIGRATIONS).split():
        yield f"{commit}^"


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """The tree as it was before the last column was added, with the migrations of today."""
    if not (Path(ROOT) / ".git").exists() or shutil.which("git") is None:
        pytest.skip("This is not a clone of the repository.")
    now = columns((Path(ROOT) / MIGRATIONS / "0001_initial.py").read_text())
    for commit in earlier_commits():
        try:
            then = columns(git("show", f"{commit}:{MIGRATIONS}/0001_initial.py"))
        except subprocess.CalledProcessError:
            break
        if then != now:
            archive = tmp_path / "former.zip"
            git("archive", "--output", str(archive), commit)
            shutil.unpack_archive(archive, tmp_path / "former")
            shutil.copytree(Path(ROOT) / MIGRATIONS, tmp_path / "former" / MIGRATIONS, dirs_exist_ok=True)
            return tmp_path / "former"
    pytest.skip("No earlier tables are known: the clone is shallow.")


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_the_contract_of_the_package_as_it_was_holds(former: Path, request: pytest.FixtureRequest, part: int) -> None:
    database = request.config.getoption("--database")
    tests = [
        line
        for line in run(former, database, "--collect-only", "-m", "not slow", "-k", WITHOUT, *FILES)
        if "::" in line
    ]
    assert len(tests) > PARTS
    assert any(" passed" in line for line in run(former, database, "-x", *tests[part::PARTS]))


def run(former: Path, database: str, *words: str) -> list[str]:
    """What pytest prints there."""
    # Without the plugin of the package as it is now.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:singlejob", *words]
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONPATH", "SINGLEJOB_TEST_NAME"))
    }
    command += ["--database", database]
    done = subprocess.run(command, cwd=former, env=env, capture_output=True, text=True, check=False, stdin=-3)
    assert done.returncode == 0, done.stdout[-3_000:]
    return done.stdout.splitlines()
