"""What an onlooker sees."""

from __future__ import annotations

from pathlib import Path

from django_singlejob.models import JobLock, JobRun, JobStatus


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
