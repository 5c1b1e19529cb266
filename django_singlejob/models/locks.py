"""The leases: one conditional statement each to insert a row, renew it, take it over and delete it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from django.db import connections, models
from django.db.models import Case, DateTimeField, F, Q, Value, When
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO, options
from django_singlejob.database.timeline import Timeline, ask_with_timeline
from django_singlejob.database.transactions import alias
from django_singlejob.jobs.names import NAME_LENGTH
from django_singlejob.models.rows import Row, allowed, delete_rows, in_range, in_utc, whether
from django_singlejob.models.unreadable import RowQuerySet, refuse, reporting
from django_singlejob.process.clock import CENTURY, DBNow
from django_singlejob.process.holder import COMMAND_LENGTH, HOSTNAME_LENGTH, USER_LENGTH
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from collections.abc import Collection


#: No job may have a longer one. A minute more, for a heartbeat may be as late.
LONGEST_LEASE = CENTURY + timedelta(minutes=1)

_STALE = Q(expires_at__lte=DBNow())
# Not less: while others write, a statement may read rows that are a few milliseconds younger than itself.
_IMPOSSIBLE = Q(heartbeat_at__gt=DBNow() + timedelta(seconds=1)) | Q(expires_at__gt=DBNow() + LONGEST_LEASE)


class Held(Protocol):
    """A lock, and its holder's identity."""

    name: str
    token: UUID


def locks() -> JobLockQuerySet:
    """The leases, on the database that decides."""
    return JobLockQuerySet(JobLock, using=alias())


