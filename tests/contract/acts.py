"""What the tests, and the processes that they start, do with locks. Each act is one function."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Barrier, Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.db import connection, connections
from django.db.models import F

from django_singlejob import Lease, current_run, singleton_job
from django_singlejob.database import transactions
from django_singlejob.database.timeline import GRANT_BITS, Timeline
from django_singlejob.jobs.schedule import EPOCH, latest_slot, next_slot
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.request import LockRequest, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow, local_now, utc_now
from django_singlejob.process.holder import this_process
from django_singlejob.running import runner
from django_singlejob.worker.loop import Worker
from django_singlejob.worker.tick import Plan
from tests.waiting import PATIENCE, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pytest

    from django_singlejob import Job
    from django_singlejob.models import JobLock, JobRun, JobStatus
    from django_singlejob.running.outcomes import Outcome

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
BEAT = timedelta(milliseconds=100)


def ask(name: str = "nightly", **terms: Any) -> Lease | Refusal:
    """Ask for a lock. The lease sends no heartbeats, so its holder can play dead."""
    wanted = {"lease": MINUTE, "heartbeat_interval": None, "holder": this_process()} | terms
    return acquire(LockRequest(name=name, **wanted))


def take(name: str = "nightly", **terms: Any) -> Lease:
    answer = ask(name, **terms)
    assert isinstance(answer, Lease), answer
    return answer


def start_run(job_name: str = "nightly", **terms: Any) -> Lease:
    """Acquire as a call of the job would. The run then goes on in another process."""
    return take(terms.pop("name", job_name), job_name=job_name, trigger="call", **terms)


def check_for_ever() -> None:
    """What the body of a job does until its lease tells it to end."""
    run = current_run()
    assert run is not None
    while True:
        run.lease.check()
        work_for(0.01)


def expire(name: str = "nightly") -> None:
    """The lease expired three seconds ago, by all clocks. A holder without heartbeats then counts as dead."""
    ago = 3 * SECOND
    silent_for = lock(name).lease + ago
    last = {"heartbeat_at": DBNow() - silent_for, "sent_at": transactions.sent_now() - silent_for}
    assert locks().filter(name=name).update(expires_at=DBNow() - ago, **last) == 1


def set_the_databases_clock(ahead: timedelta, name: str = "nightly") -> None:
    """Set the clock ahead, or back, by this much after the row was written."""
    row = lock(name)
    times = {field: getattr(row, field) - ahead for field in ("acquired_at", "heartbeat_at", "expires_at")}
    assert locks().filter(name=name).update(**times) == 1


def age(lease: Lease, by: timedelta) -> None:
    """As if the holder had not been able to renew its lease for this long."""
    lease._state.proven_at -= by.total_seconds()


def stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """From now on, time passes for watches, and for a pass of this thread, only when they sleep, or when the test calls
    what this returns."""
    now = local_now()

    def let_it_pass(time: timedelta) -> None:
        nonlocal now
        now += max(time.total_seconds(), 1e-6)  # a float may be too large for less to change it

    sleeping = ["locking.acquire", "locking.clear"]
    for module in [*sleeping, "process.clock", "locking.liveness", "database.timeline", "worker.loop"]:
        monkeypatch.setattr(f"django_singlejob.{module}.local_now", lambda: now)
    for module in [*sleeping, "worker.due_run"]:
        monkeypatch.setattr(f"django_singlejob.{module}.sleep", lambda seconds: let_it_pass(timedelta(seconds=seconds)))
    return let_it_pass


def lose(name: str = "nightly", **terms: Any) -> tuple[Lease, Lease]:
    """A lease that was taken over, and its successor."""
    zombie = take(name, **terms)
    expire(name)
    return zombie, take(name, **terms)


def nth_fence(number: int) -> int:
    """The fence of the lock's nth grant on this server. The server's timeline is the high part."""
    sql, _ = gates().query.get_compiler(connection=connection).compile(Timeline())
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}")
        (timeline,) = cursor.fetchone()
    return (int(timeline) << GRANT_BITS) + number


def lock(name: str = "nightly") -> JobLock:
    seen = locks().look_up(name)
    assert seen is not None, f"Nobody holds {name!r}."
    return seen


def gate(name: str = "nightly") -> JobStatus:
    return gates().get(name=name)


def is_free(name: str = "nightly") -> bool:
    return locks().look_up(name) is None


def last_run(job_name: str = "nightly") -> JobRun:
    return runs().filter(job_name=job_name).latest("pk")


def everything() -> list[object]:
    """Every column of every row, to compare."""
    return [*gates().order_by("pk").values(), *locks().order_by("pk").values(), *runs().order_by("pk").values()]


def closing(act: Callable[..., Any], *arguments: Any, **terms: Any) -> Any:
    """Call `act` and close the connections. A thread has its own, which nothing else closes."""
    try:
        return act(*arguments, **terms)
    finally:
        connections.close_all()


@contextmanager
def patient() -> Iterator[None]:
    """Inside, MySQL waits for a row that another transaction holds as if without end, and not for 50 seconds."""
    if connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 3600")
    try:
        yield
    finally:
        connection.close()


@contextmanager
def statements(naming: str) -> Iterator[list[str]]:
    """What this thread sends that contains this name."""
    sent: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if naming in sql:
            sent.append(sql)
        return execute(sql, *others)

    with connection.execute_wrapper(note):
        yield sent


def in_thread(act: Callable[[], Any]) -> Any:
    """Call `act` in a thread, on a connection of its own, and return its value."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(closing, act).result()


