"""What changes about a lease while it is held."""

from collections.abc import Mapping
from typing import Any

from django_singlejob.models.progress import Progress


class LeaseState:
    """What changes about a lease. A supervisor and its child keep it in memory that both of them see.

    Attributes:
        proven_at: when the last successful request was sent, as ``local_now()``.
        is_lost: whether the lock is known to be another's, or nobody's.
        is_ending: whether a release is under way. It decides what happened to the row, not a heartbeat that finds none.
        is_over: whether the lease was released, or ended in another way.
        is_only_writer: whether the child is in a fenced transaction that keeps its supervisor from writing.
        stopped_by: the user who has asked to stop the run; empty if nobody has, as far as is known.
        progress: how far the run is, as it has said itself.
        last_line: the last line that it printed; empty if that is not known.
    """

    stopped_by: str = ""
    progress: Progress = Progress()
    last_line: str = ""
    #: Whether a heartbeat with news has not got through, as far as is known.
    is_reserved = False
    # What is recorded.
    _told: Mapping[str, Any] = Progress().stored

    def __init__(self, proven_at: float) -> None:
        self.proven_at = proven_at
        self.is_lost = self.is_ending = self.is_over = self.is_only_writer = False

    def begin_as(self, other: "LeaseState") -> None:
        """Take over what is known when the body begins."""
        self.proven_at, self.is_lost, self.is_over = other.proven_at, other.is_lost, other.is_over
        self.stopped_by = other.stopped_by

    @property
    def progress_with_line(self) -> Progress:
        """How far the run is, with the last line that it printed."""
        return self.progress._replace(line=self.last_line)

    def news(self) -> Mapping[str, Any] | None:
        """The progress, for a heartbeat to record. ``None`` if it has not changed, or if a heartbeat with news has just
        failed: perhaps the database refuses them, and the lease must be kept."""
        progress = self.progress_with_line.stored
        return None if self.is_reserved or progress == self._told else progress

    def told(self, news: Mapping[str, Any] | None) -> None:
        """Take note that a heartbeat has got through, with these news."""
        self.is_reserved = False
        if news is not None:
            self._told = news
