"""What is known of everything, as objects for programs: ``django_singlejob.status()``, which ``singleton_status``
prints as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django_singlejob.jobs.discovery import autodiscover
from django_singlejob.monitoring.findings import Finding
from django_singlejob.monitoring.health import Health, Level
from django_singlejob.monitoring.queues import Queue
from django_singlejob.monitoring.verdict import Verdict, judge
from django_singlejob.monitoring.workers import SeenWorker, Server
from django_singlejob.process.progress import Progress

if TYPE_CHECKING:
    from django_singlejob.models import JobLock, JobStatus

#: It grows when a field changes its meaning or goes. A new field does not change it.
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class FindingFacts:
    """Something that needs attention."""

    kind: str
    """A job's state, or a kind of its own: ``"overdue"``."""
    level: str
    """``"warning"`` or ``"critical"``."""
    about: str
    """What it is about: ``"job"``, ``"lock"``, ``"queue"``, ``"worker"``, ``"server"``, ``"row"`` or ``"code"``."""
    subject: str
    """The name of that."""
    since: datetime | None
    """When it began (UTC); ``None`` if the rows do not tell."""
    message: str
    """What happened, for people."""
    remedy: str
    """What to do about it, for people."""
    acknowledged_by: str
    """The user who has acknowledged it; may be empty."""
    acknowledged_until: datetime | None
    """Until when (UTC); ``None``: nobody has, or that is over. Then it does not count for the status's level."""


@dataclass(frozen=True, kw_only=True)
class ProgressFacts:
    """How far a run is, as its last heartbeat said."""

    done: float | None
    """How much is done, in any unit; ``None`` if the run has not said."""
    total: float | None
    text: str
    line: str
    """The last line that the run printed; may be empty."""