class JobLockQuerySet(RowQuerySet["JobLock"]):
    """The leases: a row exists exactly while a process holds the lock of its name."""

    def stale(self) -> JobLockQuerySet:
        """Locks whose lease has expired."""
        return self.filter(_STALE)

    def impossible(self) -> JobLockQuerySet:
        """Locks whose last heartbeat lies in the future, because the database's clock has been set back since, or whose
        expiry is further away than any lease, because it was written by hand."""
        return self.filter(_IMPOSSIBLE)

    def suspected(self) -> JobLockQuerySet:
        """Locks whose holders may be dead: stale or impossible. See ``locking.liveness`` for what else it takes."""
        return self.filter(_STALE | _IMPOSSIBLE)

    def live(self) -> JobLockQuerySet:
        """Locks that are neither stale nor impossible."""
        return self.filter(~_STALE, ~_IMPOSSIBLE)

    def judged(self) -> JobLockQuerySet:
        """With ``is_stale``, ``is_impossible`` and ``now``, by the database's clock."""
        verdict = {"is_stale": whether(_STALE), "is_impossible": whether(_IMPOSSIBLE), "now": DBNow()}
        return self.annotate(**verdict)

    def survey(self, most: int | None = None) -> list[JobLock]:
        """Read these rows, judged: all, or the first ``most``."""
        return [in_utc(lock) for lock in self.judged()[:most]]

    def watched(self) -> list[JobLock]:
        """Read all these rows, judged, with ``timeline``: what a watch takes note of."""
        facts = {"timeline": Timeline()}
        return [in_utc(lock) for lock in ask_with_timeline(self.db, lambda: list(self.judged().annotate(**facts)))]

    def look_up(self, name: str) -> JobLock | None:
        """Read the lock's row, as ``watched`` does. Returns ``None`` if the lock is free. Raises ``UnreadableRow``
        if it cannot be read."""
        with reporting(refuse):
            return next(iter(self.filter(name=name).watched()), None)

    def insert(self, name: str, columns: Mapping[str, Any]) -> bool:
        """Insert the row. Returns ``False`` if there is one already."""
        _, is_created = self.get_or_create(name=name, defaults=columns)
        return is_created

    def take_over(self, seen: JobLock, columns: Mapping[str, Any]) -> bool:
        """Replace a suspected holder. Returns ``False`` if the row has changed since it was seen, or if its holder is
        alive."""
        return self._unchanged(seen).suspected().update(**columns) == 1

    def renew(
        self,
        name: str,
        token: UUID,
        lease: timedelta,
        sent_at: datetime,
        *,
        news: Mapping[str, Any] | None = None,
        stopped_by: str | None = None,
    ) -> bool:
        """Record a heartbeat, sent at ``sent_at`` by the holder's clock, with what is new of the progress. Returns
        ``False`` if the row is another holder's, or gone, or is not marked as ``stopped_by``, unless that is ``None``.
        """
        unmarked = {} if stopped_by is None else {"stopped_by": stopped_by}
        changes = _beat(lease, sent_at) | ({} if news is None else {"progress": news})
        return self.filter(name=name, token=token, **unmarked).update(**changes) == 1

    def stop(self, name: str, token: UUID, by: str) -> bool:
        """Mark the row, so that the holder's next heartbeat finds out that its run is to be stopped. Returns ``False``
        if the row is another holder's, or gone, or marked already."""
        return self.filter(name=name, token=token, stopped_by="").update(stopped_by=by) == 1

    def stopped_by(self, name: str, token: UUID) -> str:
        """The user who has asked to stop the run; empty if nobody has, or if the row is another holder's."""
        return self.filter(name=name, token=token).values_list("stopped_by", flat=True).first() or ""

    def renew_together(
        self,
        held: Collection[Held],
        lease: timedelta,
        sent_at: datetime,
        news: Mapping[UUID, Mapping[str, Any]] = MappingProxyType({}),
    ) -> set[UUID]:
        """The same for several holders of this process, inside a transaction. Returns the tokens of those whose
        heartbeat is recorded.

        The others have to try alone: their rows are another holder's, gone, marked, or locked by a transaction.
        """
        names = {each.token: each.name for each in held}
        features = connections[self.db].features
        if features.has_select_for_update:  # SQLite locks no rows, but everything
            if not features.has_select_for_update_skip_locked:
                return set()
            at_hand = self._unmarked(names).select_for_update(skip_locked=True)
            names = dict(at_hand.values_list("token", "name"))
        changes = _beat(lease, sent_at) | _told({token: told for token, told in news.items() if token in names})
        # Not by the names of the others: MySQL waits for a row that it finds by its name, whatever the token.
        is_complete = self._unmarked(names).update(**changes) == len(names)
        return set(names) if is_complete else set()

    def _unmarked(self, names: Mapping[UUID, str]) -> JobLockQuerySet:
        """The rows with these tokens that nobody has marked. By the names as well, which have an index: a server that
        reads all rows would lock those of others."""
        return self.filter(name__in=names.values(), token__in=names, stopped_by="")

    def is_locked(self, name: str, token: UUID) -> bool:
        """Whether the holder's row is there, without a mark, and another transaction has locked it, if
        ``renew_together`` has left it out. ``False`` if the database cannot tell."""
        features = connections[self.db].features
        unmarked = self.filter(name=name, token=token, stopped_by="")
        return features.has_select_for_update_skip_locked and unmarked.exists()

    def release(self, name: str, token: UUID) -> bool:
        """Delete the holder's own row. Returns ``False`` if the row is no longer that holder's."""
        return delete_rows(self.filter(name=name, token=token)) == 1

    def clear(self, seen: JobLock, *, force: bool) -> bool:
        """Delete the row that was seen. Returns ``False`` if it is a different one by now or, unless ``force``, if its
        holder is alive, or if it was seen on another database server."""
        if force:
            return delete_rows(self.filter(name=seen.name, token=seen.token)) == 1
        on_this_server = Exact(Timeline(), Value(seen.timeline))
        return delete_rows(self._unchanged(seen).suspected().filter(on_this_server)) == 1

    def _unchanged(self, seen: JobLock) -> JobLockQuerySet:
        return self.filter(name=seen.name, token=seen.token, heartbeats=seen.heartbeats)


