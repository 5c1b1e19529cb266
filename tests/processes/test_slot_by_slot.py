"""The ledger of real servers, beside what the bodies of the jobs say themselves."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob.control.pausing import pause, resume
from django_singlejob.jobs.schedule import Every, slots_between
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from tests.databases import APPS
from tests.processes.workers import end, worker
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

INTERVALS = {
    name: timedelta(seconds=2 if name.startswith("logs_and") else 1)
    for name in ("logs", "logs_each", "logs_slowly", "logs_and_fails", "logs_and_skips")
}


def test_slot_by_slot_the_ledger_is_what_the_bodies_say(spawn: Spawn, tmp_path: Path) -> None:
    log = tmp_path / "log"
    all_day = worker(spawn, **on("web-1", log))
    eventually(lambda: runs().filter(status="successful").count() >= 15)
    end(all_day)
    pause("logs", reason="supplier down", by="anna")
    work_for(1.2)
    passes(spawn, log)
    resume("logs")
    passes(spawn, log)

    said = [line.split() for line in log.read_text().splitlines()]
    assert {*Counter(map(tuple, said)).values()} == {1}
    for name in INTERVALS:
        found = ledger(spawn, log, name)
        assert found.pop("twice", None) is None
        ran = sorted(slot for outcome in ("ran", "failed", "skipped") for slot in found.pop(outcome, []))
        assert ran == sorted(datetime.fromisoformat(slot) for job, slot in said if job == name), name
        assert found.keys() <= ({"taken_together", "paused"} if name == "logs" else {"taken_together"}), found
    assert ledger(spawn, log, "logs")["paused"]


def on(server: str, log: Path) -> dict[str, str]:
    """The environment of a process on this server."""
    return {"DJANGO_SETTINGS_MODULE": "tests.processes.logged_settings", "LOG": str(log), "SERVER": server}


def passes(spawn: Spawn, log: Path) -> None:
    """Cron fires on both servers."""
    children = [spawn.command("singleton_worker", "--once", **on(server, log)) for server in ("web-1", "web-2")]
    # A job fails.
    assert {child.finish() for child in children} <= {0, 1}


def ledger(spawn: Spawn, log: Path, name: str) -> dict[str, list[datetime]]:
    """The slots of each outcome, up to the last that is settled."""
    until = gates().get(name=name).next_slot
    assert until
    words = ("--format", "json", "--until", until.isoformat())
    child = spawn.command("singleton_ledger", name, *words, **on("web-1", log))
    child.finish()
    (job,) = json.loads(child.output)["jobs"]
    assert (job["is_cut"], job["left_out"]) == (False, 0)
    schedule, since = Every(INTERVALS[name]), datetime.fromisoformat(job["since"])
    just = timedelta.resolution
    rest = {*slots_between(schedule, since - just, until - just)}
    found: dict[str, list[datetime]] = {}
    for stretch in job["stretches"]:
        first, last = (datetime.fromisoformat(stretch[end]) for end in ("first", "last"))
        slots = [*slots_between(schedule, first - just, last)]
        assert len(slots) == stretch["number"]
        found.setdefault(stretch["outcome"], []).extend(slots)
        rest -= {*slots}
    numbers: dict[str, Any] = {outcome: count for outcome, count in job["counts"].items() if count}
    counted = {*numbers} - {*found}
    assert len(counted) <= 1  # these slots are not listed
    return found | {outcome: sorted(rest) for outcome in counted if len(rest) == numbers[outcome]}
