"""A shop whose jobs run on three servers, and what happened to them in the last day, to be shown in the admin."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_singlejob import singleton_job
from django_singlejob.control.pausing import pause
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import next_slot, slots_between
from django_singlejob.models import JobLock, JobRun, OneOffJob, WorkerPass
from django_singlejob.models.jobs import gates
from django_singlejob.monitoring.marks import Mark, record
from django_singlejob.process.holder import Holder
from tests.app.jobs import LONG_LEASE, say, this_run, wait_until_told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SERVERS = ["web-1", "web-2", "web-3"]
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
#: For how long the exchange rates have not been asked for.
LATE = HOUR
SMTP_ERROR = "SMTPServerDisconnected: Connection unexpectedly closed: timed out"
ORIGIN = "/srv/shop/newsletter/jobs.py\n23\nnewsletter\nconnection.send_messages(batch)"
OUTPUT = "".join(f"2026-11-26 03:00:{number % 60:02} page {number} of 600: 50 articles\n" for number in range(1, 200))
OUTPUT += (
    "\\x1b[31mwarning\\x1b[0m: the supplier's page 200 has <b>no</b> articles, see https://supplier.example/"
    + "x" * 200
)
TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/shop/lib/django_singlejob/running/serving.py", line 229, in _run
    value = contextvars.copy_context().run(call)
  File "/srv/shop/lib/django_singlejob/running/runner.py", line 411, in body
    value = self.job.func(*self.args, **self.kwargs)
  File "/srv/shop/newsletter/jobs.py", line 23, in newsletter
    connection.send_messages(batch)
  File "/usr/lib/python3.12/smtplib.py", line 405, in getreply
    raise SMTPServerDisconnected("Connection unexpectedly closed: " + str(error))
smtplib.{SMTP_ERROR}
"""


@dataclass(frozen=True)
class Habit:
    """How a job of the shop usually behaves."""

    name: str
    schedule: str | timedelta | None
    seconds: float
    description: str


HABITS = [
    Habit("backup", "30 3 * * *", 2400, "Copies the database to the other data centre."),
    Habit("clean_up_carts", "15 * * * *", 9, "Deletes carts that nobody has touched for a month."),
    Habit("exchange_rates", timedelta(minutes=15), 1.4, "Asks the bank for today's rates."),
    Habit("invoices", None, 130, "Writes the invoices of what was sold, and sends them."),
    Habit("newsletter", "0 * * * *", 340, "Sends what subscribers have not got yet."),
    Habit("sales_report", "5 * * * *", 48, "Adds up what was sold in the last hour."),
    Habit("stock_sync", timedelta(minutes=10), 75, "Compares the stock with the warehouse's."),
    Habit("thumbnails", "*/20 * * * *", 0.4, "Makes small pictures of new goods."),
]


def open_shop() -> None:
    """Registers its jobs."""
    for habit in HABITS:
        singleton_job(habit.name, schedule=habit.schedule, lease=LONG_LEASE)(described(habit.description))


def described(description: str) -> Callable[[], None]:
    """A function of its own, with this docstring."""

    def do() -> None:
        work()

    do.__doc__ = description
    return do


def work() -> None:
    this_run().progress(120, 500, "writing")
    say("started")
    wait_until_told()


def remember_slots() -> None:
    """As if each server had called each job a while ago: all is well, and nothing is due."""
    gates().remember(*(habit.name for habit in HABITS))
    for habit in HABITS:
        if policy := registry.get(habit.name).policy:
            facts: dict[str, Any] = {"schedule": policy.schedule.text, "time_zone": policy.schedule.time_zone}
            gates().filter(name=habit.name).update(next_slot=next_slot(policy.schedule, datetime.now(UTC)), **facts)


def furnish() -> None:
    """A day has passed: one job is stale, one overdue, one failing, one overrunning, one paused, two run well."""
    remember_slots()
    now = datetime.now(UTC)
    dice = random.Random(4711)  # so that all pictures show the same day
    for habit in HABITS:
        JobRun.objects.bulk_create(_runs(habit, now, dice))
        _sum_up(habit, now)
    _disturb(now)
    _ask_for_one_offs(now)
    _mark_servers(now)


def _mark_servers(now: datetime) -> None:
    """Two of the three ask each minute; the third one has not been deployed, and has stopped."""
    seen = (MINUTE, "2026.11.3"), (3 * MINUTE, "2026.11.3"), (2 * HOUR, "2026.11.2")
    for hostname, (ago, release) in zip(SERVERS, seen, strict=True):
        record(Mark(Holder(hostname, 4711, ""), release=release))
        WorkerPass.objects.filter(hostname=hostname).update(seen_at=now - ago, first_seen_at=now - 9 * DAY)


