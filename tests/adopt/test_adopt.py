"""A crontab becomes a `jobs.py` that runs as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command, get_commands

from django_singlejob.adopt.jobs import differences, jobs_py
from django_singlejob.adopt.lines import adopt
from django_singlejob.jobs import registry
from tests.children import ROOT
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")

CRONTAB = r"""# what the shop runs
MAILTO=ops@shop.example
# expire carts
*/5 * * * * cd /srv/shop && .venv/bin/python manage.py clearsessions >> /var/log/shop.log 2>&1
0 3 * * mon-fri python manage.py report daily || mail -s failed anna@shop.example
5 3 * * * python manage.py report weekly
MAILTO=""
CRON_TZ=Europe/Rome
0 4 * * * flock -n /tmp/feed.lock ./import.sh
30 4 * * * flock -w 60 /tmp/feed.lock -c 'echo "a $(date +\%F)"; echo b'
10 5 * * * sleep $((RANDOM \% 300)) && timeout 10m [ -x /bin/true ] && /bin/true
0 2 * * * [ "$(hostname)" = web1 ] && ./backup.sh > /dev/null 2>&1
15 2 * * * cat > /tmp/in%one%two "three"
@reboot ./start.sh
0 0 * * * /usr/sbin/logrotate /etc/logrotate.conf
three words only
"""


def run(text: str) -> None:
    """As a module of an app."""
    exec(compile(text, "jobs.py", "exec"), {"__name__": "tests.adopt"})


def test_it_runs_as_it_is() -> None:
    adopted = adopt(CRONTAB, zone="America/New_York", commands=get_commands())
    run(jobs_py(adopted))
    found = {job.name: job for job in registry.all_jobs()}
    assert found.keys() == {job.name for job in adopted.jobs}
    report = found["report"]
    assert (report.schedule, report.time_zone, report.notify) == (
        "0 3 * * mon-fri",
        "America/New_York",
        ("anna@shop.example",),
    )
    assert found["report_weekly"].notify == ("ops@shop.example",)
    feed, other = found["import"], found["echo"]
    assert feed.lock == other.lock == "feed"
    assert (feed.time_zone, feed.notify) == ("Europe/Rome", ())
    assert found["backup"].on == ("web1",)
    assert [each.source.partition(":")[0] for each in adopted.left] == ["Line 14", "Line 15", "Line 16"]


def test_of_all_lines_each_is_a_job_or_stays() -> None:
    found = adopt(CRONTAB, zone="UTC")
    sources = [*(job.source for job in found.jobs), *(each.source for each in found.left)]
    numbers = [each.partition(":")[0] for each in sources]
    assert numbers == [f"Line {number}" for number in (4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16)]
    text = jobs_py(found)
    assert all(line in text for line in CRONTAB.splitlines() if line[0] in "*0135@t")


def test_a_column_with_users_is_read() -> None:
    text = "0 3 * * * www-data cd /srv/shop && python manage.py clearsessions\n"
    found = adopt(text, zone="UTC", has_users=True)
    assert "www-data ran it: it runs as the user of the worker." in jobs_py(found)


def test_a_minute_by_chance_is_an_h() -> None:
    found = adopt(r"10 5 * * * sleep $((RANDOM \% 300)); ./a.sh", zone="UTC")
    run(jobs_py(found))
    assert registry.get("a").schedule in [f"{minute} 5 * * *" for minute in range(10, 15)]


def test_a_command_that_the_project_does_not_have_stays() -> None:
    found = adopt("0 3 * * * python manage.py rebuild_everything", zone="UTC", commands=get_commands())
    assert found.jobs == []
    (left,) = found.left
    assert left.why == "this project has no command 'rebuild_everything'"


def test_nothing_of_nothing() -> None:
    assert jobs_py(adopt("# no line\n\n", zone="UTC")).strip().startswith("# The one line for the crontab")


def test_lines_as_people_write_them() -> None:
    """Collected by somebody who did not know how they are understood."""
    wrong = []
    for each in json.loads((ROOT / "tests/adopt/collected.json").read_text()):
        found = adopt(each["line"], zone="Europe/Berlin", has_users=each["users"])
        compile(jobs_py(found), "jobs.py", "exec")
        assert [*differences(found.jobs, datetime(2026, 11, 28, tzinfo=UTC))] == []
        if each["expect"] not in ("either", "job" if found.jobs else "stay"):
            wrong.append(each["line"])
    assert [line.split()[-1] for line in wrong] == ["/var/log/scan/scan.csv"]  # it scans the disk of each server


# --- by its options


def adopted(*words: str, stdin: str = "", status: int = 0) -> tuple[str, str]:
    """Without a project."""
    command = [sys.executable, "-m", "django_singlejob.adopt", *words]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, input=stdin, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def test_it_needs_no_project(tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text(CRONTAB)
    said, complained = adopted(str(file), "--time-zone", "Europe/Rome", "--check")
    assert complained == "Jobs: 8; staying: 3; due at other instants: 0.\n"
    assert 'command_job(\n    "clearsessions",\n    schedule="*/5 * * * *",\n    time_zone="Europe/Rome",' in said
    assert adopted("--time-zone", "Europe/Rome", stdin=CRONTAB) == (said, "")


def test_the_page_says_how() -> None:
    line = snippet("coming-from/crontab.md", "See what would become of it", "console")
    assert line == "$ crontab -l | python -m django_singlejob.adopt --check\n"
    assert "clearsessions" in adopted("--check", stdin=CRONTAB)[0]


def test_it_says_what_it_cannot_read(tmp_path: Path) -> None:
    assert "cannot be read" in adopted(str(tmp_path / "none"), status=66)[1]
    assert "'Mars/Olympus' is not a valid time zone" in adopted("--time-zone", "Mars/Olympus", status=66)[1]


def test_in_a_project_it_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * root python manage.py clearsessions\n")
    call_command("singleton_adopt", str(file), users=True, time_zone="UTC", check=True)
    said, complained = capsys.readouterr()
    assert 'command_job("clearsessions", schedule="0 3 * * *", time_zone="UTC")' in said
    assert complained.startswith("Jobs: 1; staying: 0")


def test_the_new_crontab_is_complete() -> None:
    text = "MAILTO=ops@shop.example\nCRON_TZ=Europe/Rome\n0 1 * * * cd /opt/a && ./manage.py x\n@reboot ./start.sh\n"
    said = jobs_py(adopt(text, zone="UTC"))
    assert said.endswith(
        "# The crontab of every server:\n#\n# MAILTO=ops@shop.example\n# CRON_TZ=Europe/Rome\n# @reboot ./start.sh\n"
        "# * * * * *  cd /opt/a && .venv/bin/python manage.py singleton_worker --once\n"
    )
    assert "CRON_TZ=Europe/Rome: cronie heeds it" in said
