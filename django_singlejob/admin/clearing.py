"""What a page has shown of locks to clear, and what a click on it did to them."""

from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.contrib import messages
from django.core.signing import BadSignature, Signer
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_singlejob.admin.cells import clock_time, duration
from django_singlejob.conf import ZERO
from django_singlejob.locking.liveness import SECOND, Sighting

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

# A row that was made by hand can have a lease that ends after the year 9999.
FAR_OFF = timedelta(days=999)


class Stay(Enum):
    """Which locks stay on the page after a click."""

    #: Those that could not be cleared yet. Their watch goes on.
    WATCHED = auto()
    #: Those that are not as they were shown. Their watch restarts.
    CHANGED = auto()
    #: Not those that are free, or whose holders are alive.
    NOT = auto()


class Answer(NamedTuple):
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


def refusal(shown: Sighting, lock: "JobLock", *, force: bool) -> Answer | None:
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


def left_alone(lock: "JobLock", reason: str, stay: Stay, **facts: str) -> Answer:
    """The answer that the lock was not cleared."""
    anew = gettext("Its watch has restarted.") if stay is Stay.CHANGED and lock.is_suspected else ""
    reason %= {"holder": lock.holder, **facts}
    message = gettext("The lock %(name)s was not cleared, because %(reason)s. %(anew)s")
    return Answer((message % {"name": lock.name, "reason": reason, "anew": anew}).strip(), stay)


def late(name: str) -> Answer:
    """The answer that there was no time for this lock."""
    message = gettext("The lock %s was not cleared, because the others took too long. Click again.")
    return Answer(message % name, Stay.WATCHED)
