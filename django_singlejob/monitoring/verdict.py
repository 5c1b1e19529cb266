"""One verdict on everything, which both ``singleton_status`` and the admin's overview show. This module only reads."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from django_singlejob.conf import options, quoted
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import has_tasks
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.models.jobs import gates
from django_singlejob.models.unreadable import Unreadable, reporting
from django_singlejob.monitoring.acknowledging import acknowledged
from django_singlejob.monitoring.findings import (
    Finding,
    of_code,
    of_cut,
    of_edits,
    of_health,
    of_nothing,
    of_queue,
    of_row,
    of_server,
    of_short_interval,
    of_worker,
)
from django_singlejob.monitoring.health import OVERDUE, Health, Level, State, Survey, survey, telling_last_runs
from django_singlejob.monitoring.marks import marks
from django_singlejob.monitoring.queues import LATE, Queue, has_any, queues as read_queues, read_oldest
from django_singlejob.monitoring.workers import REMEMBERED, SeenWorker, Server, servers, serves, workers


class UnknownName(SingleJobError):
    """There is no job or queue of this name."""


class Scope(NamedTuple):
    """What to judge: everything, or only these jobs and queues. Jobs, locks, queues and servers that are ``ignored``
    are left out."""

    jobs: Collection[str] = ()
    queues: Collection[str] = ()
    ignored: Collection[str] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether only some jobs and queues are judged."""
        return bool(self.jobs or self.queues)

    def has_job(self, name: str) -> bool:
        """Whether the job or the lock of this name is judged."""
        return name not in self.ignored and (not self.is_narrow or name in self.jobs)

    @property
    def has_queues(self) -> bool:
        """Whether any queue is judged."""
        return bool(self.queues or not self.is_narrow)

    def has_queue(self, name: str) -> bool:
        """Whether the queue of this name is judged."""
        return self.has_queues and name not in self.ignored and (not self.queues or name in self.queues)

    def has_worker(self, worker: SeenWorker | Server) -> bool:
        """Whether the worker or the server is shown. In a narrow scope, only those that serve one of its queues are."""
        return not self.is_narrow or any(serves(worker, name) for name in self.queues)

    def has_server(self, server: Server) -> bool:
        """Whether the server is judged."""
        return not self.is_narrow and server.hostname not in self.ignored


EVERYTHING = Scope()


class Verdict(NamedTuple):
    """How everything is doing.

    Attributes:
        findings: what needs attention, the worst first.
        healths: the jobs, and the locks that are held, except those of workers; sorted by name.
        queues: the queues in which one-offs are due or have failed lately, and those that a live worker or the scope
            names; sorted by name.
        workers: the workers that are alive, and those that died and whose locks have not been cleared.
        servers: the servers that ask for what is due, or did so lately.
        locks_of_workers: the locks of all workers.
        is_cut: whether there are more jobs and locks than were read: then ``healths`` are the worst.
        is_ill_cut: whether even more of them may need attention than ``findings`` says.
        is_enabled: whether jobs and tasks run at all. If not, nothing of this needs attention.
    """

    findings: Sequence[Finding]
    healths: Sequence[Health]
    queues: Sequence[Queue]
    workers: Sequence[SeenWorker]
    servers: Sequence[Server]
    locks_of_workers: Sequence[Health]
    is_cut: bool
    is_ill_cut: bool
    is_enabled: bool = True

    @property
    def level(self) -> Level:
        """The level of the worst finding that nobody has acknowledged."""
        return max((finding.level for finding in self.findings if not finding.acknowledged), default=Level.OK)

    @property
    def levels(self) -> dict[str, Level]:
        """The levels of the jobs and locks that need attention, by name."""
        mildest_first = sorted(self.findings, key=lambda found: found.level)
        return {found.subject: found.level for found in mildest_first if found.about in ("job", "lock")}

    def served_by(self, queue: Queue) -> int:
        """The number of live workers that serve the queue."""
        return sum(worker.is_live and serves(worker, queue.name) for worker in self.workers)


def judge(
    scope: Scope = EVERYTHING,
    *,
    failures: int = 1,
    with_one_offs: bool = True,
    with_last_runs: bool = False,
    broken: Sequence[Exception] = (),
) -> Verdict:
    """Judge everything in the scope.

    ``failures``: the number of failures at which a job or a queue is critical. ``broken``: why some jobs could not be
    registered. If ``with_one_offs`` is false, for a
    user without permission to see one-offs, no queue is judged. If ``with_last_runs`` is true, the jobs tell of their
    last runs. The number of queries does not depend on the number of
    rows, and each reads a limited number. Raises ``UnknownName`` if the scope names a job or a queue that does not
    exist.
    """
    names, ignored = (scope.jobs, ()) if scope.is_narrow else (None, scope.ignored)
    unreadable: list[Unreadable] = []
    with reporting(unreadable.append):
        gates_read = telling_last_runs(gates()) if with_last_runs else None
        surveyed = survey(names, ignored=ignored, rows=gates_read)
        verdict = _judge(scope, surveyed, failures=failures, with_one_offs=with_one_offs)
    findings = [found for found in verdict.findings if not _is_only_unreadable(found, unreadable)]
    findings = [*_acknowledged(findings), *map(of_row, dict.fromkeys(unreadable))]
    verdict = verdict._replace(findings=_sorted(findings))
    if not options().enabled:
        verdict = verdict._replace(findings=[], is_ill_cut=False, is_enabled=False)
    rows: list[Finding] = []
    # If something critical was found, that is known anyway.
    if verdict.is_ill_cut and verdict.level < Level.CRITICAL:
        rows.append(of_cut())
    if broken:
        rows.extend(map(of_code, broken))
    elif not (scope.is_narrow or verdict.healths or registry.all_jobs() or has_tasks()):
        rows.append(of_nothing())
    return verdict._replace(findings=_sorted([*verdict.findings, *rows])) if rows else verdict


