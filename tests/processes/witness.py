"""What an onlooker sees."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from django_singlejob.models import JobLock, JobRun, JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def eventually(see: Callable[[], T], timeout: float = 30) -> T:
    """The value of `see()`, as soon as it is true."""
    deadline = time.monotonic() + timeout
    while not (seen := see()):
        assert time.monotonic() < deadline, f"{see} was never true."
        time.sleep(0.02)
    return seen


def ends(job: str) -> list[str]:
    """The statuses of the job's runs, oldest first."""
    return list(JobRun.objects.filter(job_name=job).order_by("pk").values_list("status", flat=True))


def is_over(job: str, *statuses: str) -> bool:
    """Whether its runs ended with these statuses, that is recorded, and nobody holds its lock."""
    status = JobStatus.objects.get(name=job)
    recorded = (status.run_count, status.last_status) == (len(statuses), statuses[-1])
    return recorded and ends(job) == list(statuses) and not JobLock.objects.filter(name=job).exists()


def is_alive(pid: int) -> bool:
    """Whether the process exists. A zombie, dead but not collected, does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
