"""The jobs that a worker does not try for now, and why."""

from collections.abc import Iterable, Set as AbstractSet
from enum import Enum, auto

from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job


class Why(Enum):
    """Why a job, or every job with a lock, is left out."""

    RUNNING = auto()  # one of this worker's runs uses it
    HELD = auto()  # another process has the lock, or the job is paused
    WATCHED = auto()  # its holder may be dead, which is not decided yet
    REFUSED = auto()  # the job may not run, although its lock is free
    BEHIND = auto()  # the job has a one-off, but its lock is left out


class LeftOut:
    """The names of jobs and locks that are left out, each for one reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, Why] = {}

    @property
    def names(self) -> AbstractSet[str]:
        return self._reasons.keys()

    def blocks(self, job: Job) -> bool:
        """Whether the job, or its lock, is left out: after a lock was renamed, the old one may be watched."""
        return job.name in self._reasons or job.lock in self._reasons

    def add(self, why: Why, names: Iterable[str]) -> None:
        """Leave these out too. Names that are left out already keep their reason."""
        for name in names:
            self._reasons.setdefault(name, why)

    def drop(self, *reasons: Why) -> None:
        """Try again what was left out for one of these reasons."""
        self._reasons = {name: why for name, why in self._reasons.items() if why not in reasons}

    def begin(self, job: Job) -> None:
        """Leave out the job and its lock until the job ends."""
        self._reasons |= dict.fromkeys((job.name, job.lock), Why.RUNNING)

    def end(self, job: Job) -> set[str]:
        """Take note that a run of the job has ended. Returns the names of the jobs that waited for its lock."""
        behind = {name for name, why in self._reasons.items() if why is Why.BEHIND}
        freed = {name for name in behind if registry.is_known(name) and registry.get(name).lock == job.lock}
        for name in {job.name, job.lock} | freed:
            self._reasons.pop(name, None)
        return freed

    def running(self) -> set[str]:
        """The names and locks of the jobs that this worker runs."""
        return {name for name, why in self._reasons.items() if why is Why.RUNNING}
