"""The jobs that a worker does not try for now, and why."""

from collections.abc import Iterable, Set as AbstractSet
from enum import Enum, auto

from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job


class Why(Enum):
    """Why a job, or every job with a lock, is left out."""

    RUNNING = auto()  # one of this worker's runs uses it
    HELD = auto()  # another process has the lock
    PAUSED = auto()
    WATCHED = auto()  # its holder may be dead, which is not decided yet
    REFUSED = auto()  # the job may not run, although its lock is free
    BEHIND = auto()  # the job has a one-off, but its lock is left out


class LeftOut:
    """The jobs, and the locks, that are left out, each for one reason. A lock may have the name of a job that uses
    another one."""

    def __init__(self) -> None:
        self._jobs: dict[str, Why] = {}
        self._locks: dict[str, Why] = {}

    @property
    def names(self) -> AbstractSet[str]:
        """The jobs that are left out, except some whose lock has another name: ask ``blocks``."""
        return self._jobs.keys() | {name for name in self._locks if _lock_of(name) == name}

    def blocks(self, job: Job) -> bool:
        """Whether the job, or its lock, is left out."""
        return job.name in self._jobs or job.lock in self._locks

    def add(self, why: Why, *, jobs: Iterable[str] = (), locks: Iterable[str] = ()) -> None:
        """Leave these out too. What is left out already keeps its reason."""
        for names, reasons in (jobs, self._jobs), (locks, self._locks):
            for name in names:
                reasons.setdefault(name, why)

    def drop(self, *reasons: Why) -> None:
        """Try again what was left out for one of these reasons."""
        self._jobs = {name: why for name, why in self._jobs.items() if why not in reasons}
        self._locks = {name: why for name, why in self._locks.items() if why not in reasons}

    def begin(self, job: Job) -> None:
        """Leave out the job and its lock until the job ends."""
        self._jobs[job.name] = self._locks[job.lock] = Why.RUNNING

    def end(self, job: Job) -> set[str]:
        """Take note that a run of the job has ended. Returns the names of the jobs that waited for its lock."""
        freed = {name for name, why in self._jobs.items() if why is Why.BEHIND and _lock_of(name) == job.lock}
        for name in {job.name} | freed:
            self._jobs.pop(name, None)
        self._locks.pop(job.lock, None)
        return freed


def _lock_of(name: str) -> str | None:
    """The name of the job's lock; ``None`` if there is no such job."""
    return registry.get(name).lock if registry.is_known(name) else None
