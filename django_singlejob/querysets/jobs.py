"""Every write that decides something, and every adjective.

Each write is one conditional statement, judged by the number of rows it changed and by the database's clock. Reading
again would not do: a REPEATABLE READ snapshot is stale. ``save()`` and ``delete()`` of an instance would not do:
they resurrect a row, or end the lease of a successor.
"""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from django.apps import apps
from django.db import connections
from django.db.models import (
    BooleanField,
    Case,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Func,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Least

from django_singlejob.clock import DBNow
from django_singlejob.conf import ZERO, options
from django_singlejob.database import alias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

    from django_singlejob.models import JobLock, JobRun, JobStatus

MILLISECOND = timedelta(milliseconds=1)

_STALE = Q(expires_at__lte=DBNow())
# Not by less: while others write, a statement may read rows a few milliseconds younger than itself.
_IMPOSSIBLE = Q(heartbeat_at__gt=DBNow() + timedelta(seconds=1))

Row = TypeVar("Row", "JobLock", "JobStatus")


def locks() -> JobLockQuerySet:
    """The leases, on the database that decides."""
    return cast("JobLockQuerySet", rows("JobLock"))


def gates() -> JobStatusQuerySet:
    """The gates, on the database that decides."""
    return cast("JobStatusQuerySet", rows("JobStatus"))


def runs() -> JobRunQuerySet:
    """The history, on the database that decides."""
    return cast("JobRunQuerySet", rows("JobRun"))


def rows(model: str) -> QuerySet[Any]:
    """The model's, on the database that decides."""
    # Looked up at use: this module may be imported before the apps are ready, the models may not.
    found: QuerySet[Any] = apps.get_model("django_singlejob", model)._default_manager.using(alias())
    return found


class JobLockQuerySet(QuerySet["JobLock"]):
    """The leases: a row exists exactly while somebody holds the lock of its name."""

    def stale(self) -> JobLockQuerySet:
        """Those whose lease has expired."""
        return self.filter(_STALE)

    def impossible(self) -> JobLockQuerySet:
        """Those whose last heartbeat lies in the future: the database's clock was set back since."""
        return self.filter(_IMPOSSIBLE)

    def suspected(self) -> JobLockQuerySet:
        """Those whose holders may be dead: stale or impossible. What else it takes is said in ``watch``."""
        return self.filter(_STALE | _IMPOSSIBLE)

    def live(self) -> JobLockQuerySet:
        """Those whose lease goes on."""
        return self.filter(~_STALE, ~_IMPOSSIBLE)

    def overrunning(self, means: Mapping[str, timedelta]) -> JobLockQuerySet:
        """The live ones held longer than ``OVERRUN_FACTOR`` times their job's mean (see ``means`` below)."""
        late = Q(pk__in=[])
        for job_name, mean in means.items():
            late |= Q(job_name=job_name, acquired_at__lte=DBNow() - mean * options().overrun_factor)
        return self.live().filter(late)

    def judged(self) -> JobLockQuerySet:
        """With ``is_stale``, ``is_impossible`` and ``now``, as the database's clock sees it."""
        verdict = {"is_stale": _whether(_STALE), "is_impossible": _whether(_IMPOSSIBLE), "now": DBNow()}
        return self.annotate(**verdict)

    def surveyed(self) -> list[JobLock]:
        """All of them, judged."""
        return [_in_utc(lock) for lock in self.judged()]

    def seen(self, name: str) -> JobLock | None:
        """The lock's row, judged; ``None``: the lock is free."""
        return next(iter(self.filter(name=name).surveyed()), None)

    def grant(self, name: str, terms: Mapping[str, Any]) -> bool:
        """Insert the row. ``False``: there is one."""
        _, is_created = self.get_or_create(name=name, defaults=terms)
        return is_created

    def take_over(self, seen: JobLock, terms: Mapping[str, Any]) -> bool:
        """Replace a suspected holder. ``False``: the row has changed since it was seen, or its holder is alive."""
        return self._unchanged(seen).suspected().update(**terms) == 1

    def renew(self, name: str, token: UUID, lease: timedelta, sent_at: datetime) -> bool:
        """A heartbeat, sent at that time by the holder's clock. ``False``: the row is another holder's, or gone."""
        beat = {"heartbeats": F("heartbeats") + 1, "heartbeat_at": DBNow(), "expires_at": DBNow() + lease}
        # Several may be under way, and arrive in any order: the holder counts from the last one.
        newest = Case(
            When(sent_at__gt=sent_at, then=F("sent_at")), default=Value(sent_at), output_field=DateTimeField()
        )
        return self.filter(name=name, token=token).update(sent_at=newest, **beat) == 1

    def release(self, name: str, token: UUID) -> bool:
        """Delete the holder's own row. ``False``: it is no longer that holder's."""
        return delete_rows(self.filter(name=name, token=token)) == 1

    def clear(self, seen: JobLock, *, force: bool) -> bool:
        """Delete the row that was seen; ``False``: it is another one by now, or, unless ``force``, its holder lives."""
        if force:
            return delete_rows(self.filter(name=seen.name, token=seen.token)) == 1
        return delete_rows(self._unchanged(seen).suspected()) == 1

    def _unchanged(self, seen: JobLock) -> JobLockQuerySet:
        return self.filter(name=seen.name, token=seen.token, heartbeats=seen.heartbeats)


class JobStatusQuerySet(QuerySet["JobStatus"]):
    """The gates: who wants a lock must first change its gate; the fence on it only grows."""

    def remember(self, *names: str) -> None:
        """Make sure that these gates exist."""
        # To insert one that exists would wait for whoever is inside a transaction on it.
        known = set(self.filter(name__in=names).values_list("name", flat=True))
        # Each in a statement of its own: two that insert the same rows in another order would deadlock.
        for name in sorted({*names} - known):
            self.bulk_create([self.model(name=name)], ignore_conflicts=True)

    def seen(self, names: set[str], min_interval: timedelta) -> dict[str, JobStatus]:
        """The gates by name, with ``now`` and ``started_recently``: sooner than ``min_interval`` ago."""
        recently = _whether(_recently(min_interval))
        facts = {"now": DBNow(), "started_recently": recently}
        found = self.annotate(**facts).without_mean().in_bulk(names)
        return {name: _in_utc(status) for name, status in found.items()}

    def scheduled(self) -> dict[str, JobStatus]:
        """The gates of jobs that have a schedule by name, with ``now``."""
        return self.exclude(schedule="").without_mean().surveyed()

    def without_mean(self) -> JobStatusQuerySet:
        """Not even reading the mean durations: nobody needs them for a run, and one that cannot be read stops none."""
        return self.defer("mean_duration")

    def surveyed(self) -> dict[str, JobStatus]:
        """The gates by name, with ``now``."""
        facts = {"now": DBNow()}
        return {status.name: _in_utc(status) for status in self.annotate(**facts)}

    def unchanged(self, seen: JobStatus) -> JobStatusQuerySet:
        """The row if its schedule stands where it was seen, and nobody has begun a run since."""
        # Of these, each start and each move of a schedule adds to the fence. The rest is for edits by hand.
        rows = self.filter(name=seen.name, fence=seen.fence, schedule=seen.schedule, time_zone=seen.time_zone)
        if seen.next_slot is None:
            return rows.filter(next_slot=None)
        # Not by "=": what SQLite's own clock wrote has fewer digits.
        return rows.filter(next_slot__gt=seen.next_slot - MILLISECOND, next_slot__lt=seen.next_slot + MILLISECOND)

    def passed(self, name: str, token: UUID) -> JobStatusQuerySet:
        """The row if nobody has passed the gate since the grant of that token."""
        return self.filter(name=name, token=token)

    def pass_through(self, seen: JobStatus, token: UUID) -> bool:
        """Pass the gate. ``False``: somebody was faster, look again."""
        return self.unchanged(seen).update(fence=seen.fence + 1, token=token) == 1

    def start(self, min_interval: timedelta, changes: Mapping[str, Any]) -> bool:
        """Record the start of a job. ``False``: the row has changed, it is paused, or it started sooner than
        ``min_interval`` ago by now."""
        return self.ready(min_interval).update(last_started_at=DBNow(), **changes) == 1

    def is_at_hand(self, name: str) -> bool:
        """Whether nobody is inside a transaction on this gate, as far as the database can tell without waiting."""
        # MySQL would wait for it for almost a minute.
        has_skip_locked = connections[self.db].features.has_select_for_update_skip_locked
        rows = self.select_for_update(skip_locked=True) if has_skip_locked else self
        return rows.filter(name=name).values_list("pk").first() is not None

    def move_on(self, seen: JobStatus, changes: Mapping[str, Any]) -> bool:
        """Change where the schedule stands, without a run. ``False``: somebody was faster, look again."""
        return self.unchanged(seen).update(fence=seen.fence + 1, **changes) == 1

    def pause(self, name: str) -> bool:
        """Let nobody begin a run of the job. ``False``: it was paused already, or there is no such row."""
        return self.filter(name=name, paused=False).update(paused=True) == 1

    def resume(self, name: str) -> bool:
        """Let it be run again. ``False``: it was not paused."""
        return self.filter(name=name, paused=True).update(paused=False) == 1

    def due(self) -> JobStatusQuerySet:
        """Those with a slot that is due, or whose holder died, the oldest first."""
        return self.filter(Q(next_slot__lte=DBNow()) | Q(abandoned=True), paused=False).order_by("next_slot")

    def ready(self, min_interval: timedelta) -> JobStatusQuerySet:
        """Those that may start: not paused, and last started longer than ``min_interval`` ago."""
        ready = self.filter(paused=False)
        return ready.exclude(_recently(min_interval)) if min_interval > ZERO else ready

    def hold(self, name: str, token: UUID) -> bool:
        """Keep everybody else from passing until this transaction ends. ``False``: somebody has passed already."""
        # An UPDATE, since SQLite ignores SELECT FOR UPDATE.
        return self.passed(name, token).update(token=token) == 1

    def knock(self, name: str) -> None:
        """Wait until the gate can be changed: until then, somebody alive is inside a transaction on it."""
        self.filter(name=name).update(fence=F("fence"))

    def finish(self, name: str, token: UUID, result: Mapping[str, Any]) -> bool:
        """Record how a run ended. ``False``: somebody has passed the gate since."""
        return self.filter(token=token).finish_own(name, result)

    def finish_own(self, name: str, result: Mapping[str, Any]) -> bool:
        """The same for a job whose lock has another gate, which is held. ``False``: the row was deleted by hand."""
        # Counted last: on MySQL the mean would find the new count.
        return self.filter(name=name).update(**result, last_finished_at=DBNow(), run_count=F("run_count") + 1) == 1

    def abandon(self, dead: JobLock) -> None:
        """Record that the holder of a job's run died. Its slot is to be run again, unless a later one was begun."""
        rows = self.filter(name=dead.job_name)
        rows.update(
            run_count=F("run_count") + 1,
            last_status="abandoned",
            consecutive_failures=F("consecutive_failures") + 1,
        )
        if dead.slot:
            # Nobody but us writes these, so they can be compared.
            rows.filter(last_slot=dead.slot, last_attempt=dead.attempt).update(abandoned=True)

    def keep(self, end: Mapping[str, Any]) -> bool:
        """Keep how a run ended that the history does not know. ``False``: it keeps another end already."""
        return self.filter(unrecorded__isnull=True).update(unrecorded=end) == 1

    def keeping(self) -> dict[str, dict[str, Any]]:
        """The ends that are kept, by the name of their job."""
        rows = self.filter(unrecorded__isnull=False).values_list("name", "unrecorded")
        return {name: end for name, end in rows if isinstance(end, dict)}  # or somebody edited it

    def recorded(self, end: object) -> bool:
        """This end need not be kept any more. ``False``: it was not, or another one is by now."""
        return self.filter(unrecorded=end).update(unrecorded=None) == 1

    def shut(self, name: str) -> None:
        """Take the gate from whoever has it: no write of the former holder finds its token any more."""
        self.filter(name=name).update(fence=F("fence") + 1, token=None)

    def means(self) -> dict[str, timedelta]:
        """The mean duration of each job that has run often enough for it to say something."""
        known = self.filter(run_count__gte=options().overrun_min_runs, mean_duration__isnull=False)
        return {name: mean for name, mean in known.values_list("name", "mean_duration") if mean}


class JobRunQuerySet(QuerySet["JobRun"]):
    """The history: one row an attempt."""

    def running(self) -> JobRunQuerySet:
        """Those that have not ended yet."""
        return self.filter(status="running")

    def start(self, facts: Mapping[str, Any]) -> int:
        """Record that an attempt begins, now unless the facts say when. Returns the row's key."""
        # Not create(): a receiver of its signals that swallows a database error would have the grant, which is in the
        # same transaction, rolled back by a COMMIT that says nothing.
        (run,) = self.bulk_create([self.model(**{"started_at": DBNow(), "status": "running", **facts})])
        # MySQL does not tell the keys of several rows.
        return run.pk or self.key_of(run.token) or 0

    def key_of(self, token: UUID) -> int | None:
        """The key of the attempt's row; ``None``: it has none."""
        return self.filter(token=token).values_list("pk", flat=True).first()

    def finish(self, token: UUID | str, result: Mapping[str, Any]) -> bool:
        """Record how an attempt ended, now unless the result says when. ``False``: it has ended, as abandoned, or has
        no row."""
        return self.running().filter(token=token).update(**{"finished_at": DBNow(), **result}) == 1

    def abandon_orphans(self, error: str) -> int:
        """End every attempt whose lock is gone, as after a DELETE by hand. Returns how many."""
        # In this order: what begins between the reads is not among the first, what ends is kept by its gate or changed.
        tokens = dict(self.running().values_list("pk", "token"))
        held = {str(token) for token in locks().values_list("token", flat=True)}
        kept = {str(end.get("token")) for end in gates().keeping().values()}
        orphans = [pk for pk, token in tokens.items() if str(token) not in held | kept]
        ended = {"status": "abandoned", "finished_at": DBNow(), "error": error}
        return self.running().filter(pk__in=orphans).update(**ended)

    def newest(self, job_name: str) -> JobRun | None:
        """The job's last attempt; ``None``: there was none, or it was pruned."""
        return self.filter(job_name=job_name).order_by("-pk").first()

    def surplus(self, age: timedelta, keep: int) -> JobRunQuerySet:
        """Those that ended and began longer ago than ``age``, and of each job those beyond its newest ``keep``."""
        too_many = Q(pk__in=[])
        # Not the gates': a job's may be gone.
        for name in self.values_list("job_name", flat=True).distinct():
            if (newest_surplus := self._newest_beyond(name, keep)) is not None:
                too_many |= Q(job_name=name, pk__lte=newest_surplus)
        return self.exclude(status="running").filter(Q(started_at__lt=DBNow() - age) | too_many)

    def _newest_beyond(self, job_name: str, keep: int) -> int | None:
        return self.filter(job_name=job_name).order_by("-pk").values_list("pk", flat=True)[keep : keep + 1].first()

    def prune(self, batch: int = 1000) -> int:
        """Delete all of these, a batch at a time: one huge DELETE would hold up everybody. Returns how many it were."""
        pruned = 0
        # MySQL has no LIMIT in a subquery.
        while keys := list(self.order_by("pk").values_list("pk", flat=True)[:batch]):
            pruned += delete_rows(runs().filter(pk__in=keys))
        return pruned


# --- statistics

MEAN_RUNS = 20


def mean_with(duration: timedelta) -> Case:
    """The mean duration once a successful run took so long: that of about the last ``MEAN_RUNS`` (an exponential
    moving average). A value that makes no sense is replaced."""
    sensible = Q(mean_duration__gte=ZERO, mean_duration__lt=timedelta(days=36_525))
    value = Value(duration, output_field=DurationField())
    count = Least(F("run_count"), Value(MEAN_RUNS - 1)) + 1
    return Case(When(sensible, then=_MovedMean(F("mean_duration"), value, count)), default=value)


class _MovedMean(Func):
    """``mean + (value - mean) / count``; Django itself divides no durations."""

    output_field = DurationField()

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, *_: Any, **__: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        (mean, _), (value, of_value), (count, of_count) = map(compiler.compile, self.get_source_expressions())
        return f"{mean} + ({value} - {mean}) / {count}", (*of_value, *of_count)


# ---

_INSTANTS = ("now", "slot", "next_slot", "last_slot", "acquired_at", "heartbeat_at", "expires_at", "sent_at")


def _in_utc(row: Row) -> Row:
    # A connection's own time zone comes back with every instant, and two of one zone are compared by their wall clocks.
    for name in _INSTANTS:
        if instant := getattr(row, name, None):
            setattr(row, name, instant.astimezone(UTC))
    return row


def _recently(min_interval: timedelta) -> Q:
    # A start in the future means that the clock was set back since; it must not hold up the job until then.
    return Q(last_started_at__gt=DBNow() - min_interval, last_started_at__lte=DBNow() + min_interval)


def delete_rows(rows: QuerySet[Any]) -> int:
    """Delete them, in one conditional statement. Returns how many it were."""
    # delete() would first read the rows and then delete by primary key alone, as soon as any app listens to
    # post_delete: it would forget the token in between.
    return rows._raw_delete(rows.db)


def _whether(condition: Q) -> ExpressionWrapper[Q]:
    return ExpressionWrapper(condition, output_field=BooleanField())
