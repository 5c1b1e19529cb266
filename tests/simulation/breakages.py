"""Ways to break the product on purpose: each must be found by the simulation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from django_singlejob import Lease
from django_singlejob.conf import ZERO
from django_singlejob.locking.liveness import Watch
from django_singlejob.models.jobs import JobStatusQuerySet
from django_singlejob.models.locks import JobLockQuerySet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


@contextmanager
def takeover_without_suspicion() -> Iterator[None]:
    """A lock is taken over from a live holder: neither the watch nor the write asks whether it is suspected."""

    def take_over(self: Any, seen: Any, columns: Any) -> bool:
        return bool(self._unchanged(seen).update(**columns) == 1)

    with patch.object(JobLockQuerySet, "take_over", take_over), patch.object(Watch, "look", lambda *_: ZERO):
        yield


@contextmanager
def takeover_without_a_watch() -> Iterator[None]:
    """A lock is taken over as soon as it is suspected."""

    def look(_: Watch, lock: Any, asked_at: float) -> Any:
        return ZERO if lock.is_suspected else None

    with patch.object(Watch, "look", look):
        yield


@contextmanager
def no_fence() -> Iterator[None]:
    """A fenced block does not ask whether the gate is still its own."""

    def hold(self: Any, name: str, token: Any) -> bool:
        self.touch(name)
        return True

    with patch.object(JobStatusQuerySet, "hold", hold):
        yield


@contextmanager
def release_by_name() -> Iterator[None]:
    """A release deletes whatever row has the name."""

    def release(self: Any, name: str, token: Any) -> bool:
        return bool(self.filter(name=name)._raw_delete(self.db))

    def finish(self: Any, name: str, token: Any, status: str, *_: Any, **__: Any) -> bool:
        return bool(self.filter(name=name).update(last_status=status))

    with patch.object(JobLockQuerySet, "release", release), patch.object(JobStatusQuerySet, "finish", finish):
        yield


@contextmanager
def renew_by_name() -> Iterator[None]:
    """A heartbeat renews whatever row has the name."""
    renew = JobLockQuerySet.renew

    def renew_any(self: Any, name: str, token: Any, *others: Any, **terms: Any) -> bool:
        row = self.filter(name=name).values_list("token", flat=True).first()
        return row is not None and renew(self, name, row, *others, **terms)

    with patch.object(JobLockQuerySet, "renew", renew_any):
        yield


@contextmanager
def renew_together_unconditionally() -> Iterator[None]:
    """Heartbeats that are sent together count for all of them, whatever became of the rows."""
    renew = JobLockQuerySet.renew_together

    def renew_all(self: Any, held: Any, *others: Any) -> Any:
        renew(self, held, *others)
        return {each.token for each in held}

    with patch.object(JobLockQuerySet, "renew_together", renew_all):
        yield


@contextmanager
def no_proof_before_the_body() -> Iterator[None]:
    """A holder does not look at its deadline before the body begins."""
    with patch.object(Lease, "prove", lambda _: None):
        yield


BREAKAGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    breakage.__name__: breakage
    for breakage in (
        takeover_without_suspicion,
        takeover_without_a_watch,
        no_fence,
        release_by_name,
        renew_by_name,
        renew_together_unconditionally,
        no_proof_before_the_body,
    )
}
