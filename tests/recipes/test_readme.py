"""What the README shows a new user, in a new project."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT
from tests.recipes.sessions import Session
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A new project has SQLite.
pytestmark = pytest.mark.on_database("sqlite")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path, ROOT)
    yield session
    session.close()


@pytest.mark.slow
def test_the_first_job_runs(session: Session, tmp_path: Path) -> None:
    session.type("$ django-admin startproject shop .\n")
    install, *rest = snippet("README.md", "Your first job", "console", 1).splitlines(keepends=True)
    assert install == "$ pip install django-singlejob\n"  # which is installed here
    session.type("".join(rest))
    with (tmp_path / "shop" / "settings.py").open("a") as settings:
        settings.write("THEIRS = INSTALLED_APPS\n" + snippet("README.md", "Your first job"))
        settings.write("INSTALLED_APPS += THEIRS\n")
        settings.write("DATABASES['default']['OPTIONS'] = {'transaction_mode': 'IMMEDIATE'}\n")
    (tmp_path / "reports" / "jobs.py").write_text(snippet("README.md", "django-singlejob"))
    migrate, *rest = snippet("README.md", "Your first job", "console", 2).splitlines(keepends=True)
    session.type(migrate + "Operations to perform:\n")
    session.type("".join(rest))

    line = snippet("README.md", "django-singlejob", "text")
    [command] = re.findall(r"^\* \* \* \* \*  cd /srv/shop && \.venv/bin/(python manage\.py .*)\n", line)
    session.type(f"$ {command}\n")


def test_what_there_is_to_try_exists() -> None:
    commands = [line.removeprefix("$ ") for line in snippet("README.md", "Try it", "console").splitlines()]
    assert len(commands) >= 4
    for command in commands:
        done = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
