"""The program that repeats tests on a busy machine, and at another hour."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.children import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.on_database("sqlite")]


def repeated(*arguments: str, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.under_load", *arguments, "--", sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_round_counts() -> None:
    done = repeated("--rounds=2", "--busy=1", code="raise SystemExit(3)")
    assert "Round 2: status 3" in done.stdout
    assert "0 of 2 rounds passed" in done.stdout
    assert done.returncode == 1


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_the_hour_is_another_one_in_python_and_in_sqlite() -> None:
    code = """if True:
        import datetime, sqlite3
        print(datetime.datetime.now(datetime.UTC), sqlite3.connect(":memory:").execute("SELECT datetime()").fetchone())
    """
    done = repeated("--rounds=1", "--busy=0", "--at=2028-02-29T12:00:00", code=code)
    assert done.stdout.count("2028-02-29 ") == 2
    assert done.returncode == 0
