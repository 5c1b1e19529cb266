"""Ways to break the product on purpose: each must be found by the simulation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

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
def no_fence() -> Iterator[None]:
    """A fenced block does not ask whether the gate is still its own."""

    def hold(self: Any, name: str, token: Any) -> bool:
        self.touch(name)
        return True

    with patch.object(JobStatusQuerySet, "hold", hold):
        yield


BREAKAGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    breakage.__name__: breakage for breakage in (takeover_without_suspicion, no_fence)
}