def _runs(habit: Habit, now: datetime, dice: random.Random) -> Iterable[JobRun]:
    policy = registry.get(habit.name).policy
    until = now - (LATE if habit.name == "exchange_rates" else 2 * MINUTE)
    slots: Any = slots_between(policy.schedule, now - DAY, until) if policy else [now - 5 * HOUR]
    for fence, slot in zip(count(1), slots, strict=False):
        began_at = slot + timedelta(seconds=dice.uniform(0.1, 2))
        length = min(timedelta(seconds=habit.seconds * dice.uniform(0.7, 1.25)), now - began_at)
        is_failed = habit.name == "newsletter" and slot > now - 3 * HOUR
        yield JobRun(
            job_name=habit.name,
            lock=habit.name,
            fence=fence,
            token=UUID(int=dice.getrandbits(128), version=4),
            status="failed" if is_failed else dice.choices(["successful", "interrupted"], [60, 1])[0],
            trigger="schedule" if policy else "command",
            slot=slot if policy else None,
            hostname=dice.choices(SERVERS, [5, 3, 2])[0],
            pid=dice.randrange(900, 32000),
            started_at=began_at,
            finished_at=began_at + length,
            duration=length,
            acquire_duration=timedelta(milliseconds=dice.lognormvariate(2.3, 0.7)),
            error=SMTP_ERROR if is_failed else "",
            traceback=TRACEBACK if is_failed else "",
            output=OUTPUT if is_failed else "",
            origin=ORIGIN if is_failed else "",
        )


def _sum_up(habit: Habit, now: datetime) -> None:
    runs = list(JobRun.objects.filter(job_name=habit.name).order_by("started_at"))
    gates().filter(name=habit.name).update(
        fence=len(runs),
        run_count=len(runs),
        mean_duration=timedelta(seconds=habit.seconds),
        last_started_at=runs[-1].started_at if runs else None,
        last_finished_at=runs[-1].finished_at if runs else None,
        last_status=runs[-1].status if runs else "",
        consecutive_failures=3 * (habit.name == "newsletter"),
    )


def _disturb(now: datetime) -> None:
    copied = {
        "done": 21_300_000_000,
        "total": 64_000_000_000,
        "text": "copying",
        "output": "pg_dump: dumping shop_order",
    }
    _hold("backup", "web-3", 8123, now - 3 * HOUR, copied, silence=2 * HOUR + 50 * MINUTE)
    printed = "".join(f"Order {number}: 2 articles, paid\n" for number in range(290, 311))
    counted = {"done": 310, "total": 1200, "text": "counting", "output": printed}
    _hold("sales_report", "web-1", 2210, now - 4 * MINUTE, counted)
    compared = {"done": 4711, "text": "comparing", "output": "Article 4711: 3 here, 4 there"}
    _hold("stock_sync", "web-2", 2215, now - timedelta(seconds=40), compared)
    policy = registry.get("exchange_rates").policy
    assert policy
    gates().filter(name="exchange_rates").update(next_slot=next_slot(policy.schedule, now - LATE))
    pause("thumbnails", reason="the new camera", by="ada.lovelace@example.com")


def _hold(
    name: str,
    hostname: str,
    pid: int,
    since: datetime,
    progress: dict[str, Any],
    silence: timedelta = timedelta(seconds=4),
) -> None:
    gates().get(name=name)
    token = UUID(int=pid, version=4)
    grant = {"token": token, "hostname": hostname, "pid": pid}
    JobRun.objects.create(
        job_name=name,
        fence=1000,
        status="running",
        trigger="schedule",
        started_at=since,
        acquire_duration=timedelta(milliseconds=8),
        **grant,
    )
    heartbeat_at = datetime.now(UTC) - silence
    JobLock.objects.create(
        name=name,
        job_name=name,
        command="manage.py singleton_worker --threads 4",
        acquired_at=since,
        heartbeat_at=heartbeat_at,
        heartbeats=(heartbeat_at - since) // timedelta(seconds=10),
        heartbeat_interval=timedelta(seconds=10),
        expires_at=heartbeat_at + MINUTE,
        sent_at=heartbeat_at,
        progress=progress,
        **grant,
    )
    gates().filter(name=name).update(last_started_at=since, token=token)


def _ask_for_one_offs(now: datetime) -> None:
    for status, number, ago in (
        ("done", 4711, 4 * HOUR),
        ("failed", 4712, 3 * HOUR),
        ("cancelled", 4713, 2 * HOUR),
        ("waiting", 4714, 20 * MINUTE),
        ("waiting", 4715, -HOUR),
    ):
        has_ended = status in ("done", "failed")
        OneOffJob.objects.create(
            job_name="invoices",
            args=[number],
            kwargs={"language": "it"},
            status=status,
            created_at=now - abs(ago),
            run_after=now - ago,
            started_at=now - ago if has_ended else None,
            finished_at=now - ago + 2 * MINUTE if has_ended else None,
            attempt=int(has_ended),
            max_attempts=3,
            hostname="web-2" if has_ended else "",
            worker_ids="web-2, pid 2215" if has_ended else "",
            result={"sent": 1} if status == "done" else None,
            error=SMTP_ERROR if status == "failed" else "",
            traceback=TRACEBACK if status == "failed" else "",
            origin=ORIGIN if status == "failed" else "",
        )
