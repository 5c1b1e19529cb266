"""What there is to judge in the end: the history, and the state of the database and the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from tests.app.models import FencedWrite
from tests.chaos.history import read
from tests.chaos.judge import Count, Evidence, Write

if TYPE_CHECKING:
    from pathlib import Path


def gathered(folder: Path, left: dict[str, int]) -> Evidence:
    """`left`: the number of rows of each kind that should not be there."""
    return Evidence(
        events=read(folder / "history.jsonl"),
        writes=[Write(*row) for row in FencedWrite.objects.values_list("pk", "lock", "fence")],
        counts={path.name.removeprefix("counts-"): counts(path) for path in folder.glob("counts-*")},
        gates=dict(JobStatus.objects.values_list("name", "fence")),
        one_offs={args[0]: status for args, status in OneOffJob.objects.values_list("args", "status")},
        left=left,
    )


def counts(path: Path) -> list[Count]:
    return [Count(*map(int, line.split())) for line in path.read_text().splitlines()]


def orphans() -> dict[str, int]:
    """Rows that nobody will ever end, since the lock that they need is gone. Count them before any lock is cleared,
    because that would end them."""
    held = set(JobLock.objects.values_list("token", flat=True))
    running = JobRun.objects.filter(status="running").values_list("token", flat=True)
    in_progress = OneOffJob.objects.filter(status="in_progress").values_list("token", flat=True)
    return {
        "running runs without a lock": len(set(running) - held),
        "one-offs in progress without a lock": len(set(in_progress) - held),
    }


def leftovers() -> dict[str, int]:
    """What remains when everything has ended, and the locks of the dead are cleared."""
    return {
        "locks": JobLock.objects.count(),
        "running runs": JobRun.objects.filter(status="running").count(),
        "one-offs waiting or in progress": OneOffJob.objects.filter(status__in=["waiting", "in_progress"]).count(),
    }
