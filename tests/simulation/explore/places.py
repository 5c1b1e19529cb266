"""The faults of a search, and where each may happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.simulation import faults as kinds
from tests.simulation.world import ONE_HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.explore.observed import Intent


class Kind(NamedTuple):
    """A fault, and the steps that it may happen at.

    Two places are one if nobody can tell them apart: a process that dies inside a transaction leaves as much as one
    that dies right before its COMMIT, and a statement that was not committed before its connection was cut is lost,
    whether or not it was carried out.

    Attributes:
        labels: the steps; empty: all.
    """

    kind: str
    is_after: bool = False
    seconds: float = 0.0
    labels: tuple[str, ...] = ()
    is_of_local_steps: bool = True

    def is_for(self, intent: Intent) -> bool:
        """Whether it may happen at this step."""
        if self.kind in (kinds.CUT, kinds.LATE) and not intent.has_connection:
            return False
        is_local = intent.is_local and intent.label != "sleep"
        return (not self.labels or intent.label in self.labels) and (self.is_of_local_steps or not is_local)


# After a COMMIT, because it may be the last step.
DEATHS = [Kind(kinds.DIE, is_of_local_steps=False), Kind(kinds.DIE, True, labels=("COMMIT",))]
# Longer than the lease, and longer than a takeover takes.
_STOPS = [Kind(kinds.PAUSE, is_after, seconds) for seconds in (12.0, 7.0) for is_after in (False, True)]
_CUTS = [Kind(kinds.CUT), Kind(kinds.CUT, True, labels=("COMMIT",))]
_LATE = [Kind(kinds.LATE, seconds=seconds, labels=("COMMIT",)) for seconds in (0.5, 3.0)]
OF_ONE_HOST = (*DEATHS, *_STOPS)
OF_SERVERS = (*OF_ONE_HOST, *_CUTS, *_LATE)


def kinds_of(profile: str) -> Sequence[Kind]:
    """The faults that a profile knows."""
    return OF_ONE_HOST if profile == ONE_HOST else OF_SERVERS
