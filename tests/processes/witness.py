"""What an onlooker sees."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from django_singlejob.models import JobLock, JobRun, JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen


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
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """The letter that the system has for it, such as T if it is stopped; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def guard_of(command: Popen[bytes]) -> int:
    """The process number of its guard; 0 if it has none at the moment."""
    return next((pid for pid, words in started_by(command) if "guard.py" in words), 0)


def children_of(command: Popen[bytes]) -> list[int]:
    """The process numbers of what it has started, apart from its guard."""
    return [pid for pid, words in started_by(command) if "guard.py" not in words]


def started_by(command: Popen[bytes]) -> Iterator[tuple[int, str]]:
    """The processes that it has started: their numbers and command lines."""
    for pid in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield int(pid), Path(f"/proc/{pid}/cmdline").read_text()


def descendants(ancestor: int) -> list[int]:
    """The processes that this one has started, and those that they have started, and so on. First come its own."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [ancestor]
    for process in found:
        found += [pid for pid, parent in parents.items() if parent == process]
    return found[1:]