def _acknowledged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The same, with who has acknowledged them."""
    known = acknowledged(found.subject for found in findings) if findings else {}
    for found in findings:
        yield found._replace(acknowledged=known.get((found.subject, found.kind.value)))


def _is_only_unreadable(found: Finding, rows: Sequence[Unreadable]) -> bool:
    """Whether it says that a job's row is missing, which in truth cannot be read."""
    return found.kind is State.UNSEEN and found.subject in {row.key for row in rows}


def _judge(scope: Scope, surveyed: Survey, *, failures: int, with_one_offs: bool) -> Verdict:
    own = [health for health in surveyed.healths if _is_lock_of_worker(health.name)]
    is_complete = not (scope.is_narrow or scope.ignored or surveyed.is_cut)
    marked = marks(REMEMBERED)
    everybody = workers([health.lock for health in own if health.lock] if is_complete else None, marked)
    asking = [server for server in servers(marked) if scope.has_worker(server)]
    known = [health for health in surveyed.healths if not _is_lock_of_worker(health.name)]
    _refuse_unknown_jobs(scope, known)
    healths = [health for health in known if scope.has_job(health.name)]
    queues = _queues(scope, everybody) if with_one_offs and scope.has_queues else []
    findings = [
        *(finding for health in healths for finding in of_health(health, failures)),
        *of_edits(healths),
        *(finding for queue in queues for finding in of_queue(queue, everybody, failures)),
        *_of_workers(scope, own, everybody),
        *_of_passes(healths, everybody),
        *(finding for server in asking for finding in of_server(server) if scope.has_server(server)),
    ]
    return Verdict(
        findings=_sorted(findings),
        healths=healths,
        queues=queues,
        workers=[worker for worker in everybody if scope.has_worker(worker)],
        servers=asking,
        locks_of_workers=own,
        is_cut=surveyed.is_cut,
        is_ill_cut=surveyed.is_ill_cut,
    )


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.rank)


def _is_lock_of_worker(name: str) -> bool:
    return name.startswith(f"{WORKER_LOCK}.")


def _queues(scope: Scope, everybody: Sequence[SeenWorker]) -> list[Queue]:
    # If a pause has just ended by itself, no worker has had the time to run what waited.
    paused = gates().paused(lately=OVERDUE)
    found = read_queues(scope.queues, ignored=scope.ignored, passed_jobs=scope.ignored, paused=paused)
    if any(queue.oldest > LATE for queue in found):
        read_oldest(scope.queues)  # one that waits for ever may be one that cannot be read
    named = {name for worker in everybody if worker.is_live for name in worker.queues}
    _refuse_unknown_queues(scope, named | {queue.name for queue in found})
    missing = {name for name in named | {*scope.queues} if scope.has_queue(name)} - {queue.name for queue in found}
    return sorted([*found, *(Queue(name=name) for name in missing)], key=lambda queue: queue.name)


def _of_workers(scope: Scope, own: Sequence[Health], everybody: Sequence[SeenWorker]) -> Iterator[Finding]:
    if scope.is_narrow:
        return
    is_last = not any(worker.is_live for worker in everybody)
    for health in own:
        if health.name not in scope.ignored:
            yield from of_worker(health, is_last=is_last)


def _of_passes(healths: Sequence[Health], everybody: Sequence[SeenWorker]) -> Iterator[Finding]:
    if everybody and all(worker.is_once for worker in everybody):
        for health in healths:
            yield from of_short_interval(health)


def _refuse_unknown_jobs(scope: Scope, healths: Sequence[Health]) -> None:
    known = {health.name for health in healths}
    for name in scope.jobs:
        if name not in known:
            raise UnknownName(
                f"There is no job {quoted(name)}: none of that name is registered, has run, or holds a lock. "
                "Check the name: singleton_status without --job lists them."
            )


def _refuse_unknown_queues(scope: Scope, known: Collection[str]) -> None:
    for name in scope.queues:
        if name not in known and not has_any(name):
            raise UnknownName(
                f"There is no queue {quoted(name)}: no one-off was enqueued in it, and no live worker serves it by "
                "name. Check the name: singleton_status without --queue lists those in use."
            )