@dataclass(frozen=True, kw_only=True)
class HolderFacts:
    """The holder of a lock, and its lock: columns of ``JobLock``."""

    name: str
    hostname: str
    pid: int
    command: str
    acquired_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    slot: datetime | None
    attempt: int
    age: timedelta
    """How long it has held the lock, by the database's clock."""
    stopped_by: str
    """The user who has stopped the run; empty if nobody has."""
    progress: ProgressFacts


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job, or a lock that is held and belongs to no job. What is not known is ``None``."""

    name: str
    is_job: bool
    """Whether it is a job, and not only a lock."""
    state: str
    level: str
    """``"ok"``, ``"warning"`` or ``"critical"``."""
    schedule: str
    """In words; empty if there is none."""
    next_slot: datetime | None
    last_slot: datetime | None
    last_started_at: datetime | None
    last_finished_at: datetime | None
    last_success_at: datetime | None
    """When its last successful run finished; ``None`` also if the history does not have it any more."""
    last_status: str | None
    last_error: str | None
    """The error of its last failure, at most 1,000 characters of it; ``None`` if the job is not failing."""
    last_duration: timedelta | None
    """How long the last run took; ``None`` until it has ended."""
    consecutive_failures: int | None
    run_count: int
    mean_duration: timedelta | None
    misfire_count: int | None
    coalesced_count: int | None
    paused: bool | None
    paused_until: datetime | None
    pause_reason: str | None
    paused_by: str | None
    holder: HolderFacts | None
    """``None`` if its lock is free."""


@dataclass(frozen=True, kw_only=True)
class QueueFacts:
    """What is in a queue."""

    name: str
    due: int
    """The number of one-offs that are due and wait."""
    oldest: timedelta | None
    """How long the oldest of them has been due; ``None`` if none is due."""
    failed: int
    """How many failed in the last hour."""
    finished: int | None
    """How many finished in the last hour, if any failed; ``None`` if there are too many to count."""
    workers: int
    """The number of live workers that serve it."""


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """A worker that runs, or that ran ``--once`` or ``--drain`` a short time ago."""

    holder: str
    """Its host name and process ID, for people."""
    queues: tuple[str, ...]
    """The queues that it serves; empty: all."""
    seen_at: datetime
    is_once: bool
    is_live: bool


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """A server that asks for what is due in some queues, or did so in the last three days."""

    hostname: str
    queues: tuple[str, ...]
    """The queues that it serves; empty: all."""
    first_seen_at: datetime
    seen_at: datetime
    """When it was last seen (UTC). It is marked every five minutes."""
    is_once: bool
    """Whether passes ask there, as cron starts them, and not a worker that stays."""
    release: str
    """Which code runs there; empty if that is not known."""
    clock_error: timedelta | None
    """How far its clock was ahead of the database's; ``None`` if that is not known."""
    trouble: str
    """Why not everything that is due runs there; empty if it does."""
    is_asking: bool
    """Whether it still asks."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How everything is doing. All texts are in the language that is active."""

    version: int = VERSION
    level: str
    """The level of the worst finding: ``"ok"``, ``"warning"`` or ``"critical"``."""
    enabled: bool
    """``SINGLEJOB["ENABLED"]``. If it is false, there are no findings."""
    is_cut: bool
    """Whether there are more jobs or locks than were read, so that ``jobs`` has only the worst."""
    findings: tuple[FindingFacts, ...]
    """What needs attention, the worst first."""
    jobs: tuple[JobFacts, ...]
    queues: tuple[QueueFacts, ...]
    workers: tuple[WorkerFacts, ...]
    servers: tuple[ServerFacts, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same in JSON's types: instants as text in ISO 8601, durations in seconds."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def status() -> Status:
    """Judge everything, as ``singleton_status --check`` does.

    Takes five queries, or at most eleven if one-offs are late, or if there are thousands of jobs, locks or one-offs. A
    module that registers jobs and cannot be imported is a finding, and so is a row that cannot be read. Raises what the
    database raises if it does not answer or refuses, and ``ImproperlyConfigured`` if a setting is invalid.
    """
    return status_of(judge(with_last_runs=True, broken=autodiscover()))


def status_of(verdict: Verdict) -> Status:
    """The verdict, ``with_last_runs``, for programs."""
    levels = verdict.levels
    return Status(
        level=_word(verdict.level),
        enabled=verdict.is_enabled,
        is_cut=verdict.is_cut,
        findings=tuple(map(_finding, verdict.findings)),
        jobs=tuple(_job(health, levels.get(health.name, Level.OK)) for health in verdict.healths),
        queues=tuple(_queue(queue, verdict.served_by(queue)) for queue in verdict.queues),
        workers=tuple(map(_worker, verdict.workers)),
        servers=tuple(map(_server, verdict.servers)),
    )


def _word(level: Level) -> str:
    return level.name.lower()


def _finding(found: Finding) -> FindingFacts:
    return FindingFacts(
        kind=found.kind.value,
        level=_word(found.level),
        about=found.about,
        subject=found.subject,
        since=found.since,
        message=str(found.what_happened),
        remedy=str(found.what_to_do),
        acknowledged_by=found.acknowledged.by if found.acknowledged else "",
        acknowledged_until=found.acknowledged.until if found.acknowledged else None,
    )


def _job(health: Health, level: Level) -> JobFacts:
    status = health.status
    return JobFacts(
        name=health.name,
        is_job=health.is_job,
        state=health.state.value,
        level=_word(level),
        schedule=health.schedule,
        **_columns(status, _STATUS_COLUMNS),
        last_duration=_last_duration(status) if status else None,
        run_count=status.run_count if status else 0,
        paused=status.is_paused if status else None,
        # Of a pause that has ended by itself, nothing.
        **_columns(status if status and status.is_paused else None, _PAUSE_COLUMNS),
        holder=_holder(health.lock) if health.lock else None,
    )


def _last_duration(status: "JobStatus") -> timedelta | None:
    """``None`` if the last run has not ended, or if its holder died."""
    started, finished = status.last_started_at, status.last_finished_at
    return finished - started if started and finished and finished >= started else None


_STATUS_COLUMNS = (
    "next_slot",
    "last_slot",
    "last_started_at",
    "last_finished_at",
    "last_success_at",
    "last_status",
    "last_error",
    "consecutive_failures",
    "mean_duration",
    "misfire_count",
    "coalesced_count",
)
_PAUSE_COLUMNS = ("paused_until", "pause_reason", "paused_by")


def _columns(row: "JobStatus | None", names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name, None) for name in names}


def _holder(lock: "JobLock") -> HolderFacts:
    return HolderFacts(
        name=lock.name,
        hostname=lock.hostname,
        pid=lock.pid,
        command=lock.command,
        acquired_at=lock.acquired_at,
        heartbeat_at=lock.heartbeat_at,
        expires_at=lock.expires_at,
        slot=lock.slot,
        attempt=lock.attempt,
        age=lock.now - lock.acquired_at,
        stopped_by=lock.stopped_by,
        progress=_progress(Progress.read(lock.progress)),
    )


def _progress(told: Progress) -> ProgressFacts:
    return ProgressFacts(done=told.done, total=told.total, text=told.text, line=told.line)


def _queue(queue: Queue, workers: int) -> QueueFacts:
    return QueueFacts(
        name=queue.name,
        due=queue.due,
        oldest=queue.oldest if queue.due else None,
        failed=queue.failed,
        finished=queue.finished,
        workers=workers,
    )


def _worker(worker: SeenWorker) -> WorkerFacts:
    return WorkerFacts(**worker._asdict())


def _server(server: Server) -> ServerFacts:
    return ServerFacts(**{field.name: getattr(server, field.name) for field in fields(ServerFacts)})


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return value
