"""Is a holder whose lease has expired dead? Age alone does not prove it.

A lock is taken from its holder, or cleared, only if three things are true:

(a) The row is *suspected*: stale by the database's clock, or impossible (its last heartbeat lies in the future, so that
    clock was set back). The write that takes the lock requires this, and that the row is still the one that was seen.
(b) The row has not changed during two heartbeat intervals of unbroken watching, so a holder that was only cut off for a
    while has had time to come back. A gap longer than an interval restarts the watch, and so does a failover: it may
    have lost a later grant, whose holder has to find out.
(c) A whole lease and two more intervals have passed since the holder sent its last heartbeat (without heartbeats: and
    two more seconds). Either the clocks of the holder and the observer show this, or the observer has seen the row
    unchanged for that long, gaps included.

A ``Watch`` is that of one process, which looks again and again. A look takes time, and the row is read at some instant
between its beginning and its end. So a gap lasts from the beginning of one look to the end of the next, and what was
watched lasts from the end of the first look to the beginning of the last.

The admin's ``Sighting`` is a single look, to be compared with a later one, perhaps by another server: both the
database's clock and the servers' then have to show (b).

The holder stops trusting itself one lease after it sent that heartbeat, by a clock that never steps. An observer that
has seen a whole lease pass counts by such a clock too, and on one host they share it. Elsewhere, all other clocks may
be wrong. But then (a) and (c) rest on two independent pairs of clocks: the database's then and now, and the holder's
then and the observer's now. A holder that still trusts itself loses its lock only if both pairs are wrong while it is
silent.
"""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from django_singlejob.conf import ZERO
from django_singlejob.database.transactions import alias, is_on_one_host, sent_now
from django_singlejob.jobs.schedule import duration_in_words
from django_singlejob.process.clock import local_now

if TYPE_CHECKING:
    from django_singlejob.models import JobLock

logger = logging.getLogger("django_singlejob")

WATCHED_INTERVALS = 2
# How many looks an observer begins in a heartbeat interval. A gap of a whole interval restarts its watch.
LOOKS_PER_INTERVAL = 4
# A command waits no longer than this to see whether a holder is dead. A later command may know it at once.
LONGEST_STAY = timedelta(minutes=2)
# If looks take about as long as the interval, a watch restarts for ever.
LONGEST_WATCH = 2 * LONGEST_STAY
SECOND = timedelta(seconds=1)
# How far the clocks of two servers may be apart though both are right. Two intervals are usually longer.
_CLOSE = 2 * SECOND
_SHORTEST = timedelta(milliseconds=50)
# Between the signal that ends a body and SIGKILL.
_LONGEST_GRACE = 10 * SECOND


class Watch:
    """What one observer has seen of one lock, row by row."""

    def __init__(self) -> None:
        self._last_seen: object = None
        #: When the first look at this row ended, and when the last one began, as ``local_now()``.
        self._seen_at = self._asked_at = local_now()
        #: Since when it has been watched without a gap; ``None`` if it is not suspected.
        self._watched_at: float | None = None
        #: Since when the lock has been suspected, even if its row changed or there were gaps; ``None`` if it is not.
        self.suspected_at: float | None = None
        self._is_reported = False

    def look(self, lock: "JobLock", asked_at: float) -> timedelta | None:
        """Take note of a row that was just read. ``asked_at`` is ``local_now()`` from before it was asked for.

        Returns the shortest time that the row must still stay unchanged before its holder counts as dead: ``ZERO`` if
        it does now, and ``None`` if its lease goes on.
        """
        now = self._take_note(lock, asked_at)
        if not lock.is_suspected:
            self._watched_at = self.suspected_at = None
            return None
        self._watched_at, self.suspected_at = self._watched_at or now, self.suspected_at or now
        to_watch = _to_watch(lock, _proved(self._watched_at, asked_at))
        to_pass = _to_pass(lock, _proved(self._seen_at, asked_at))
        # If the clocks agree, the watch takes the margin. Without heartbeats, there is no watch.
        usual = ZERO if _interval(lock) else margin(lock)
        if to_watch <= ZERO and (to_pass > usual or lock.is_impossible) and not self._is_reported:
            self._is_reported = True
            logger.warning("%s", disagreement(lock), extra=lock.facts())
        return max(to_watch, to_pass, ZERO)

    def _take_note(self, lock: "JobLock", asked_at: float) -> float:
        now, seen = local_now(), (lock.token, lock.heartbeats, lock.timeline)
        gap, self._asked_at = timedelta(seconds=now - self._asked_at), asked_at
        if seen != self._last_seen:
            self._last_seen, self._seen_at, self._is_reported = seen, now, False
            self._watched_at = None
        elif gap > (_interval(lock) or timedelta.max):
            self._watched_at = None
        return now

    def pause(self, lock: "JobLock") -> float:
        """The longest time to wait before the next look, in seconds: less if the last one took long."""
        interval = _interval(lock) or SECOND
        return max(0.0, self._asked_at + interval.total_seconds() / LOOKS_PER_INTERVAL - local_now())


