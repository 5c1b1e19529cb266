"""What a page has shown of locks to clear, and what a click on it did to them."""

from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from django.contrib import messages
from django.core.signing import BadSignature, Signer
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_singlejob.admin.cells import clock_time, duration
from django_singlejob.conf import ZERO
from django_singlejob.database.transactions import sent_now
from django_singlejob.locking.liveness import SECOND, margin, still_to_wait

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# A row that was made by hand can have a lease that ends after the year 9999.
FAR_OFF = timedelta(days=999)
# How long a sighting is good for after its watch is over. If the gap is longer, the database may have been away for
# most of it.
LONGEST_GAP = timedelta(minutes=10)


class Sighting(NamedTuple):
    """What one look saw of a lock.

    Attributes:
        database_at: when that was, by the database's clock.
        server_at: the same instant by the observer's clock, as ``sent_now()``.
    """

    name: str
    token: UUID
    heartbeats: int
    timeline: int
    database_at: datetime
    server_at: datetime

    @classmethod
    def of(cls, lock: "JobLock") -> Self:
        """The sighting of a row that was just read."""
        return cls(lock.name, lock.token, lock.heartbeats, lock.timeline, lock.now, sent_now())

    def is_of(self, lock: "JobLock") -> bool:
        """Whether the row, which was just read, is as it was seen, with no failover in between."""
        seen = (self.name, self.token, self.heartbeats, self.timeline)
        return (lock.name, lock.token, lock.heartbeats, lock.timeline) == seen

    def age(self, lock: "JobLock") -> timedelta:
        """How long ago this was, when the row has just been read. Negative if a clock has been set back since."""
        # Two servers share no clock that never steps. But one clock that was set ahead does not make a sighting older.
        return min(lock.now - self.database_at, sent_now() - self.server_at)

    def is_too_old(self, lock: "JobLock") -> bool:
        """Whether this was too long ago to count: the watch has to restart."""
        return self.age(lock) > lock.lease + margin(lock) + LONGEST_GAP

    def left(self, lock: "JobLock") -> timedelta | None:
        """How long the row, which was just read, must still stay unchanged before its holder counts as dead: ``ZERO``
        if it does now. ``None`` if the sighting does not count: the lease goes on, the row has changed, the sighting
        is too old, or a clock was set back since."""
        age = self.age(lock)
        if not (lock.is_suspected and self.is_of(lock)) or age < ZERO or self.is_too_old(lock):
            return None
        return still_to_wait(lock, age)


class Stay(Enum):
    """Which locks stay on the page after a click."""

    #: Those that could not be cleared yet. Their watch goes on.
    WATCHED = auto()
    #: Those that are not as they were shown. Their watch restarts.
    CHANGED = auto()
    #: Not those that are free, or whose holders are alive.
    NOT = auto()


class ClickAnswer(NamedTuple):
    """What a click did, or did not do, to a lock."""

    message: str
    stay: Stay
    level: int = messages.WARNING


def _signer() -> Signer:
    # Made when it is used: it keeps the keys of the settings.
    return Signer(salt="django_singlejob.sighting")


def sign(sighting: Sighting, user: Any) -> str:
    """What was seen of a lock, as text that only this user can send back."""
    row = [sighting.name, sighting.token.hex, sighting.heartbeats, sighting.timeline]
    return _signer().sign_object([*row, sighting.database_at.isoformat(), sighting.server_at.isoformat(), str(user.pk)])


def read(text: str, user: Any) -> Sighting | None:
    """Returns ``None`` if none of our pages showed this text to this user."""
    try:
        name, token, heartbeats, timeline, database_at, server_at, reader = _signer().unsign_object(text)
        instants = datetime.fromisoformat(database_at), datetime.fromisoformat(server_at)
    except (BadSignature, TypeError, ValueError):
        return None
    return Sighting(name, UUID(token), heartbeats, timeline, *instants) if reader == str(user.pk) else None


def over_at(lock: "JobLock", left: timedelta) -> SafeString:
    """When the watch is over, by the database's clock, in whole seconds."""
    instant = lock.now + min(left, FAR_OFF)
    return clock_time(instant.replace(microsecond=0) + (SECOND if instant.microsecond else ZERO))


def left_alone_because(shown: Sighting, lock: "JobLock", *, force: bool) -> ClickAnswer | None:
    """Why the lock is left alone; ``None`` if it may be cleared."""
    if lock.token != shown.token:
        return left_alone(lock, gettext("it has a new holder (%(holder)s)"), Stay.CHANGED)
    if shown.is_too_old(lock):
        return left_alone(lock, gettext("this page was open for too long"), Stay.CHANGED)
    if force:
        return None
    if not lock.is_suspected:
        return left_alone(lock, gettext("its holder (%(holder)s) is alive"), Stay.NOT)
    left = shown.left(lock)
    if left is None:
        return left_alone(lock, _change(shown, lock), Stay.CHANGED)
    if left:
        reason = gettext("its watch is not over yet: %(time)s are left")
        return left_alone(lock, reason, Stay.WATCHED, time=duration(-(-left // SECOND) * SECOND))
    return None


def _change(shown: Sighting, lock: "JobLock") -> str:
    """Why the watch of a suspected lock has to restart."""
    if lock.timeline != shown.timeline:
        return gettext("the database failed over to another server")
    if not shown.is_of(lock):
        return gettext("its holder (%(holder)s) gave a sign of life")
    return gettext("the clocks of the servers, or the database's, were set back or disagree")


def left_alone(lock: "JobLock", reason: str, stay: Stay, **facts: str) -> ClickAnswer:
    """The answer that the lock was not cleared."""
    anew = gettext("Its watch has restarted.") if stay is Stay.CHANGED and lock.is_suspected else ""
    reason %= {"holder": lock.holder, **facts}
    message = gettext("The lock %(name)s was not cleared, because %(reason)s. %(anew)s")
    return ClickAnswer((message % {"name": lock.name, "reason": reason, "anew": anew}).strip(), stay)


def late(name: str) -> ClickAnswer:
    """The answer that there was no time for this lock."""
    message = gettext("The lock %s was not cleared, because the others took too long. Click again.")
    return ClickAnswer(message % name, Stay.WATCHED)
