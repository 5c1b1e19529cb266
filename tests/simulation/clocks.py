"""The clocks of a simulated world. True time is known only to the scheduler; each clock shows something else."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: What a right clock shows at the beginning of each schedule: a round minute.
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Clock:
    """A clock that runs a little too fast or too slowly, and is off by ``ahead`` seconds."""

    ahead: float = 0.0
    rate: float = 1.0

    def at(self, instant: float) -> float:
        """What it shows at an instant of true time, in seconds."""
        return self.ahead + self.rate * instant

    def step(self, seconds: float) -> None:
        """Set it ahead, or back if ``seconds`` is negative."""
        self.ahead += seconds


def in_utc(seconds: float) -> datetime:
    """An instant, given the seconds since the epoch."""
    return EPOCH + timedelta(seconds=seconds)
