"""The history checker: what must hold whatever was done to the servers (DESIGN's invariants in brackets)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from django_singlejob.models import JobLock, JobRun, JobStatus
from tests.app.models import FencedWrite


def verdict(history: Path) -> dict[str, str]:
    """Each promise, and what speaks against it (empty: nothing)."""
    events = [json.loads(line) for line in history.read_text().splitlines()]
    return {
        "undisturbed holders never overlap (I1)": overlaps(clean_runs(events)),
        "each grant has a fence of its own (I3)": repeated([e["fence"] for e in events if e["event"] == "start"]),
        "a fenced write never follows a newer one (I4)": steps_back(list(FencedWrite.objects.order_by("id"))),
        "the gate counted every grant (I3)": uncounted(),
        "no lock is left (I11)": ", ".join(map(str, JobLock.objects.all())),
        "no run is left running (I15)": ", ".join(map(str, JobRun.objects.running())),
    }


def clean_runs(events: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """(start, end, fence) of the runs that ended in the belief that they still had their lease."""
    starts = {e["fence"]: e["at"] for e in events if e["event"] == "start"}
    return sorted((starts[e["fence"]], e["at"], e["fence"]) for e in events if e["event"] == "end")


def overlaps(runs: list[tuple[float, float, float]]) -> str:
    found = [f"{one[2]} and {two[2]}" for one, two in pairwise(runs) if two[0] < one[1]]
    return "; ".join(found)


def repeated(fences: list[float]) -> str:
    return ", ".join(str(fence) for fence in set(fences) if fences.count(fence) > 1)


def steps_back(writes: list[FencedWrite]) -> str:
    return "; ".join(f"{one} then {two}" for one, two in pairwise(writes) if two.fence < one.fence)


def uncounted() -> str:
    fence = JobStatus.objects.get(name="contested").fence
    newest = JobRun.objects.order_by("-fence").values_list("fence", flat=True)[0]
    return "" if newest <= fence else f"run {newest}, gate {fence}"


def tally(history: Path) -> dict[str, int]:
    """How much there was to judge."""
    events = [json.loads(line)["event"] for line in history.read_text().splitlines()]
    statuses = JobRun.objects.values_list("status", flat=True)
    return (
        {"runs": len(statuses), "fenced writes": FencedWrite.objects.count()}
        | {f"runs {status}": list(statuses).count(status) for status in sorted(set(statuses))}
        | {f"bodies that {event}": events.count(event) for event in sorted(set(events))}
    )
