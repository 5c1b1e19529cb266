"""A company with many jobs and servers, in a bad night: what the overview must still show on one screen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django_singlejob import singleton_job
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.jobs.schedule import next_slot, parse, slots_between
from django_singlejob.models import JobLock, JobRun, OneOffJob
from django_singlejob.models.jobs import gates
from tests.app.jobs import LONG_LEASE

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
SCHEDULES = ["*/15 * * * *", "5 * * * *", "0 */2 * * *", "*/30 * * * *"]
NOUNS = ["carts", "invoices", "prices", "rates", "reports", "searches", "stock", "thumbnails"]
VERBS = ["archive", "check", "export", "import", "refresh"]


def fill(number_of_jobs: int, number_of_servers: int) -> None:
    """Create jobs, of which each tenth is failing, one has a dead holder and some are running, and servers, each with a
    worker, of which the last one is dead."""
    now = datetime.now(UTC)
    servers = [f"web-{number}" for number in range(1, number_of_servers + 1)]
    names = [f"{VERBS[number % 5]}_{NOUNS[number % 8]}{_part(number // 40)}" for number in range(number_of_jobs)]
    for number, name in enumerate(names):
        _job(name, SCHEDULES[number % 4], servers, now, is_failing=number % 10 == 3)
    for number, name in enumerate(names[: max(number_of_jobs // 5, 2)]):
        _hold(name, servers[number % len(servers)], now - 3 * HOUR, silence=HOUR if number == 0 else SECOND)
    for number, server in enumerate(servers):
        is_dead = number and server == servers[-1]
        _hold(f"{WORKER_LOCK}.{number}", server, now - HOUR, silence=HOUR / 2 if is_dead else SECOND, job_name="")
    _enqueue(now)


def _part(number: int) -> str:
    return f"_{number}" if number else ""


def _job(name: str, schedule: str, servers: Sequence[str], now: datetime, *, is_failing: bool) -> None:
    singleton_job(name, schedule=schedule, lease=LONG_LEASE)(print)
    gates().remember(name)
    slots = [*slots_between(parse(schedule), now - 24 * HOUR, now)][::-1]
    JobRun.objects.bulk_create(
        _run(name, servers[(index + len(name)) % len(servers)], slot, is_failed=is_failing and index < 3)
        for index, slot in enumerate(slots)
        if index % 9 != 8
    )
    gates().filter(name=name).update(
        schedule=schedule,
        time_zone="UTC",
        next_slot=next_slot(parse(schedule), now),
        last_started_at=slots[0],
        last_finished_at=min(slots[0] + SECOND * (5 + len(name) * 9), now),
        last_status="failed" if is_failing else "successful",
        run_count=len(slots),
        mean_duration=SECOND if is_failing else 20 * HOUR,
        consecutive_failures=3 if is_failing else 0,
    )


def _run(name: str, hostname: str, at: datetime, *, is_failed: bool, **columns: Any) -> JobRun:
    length = SECOND * (5 + len(name) * 9)
    facts = {"fence": 1, "token": uuid4(), "trigger": "schedule", "pid": 4711, "slot": at, "started_at": at}
    ended = {"status": "failed" if is_failed else "successful", "finished_at": at + length, "duration": length}
    error = f"ConnectionRefusedError: the warehouse does not answer, for the {len(name)}th time" if is_failed else ""
    return JobRun(job_name=name, hostname=hostname, error=error, **facts | ended | columns)


def _hold(name: str, hostname: str, since: datetime, silence: timedelta, job_name: str | None = None) -> None:
    token, heartbeat_at = uuid4(), datetime.now(UTC) - silence
    JobLock.objects.create(
        name=name,
        job_name=name if job_name is None else job_name,
        token=token,
        hostname=hostname,
        pid=2215,
        acquired_at=since,
        heartbeat_at=heartbeat_at,
        heartbeat_interval=10 * SECOND,
        expires_at=heartbeat_at + 10 * MINUTE,
        sent_at=heartbeat_at,
        progress={"done": 120, "total": 500, "text": "importing"} if job_name is None else {},
    )
    if job_name is None:
        going_on: dict[str, Any] = {"status": "running", "finished_at": None, "duration": None, "token": token}
        _run(name, hostname, since, is_failed=False, **going_on).save()


def _enqueue(now: datetime) -> None:
    for number, queue in enumerate(["default", "mail", "search", "images"]):
        OneOffJob.objects.bulk_create(
            OneOffJob(
                job_name="refresh_carts",
                queue_name=queue,
                created_at=now - HOUR,
                run_after=now - (20 * MINUTE if queue == "images" else SECOND * number),
            )
            for _ in range(number + 1)
        )
