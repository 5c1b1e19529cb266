"""Type checkers know what a job returns, and what it takes: see typed_jobs.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT

# It reads files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")

EXAMPLES = Path(__file__).with_name("typed_jobs.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "checker",
    [
        ["mypy", "--config-file=", "--strict", "--allow-untyped-defs"],
        ["mypy", "--config-file=pyproject.toml"],  # with the plugin for Django
        ["pyright", f"--pythonpath={sys.executable}"],
    ],
    ids=["mypy", "mypy-with-django", "pyright"],
)
def test_type_checkers_know_what_a_job_returns_and_takes(checker: list[str], tmp_path: Path) -> None:
    cache = [f"--cache-dir={tmp_path}"] if "mypy" in checker else []
    command = [sys.executable, "-m", *checker, *cache, str(EXAMPLES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