class JobLock(Row):
    """The lease: the row exists exactly while a process holds the lock of its name."""

    name = models.CharField(_("name"), max_length=NAME_LENGTH, primary_key=True)
    token = models.UUIDField(_("token"), help_text=_("New for each acquisition; the holder's only identity."))
    hostname = models.CharField(_("host name"), max_length=HOSTNAME_LENGTH)
    pid = models.PositiveBigIntegerField(_("process ID"))
    command = models.CharField(_("command"), max_length=COMMAND_LENGTH, blank=True, default="")
    acquired_at = models.DateTimeField(_("acquired at"))
    heartbeat_at = models.DateTimeField(_("last heartbeat at"))
    heartbeats = models.PositiveBigIntegerField(_("heartbeats"), default=0)
    heartbeat_interval = models.DurationField(
        _("heartbeat interval"), null=True, blank=True, help_text=_("Blank if the holder sends no heartbeats.")
    )
    expires_at = models.DateTimeField(_("expires at"))
    sent_at = models.DateTimeField(
        _("last heartbeat sent at"), help_text=_("By the holder's clock; all other times are by the database's.")
    )
    job_name = models.CharField(_("job"), max_length=NAME_LENGTH, blank=True, default="")
    slot = models.DateTimeField(_("slot"), null=True, blank=True)
    attempt = models.PositiveIntegerField(_("attempt"), default=1)
    queues = models.JSONField(
        _("queues"), default=list, blank=True, help_text=_("The queues that a worker serves; empty: all queues.")
    )
    stopped_by = models.CharField(
        _("stopped by"),
        max_length=USER_LENGTH,
        blank=True,
        default="",
        help_text=_("The user who has asked to stop the run; blank if nobody has."),
    )
    progress = models.JSONField(_("progress"), default=dict, blank=True, help_text=_("What the last heartbeat said."))

    objects = JobLockQuerySet.as_manager()

    if TYPE_CHECKING:  # annotated by JobLockQuerySet.judged and, the timeline, by watched
        is_stale: bool
        is_impossible: bool
        now: datetime
        timeline: int

    class Meta:
        verbose_name = _("lock")
        verbose_name_plural = _("locks")
        permissions = [
            ("clear_joblock", _("Can clear stale locks")),
            ("force_joblock", _("Can clear locks whose holders may be alive")),
            ("stop_joblock", _("Can stop runs and tasks")),
        ]
        constraints = [
            allowed("singlejob_lock_attempt", attempt__gte=1),
            allowed("singlejob_lock_interval", heartbeat_interval__gt=ZERO),
        ]

    Meta.constraints.append(in_range("singlejob_lock_in_range", vars()))

    def __str__(self) -> str:
        return self.name

    @property
    def holder(self) -> str:
        """The holder as text for people: ``web-1, pid 4711``."""
        return f"{self.hostname}, pid {self.pid}"

    def facts(self, *, reason: str | BaseException | None = None) -> dict[str, Any]:
        """What a log record carries about it."""
        return about(job=self.job_name, lock=self.name, slot=self.slot, reason=reason, token=self.token)

    @property
    def lease(self) -> timedelta:
        """How far each heartbeat moves the expiry ahead. If the row was edited so that this is impossible: the lease of
        the settings, for such a row must not count as free, nor be held for ever."""
        lease = self.expires_at - self.heartbeat_at
        return lease if ZERO < lease <= LONGEST_LEASE else options().lease

    @property
    def is_too_long(self) -> bool:
        """Whether the lease expires later than any lease can."""
        return self.expires_at > self.now + LONGEST_LEASE

    @property
    def is_suspected(self) -> bool:
        """Whether the holder may be dead: its lease has expired, or is impossible."""
        return self.is_stale or self.is_impossible


def _beat(lease: timedelta, sent_at: datetime) -> dict[str, Any]:
    """What a heartbeat changes."""
    # Several may be under way and arrive in any order. The holder counts from the newest one.
    newest = Case(When(sent_at__gt=sent_at, then=F("sent_at")), default=sent_at, output_field=DateTimeField())
    beat = {"heartbeats": F("heartbeats") + 1, "heartbeat_at": DBNow(), "expires_at": DBNow() + lease}
    return {"sent_at": newest, **beat}


def _told(news: Mapping[UUID, Mapping[str, Any]]) -> dict[str, Any]:
    """What a heartbeat of several changes beside that: what is new of their progress, by their tokens."""
    field = JobLock._meta.get_field("progress")
    cases = [When(token=token, then=Value(told, output_field=field)) for token, told in news.items()]
    return {"progress": Case(*cases, default=F("progress"), output_field=field)} if cases else {}
