"""What a worker runs besides jobs. A room may add a lane: it claims, runs and records by itself, under the worker's
lock."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

from django_singlejob.process import rooms
from django_singlejob.running.outcomes import Outcome


class Lane:
    """The lane of a worker that runs only jobs: it has nothing to do.

    Attributes:
        may_be_due: whether something may be due that the lane does not know about.
    """

    may_be_due = False

    @property
    def begun(self) -> int:
        """How many runs have begun, or wait to begin, since the worker began."""
        return 0

    @property
    def ended(self) -> int:
        """How many runs have ended since the worker began."""
        return 0

    @property
    def status(self) -> int:
        """The first exit status other than 0 that the runs call for."""
        return 0

    @property
    def is_final(self) -> bool:
        """Whether a run has ended in a way that ends the pass."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether all runs that were due have ended."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for at the worker's end."""
        return True

    def run_due(self, until: datetime | None, most: float) -> bool:
        """Have run what is due, or was due at ``until``. ``most``: how many more may begin. ``False``: none may begin,
        or none is due."""
        return False

    def come_back(self) -> list[Outcome]:
        """The outcomes of what has ended here. May raise what has ended the lane, and database errors: then the next
        call goes on."""
        return []

    def close(self) -> bool:
        """Record, or put back, what is left. ``False`` if that is impossible."""
        return True


NewLane: TypeAlias = Callable[..., Lane]


def lane(*terms: Any) -> Lane:
    """The lane that a room adds, made of these terms, or else one that has nothing to do."""
    new: NewLane | None = rooms.find("lane")
    return new(*terms) if new else Lane()
