"""The race itself, as the starter sees it: round after round, all servers start at the same instant."""

import time
from collections.abc import Iterator
from datetime import timedelta

from django.utils import timezone

from django_singlejob.models import JobRun, JobStatus

from .jobs import contested
from .results import Round
from .servers import Server

# How long the call may take to reach the last server before the first one starts, in seconds.
HEAD_START = 0.01


def race(servers: list[Server], rounds: int) -> Iterator[Round]:
    """Each round as it ends. The next one begins when all servers have answered."""
    for number in range(1, rounds + 1):
        _an_hour_passes()
        start_at = time.monotonic() + HEAD_START
        for server in servers:
            server.call(start_at)
        yield Round(number, [server.hear() for server in servers])


def _an_hour_passes() -> None:
    """Instead of waiting, edit the row that records when the hourly job last started."""
    JobStatus.objects.filter(name=contested.name).update(last_started_at=timezone.now() - timedelta(hours=1))


def newest_run() -> int:
    """The last row of the history before a race; 0 if there is none."""
    return JobRun.objects.order_by("pk").values_list("pk", flat=True).last() or 0


def history_since(run: int) -> list[int]:
    """The runs of the race's job after that row, whatever their status."""
    return list(JobRun.objects.filter(job_name=contested.name, pk__gt=run).values_list("pk", flat=True))
