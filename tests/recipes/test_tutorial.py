"""The tutorial, step by step, in two real terminals."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT
from tests.recipes.sessions import Session
from tests.recipes.snippets import DOCS, snippet
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# It is about a project with SQLite.
pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.slow]

#: The report goes on when the test says so, and is dead soon, but not because its machine is busy.
FASTER = {
    "time.sleep(1)": "[time.sleep(0.02) for _ in iter(lambda: __import__('os').path.exists('go'), True)]",
    "timedelta(seconds=12)": "timedelta(seconds=6)",
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path, ROOT, DJANGO_SUPERUSER_USERNAME="ada", DJANGO_SUPERUSER_PASSWORD="x")
    yield session
    session.close()


def test_the_tutorial_is_true(session: Session, tmp_path: Path) -> None:
    go = tmp_path / "go"

    # 1. What it installs is installed here.
    assert "pip install django-singlejob\n" in snippet("tutorial.md", "1. A project", "console", 1)
    session.type(snippet("tutorial.md", "1. A project", "console", 2))
    settings = tmp_path / "config" / "settings.py"
    text = settings.read_text()
    for ours in (
        snippet("tutorial.md", "1. A project", "python", 1),
        snippet("tutorial.md", "1. A project", "python", 2),
    ):
        name = ours.split()[0]
        theirs = re.search(rf"^{name} = .*?^[\]}}]\n", text, re.DOTALL | re.MULTILINE)
        assert theirs
        # Nothing is lost of what startproject has written.
        assert set(theirs[0].replace("'", '"').split()) <= set(ours.split())
        text = text.replace(theirs[0], ours)
    settings.write_text(text)
    migrated = snippet("tutorial.md", "1. A project", "console", 3)
    assert "W001" not in session.type(migrated + "Operations to perform:\n")

    # 2.
    job = snippet("tutorial.md", "2. A job")
    for word, faster in FASTER.items():
        assert word in job
        job = job.replace(word, faster)
    (tmp_path / "reports" / "jobs.py").write_text(job)
    session.type(snippet("tutorial.md", "2. A job", "console"))

    # 3.
    go.touch()
    session.type(snippet("tutorial.md", "3. Run it", "console", 1))
    session.type(snippet("tutorial.md", "3. Run it", "console", 2))
    go.unlink()

    # 4.
    assert "activate" in snippet("tutorial.md", "4. Two servers", "console", 1)
    command, first_line, *_ = snippet("tutorial.md", "4. Two servers", "console", 2).splitlines(keepends=True)
    report = session.start(command + first_line)
    session.type(snippet("tutorial.md", "4. Two servers", "console", 3))
    session.type(snippet("tutorial.md", "4. Two servers", "console", 4))
    go.touch()
    eventually(lambda: "The report is ready." in report.printed)
    assert report.finish() == 0
    go.unlink()

    # 5.
    report = session.start(snippet("tutorial.md", "5. A server dies", "console", 1) + first_line)
    skipped = session.type(snippet("tutorial.md", "5. A server dies", "console", 2))
    assert f"pid {report.pid})" in skipped
    assert snippet("tutorial.md", "5. A server dies", "console", 3).startswith("$ kill -9 ")
    os.kill(report.pid, signal.SIGKILL)
    go.touch()
    session.type(snippet("tutorial.md", "5. A server dies", "console", 4))

    # 6.
    made, served = snippet("tutorial.md", "6. Look at the history", "console", 1).splitlines()
    session.type(f"{made} --noinput --email ada@example.com\n")
    assert served == "$ python manage.py runserver"
    # As the button does.
    session.type("$ python manage.py shell -c 'from reports.jobs import hourly_report as job; job.enqueue()'\n")
    session.type(snippet("tutorial.md", "6. Look at the history", "console", 2))

    # 7.
    (decorator,) = re.findall(r"`(@singleton_job\(schedule=.*\))`", (DOCS / "tutorial.md").read_text())
    scheduled = re.sub(r"^@singleton_job.*$", decorator, job, flags=re.MULTILINE)
    (tmp_path / "reports" / "jobs.py").write_text(scheduled)
    line = snippet("tutorial.md", "7. On real servers", "text")
    [command] = re.findall(r"^\* \* \* \* \*  cd /srv/shop && \.venv/bin/(python manage\.py .*)\n", line)
    session.type(f"$ {command}\n")
    schedule = "from reports.jobs import hourly_report as job; print(job.policy.schedule.text)"
    assert "5 * * * *\n" in session.type(f"$ python manage.py shell -c '{schedule}'\n")
