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

JUST = timedelta.resolution
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

    until = min(filter(None, gates().filter(name__in=INTERVALS).values_list("next_slot", flat=True)))
    said = Counter(slot_of(line) for line in log.read_text().splitlines())
    assert {*said.values()} == {1}
    found = ledger(spawn, log, until)
    for name, slots in found.items():
        ran = [slot for outcome in ("ran", "failed", "skipped") for slot in slots.pop(outcome, [])]
        assert sorted(ran) == sorted(slot for job, slot in said if job == name and slot < until), name
        assert slots.keys() <= {"taken_together", "paused"}, name
    assert found["logs"]["paused"]


def slot_of(line: str) -> tuple[str, datetime]:
    name, slot = line.split()
    return name, datetime.fromisoformat(slot)


def on(server: str, log: Path) -> dict[str, str]:
    """The environment of a process on this server."""
    return {"DJANGO_SETTINGS_MODULE": "tests.processes.logged_settings", "LOG": str(log), "SERVER": server}


def passes(spawn: Spawn, log: Path) -> None:
    """Cron fires on both servers."""
    children = [spawn.command("singleton_worker", "--once", **on(server, log)) for server in ("web-1", "web-2")]
    # A job fails.
    assert {child.finish() for child in children} <= {0, 1}


def ledger(spawn: Spawn, log: Path, until: datetime) -> dict[str, dict[str, list[datetime]]]:
    """The slots of each job, by their outcomes."""
    words = ("--format", "json", "--until", until.isoformat())
    child = spawn.command("singleton_ledger", *INTERVALS, *words, **on("web-1", log))
    assert child.finish() == 0
    return {job["name"]: slots_of(job, until) for job in json.loads(child.output)["jobs"]}


def slots_of(job: dict[str, Any], until: datetime) -> dict[str, list[datetime]]:
    """The slots that the ledger lists, and the others, of whose outcome only the number stands there."""
    found: dict[str, list[datetime]] = {}
    for stretch in job["stretches"]:
        slots = between(job["name"], stretch["first"], datetime.fromisoformat(stretch["last"]) + JUST)
        assert len(slots) == stretch["number"]
        found.setdefault(stretch["outcome"], []).extend(slots)
    listed = {slot for slots in found.values() for slot in slots}
    others = [slot for slot in between(job["name"], job["since"], until) if slot not in listed]
    counts = {outcome: count for outcome, count in job["counts"].items() if count and outcome not in found}
    assert [*counts.values()] == ([len(others)] if others else [])
    return found | dict.fromkeys(counts, others)


def between(name: str, begin: str, end: datetime) -> list[datetime]:
    return [*slots_between(Every(INTERVALS[name]), datetime.fromisoformat(begin) - JUST, end - JUST)]