def pass_gate(name: str = "nightly") -> None:
    """Change the gate as a grant does."""
    gates().filter(name=name).update(fence=F("fence") + 1, token=uuid4(), last_started_at=DBNow())


def win(name: str = "nightly") -> None:
    """Write what a grant writes, inside the caller's transaction."""
    pass_gate(name)
    now = {"acquired_at": DBNow(), "heartbeat_at": DBNow(), "expires_at": DBNow() + MINUTE, "sent_at": utc_now()}
    assert locks().insert(name, {"token": uuid4(), "hostname": "elsewhere", "pid": 1, **now})


def committing(writes: Callable[[], object], begun: Event, *, duration: float = 0.3) -> None:
    """Write and commit later: others that want the same rows must wait for the commit."""
    with transactions.durable(transactions.alias()):
        writes()
        begun.set()
        work_for(duration)


# --- jobs with a schedule. Time moves by editing the rows.


def hourly(*, ago: timedelta) -> str:
    """A schedule with a slot in every hour. The newest slot was `ago`, or up to a minute earlier."""
    return f"{(datetime.now(UTC) - ago).minute} * * * *"


def about_hourly(*, due_in: timedelta) -> timedelta:
    """A schedule with a slot about every hour. The next slot is due in `due_in`, or slightly sooner."""
    instant = datetime.now(UTC) + due_in
    return (instant - EPOCH) // round((instant - EPOCH) / HOUR)


def scheduled(name: str = "nightly", **settings: Any) -> Any:
    """A job that returns its run. Its newest slot was half an hour ago, unless another schedule is given."""
    return singleton_job(name, **{"schedule": hourly(ago=30 * MINUTE)} | settings)(current_run)


def newest_slot(job: Job, *, back: int = 0) -> datetime:
    """The latest slot of a regular schedule, or the slot `back` slots before it."""
    assert job.policy
    now = datetime.now(UTC)
    newest = latest_slot(job.policy.schedule, now)
    return newest - back * (next_slot(job.policy.schedule, now) - newest)


def coming_slot(job: Job) -> datetime:
    assert job.policy
    return next_slot(job.policy.schedule, datetime.now(UTC))


def fall_behind(job: Job, slots: int = 1) -> None:
    """The job's newest slots, this many, have not been run."""
    assert job.policy
    schedule = job.policy.schedule
    oldest = newest_slot(job, back=slots - 1)
    gates().remember(job.name)
    gates().filter(name=job.name).update(schedule=schedule.text, time_zone=schedule.time_zone, next_slot=oldest)


def let_pass(job: Job, slots: int) -> None:
    """This many slots of an hourly schedule have come due since, so the job's rows become that much older."""
    time = slots * HOUR
    status = gate(job.name)
    older = {name: getattr(status, name) - time for name in ("next_slot", "last_slot") if getattr(status, name)}
    gates().filter(name=job.name).update(**older)
    for lock in locks().filter(job_name=job.name, slot__isnull=False):
        assert lock.slot
        locks().filter(pk=lock.pk).update(slot=lock.slot - time)
    for run in runs().filter(job_name=job.name, slot__isnull=False):
        assert run.slot
        runs().filter(pk=run.pk).update(slot=run.slot - time)


def run_slot(job: Job, **terms: Any) -> Outcome:
    """Run the job as one step of a tick does or, with ``early``, as a cron daemon does."""
    return runner.run(job, trigger="schedule", **terms)


def ask_for_slot(job: Job) -> Lease | Refusal:
    """The same, but the run goes on in another process, which sends no heartbeats."""
    request = runner.Run(job, trigger="schedule").of_lock()
    return acquire(request._replace(lease=MINUTE, heartbeat_interval=None))


def die_running(job: Job) -> datetime:
    """A process claims the due slot, starts the run and dies. Returns the slot."""
    answer = ask_for_slot(job)
    assert isinstance(answer, Lease), answer
    assert answer.grant.slot
    expire(job.lock)
    return answer.grant.slot


def slots_run(job_name: str = "nightly") -> list[tuple[datetime | None, int, str]]:
    """The slot, attempt and status of each run in the history."""
    return list(runs().filter(job_name=job_name).order_by("pk").values_list("slot", "attempt", "status"))


def tick(queues: Sequence[str] = (), interval: timedelta = Plan.interval) -> Generator[Outcome]:
    """One pass over what is due, as `singleton_worker --once` makes it."""
    return Worker(Plan(once=True, queues=queues, interval=interval)).work()


def ticked() -> list[Outcome]:
    return list(tick())


def all_at_once(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each act returns. Each runs in a thread and on a connection of its own; all begin together."""
    together = Barrier(len(acts))

    def begin(act: Callable[[], Any]) -> Any:
        locks().exists()  # connects
        together.wait(PATIENCE)
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(closing, [begin] * len(acts), acts))


def without_seconds(said: str) -> str:
    """A command's output about runs, as if the machine were idle."""
    return re.sub(r" in \d+\.\d s", " in 0.0 s", said)