def still_to_wait(lock: "JobLock", unchanged: timedelta) -> timedelta:
    """How long a suspected row, which has been watched and unchanged for that long, must still stay unchanged before
    its holder counts as dead: ``ZERO`` if it does now."""
    return max(_to_watch(lock, unchanged), _to_pass(lock, unchanged), ZERO)


def _proved(noted_at: float, asked_at: float) -> timedelta:
    """How long the row has surely been as it is, by a look that ended at ``noted_at`` and one that began at
    ``asked_at``. They may be the same look."""
    return max(ZERO, timedelta(seconds=asked_at - noted_at))


def _to_watch(lock: "JobLock", watched: timedelta) -> timedelta:
    """What is left of (b)."""
    return _two_intervals(lock) - watched


def _to_pass(lock: "JobLock", unchanged: timedelta) -> timedelta:
    """What is left of (c). ``unchanged`` is how long the observer has seen the same row."""
    return min(_left_by_clocks(lock), _lease_and_margin(lock) - unchanged)


def _interval(lock: "JobLock") -> timedelta | None:
    """``None`` if the holder sends no heartbeats. An interval that hardly any holder can keep counts as a second, or
    each look would come too late, and observers would ask the database all the time."""
    interval = lock.heartbeat_interval
    return interval if interval is None or interval >= _SHORTEST else SECOND


def _two_intervals(lock: "JobLock") -> timedelta:
    return (_interval(lock) or ZERO) * WATCHED_INTERVALS


def margin(lock: "JobLock") -> timedelta:
    """How long after its lease the holder is left alone."""
    return margin_of(_interval(lock), lock.lease)


def margin_of(interval: timedelta | None, lease: timedelta) -> timedelta:
    """How long after its lease a holder is left alone even if the clocks agree: clocks that are right differ a little
    too, and to end a body takes a moment. With heartbeats, (a) and (b) take at least as long."""
    return interval * WATCHED_INTERVALS if interval else min(_CLOSE, lease / 3)


def grace_of(interval: timedelta | None, lease: timedelta) -> timedelta:
    """How long a body has to end by itself once it has to: only after the whole margin may anybody else have the
    lock."""
    return min(margin_of(interval, lease) // 2, _LONGEST_GRACE)


def _lease_and_margin(lock: "JobLock") -> timedelta:
    return lock.lease + margin(lock)


def _left_by_clocks(lock: "JobLock") -> timedelta:
    """What is left of the lease and its margin, by the holder's clock and ours."""
    now = sent_now()
    if is_on_one_host(alias()) and now < lock.sent_at:
        return ZERO  # it is the same clock, which restarts with the machine
    return _lease_and_margin(lock) - (now - lock.sent_at)


def disagreement(lock: "JobLock") -> str:
    """Which clocks disagree about this suspected lock, and by how much, in a few sentences."""
    if lock.is_too_long:
        return f"The lock {lock.name!r} expires later than any lease can: its row was written by hand."
    if lock.is_impossible:
        lead = f"The last heartbeat of the lock {lock.name!r} lies in the future: the database's clock was set back."
    else:
        lead = (
            f"The lock {lock.name!r} is stale by the database's clock, but not by the clocks of its holder "
            f"({lock.holder}) and this server. It is left alone until a lease has passed by one of these clocks."
        )
    if is_on_one_host(alias()):
        return f"{lead} The clock of this host was changed."
    then, now = _ahead(lock.heartbeat_at - lock.sent_at), _ahead(lock.now - sent_now())
    return (
        f"{lead} The database's clock was {then} its holder's at the last heartbeat, and is {now} this server's. "
        "Synchronize all clocks with NTP."
    )


def _ahead(difference: timedelta) -> str:
    return f"{_roughly(abs(difference))} {'ahead of' if difference >= ZERO else 'behind'}"


def _roughly(duration: timedelta) -> str:
    return duration_in_words(timedelta(seconds=round(duration.total_seconds())))


def silence(lock: "JobLock") -> str:
    """What is known about the holder that loses the lock, as the beginning of a sentence."""
    if lock.is_too_long:
        return "Its row was written by hand, to expire later than any lease can, and no heartbeat was seen"
    if lock.is_impossible:
        return "Its last heartbeat lies in the future because the database's clock was set back, and no other was seen"
    if lock.heartbeat_interval is None:
        return "Its lease expired; it sends no heartbeats"
    return f"Its lease expired, and no heartbeat was seen for {_roughly(lock.now - lock.heartbeat_at)}"
