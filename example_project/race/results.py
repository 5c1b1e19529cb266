"""What is known after a race."""

from dataclasses import dataclass
from typing import NamedTuple


class Visit(NamedTuple):
    """When a server was inside the job, in seconds on the machine's monotonic clock, which all its processes share."""

    entered_at: float
    left_at: float


@dataclass(frozen=True, kw_only=True)
class Win:
    """A run of the job."""

    run: int
    """The primary key of its row in the history."""
    lock_cost: float
    """How long the server waited for the lock, in seconds."""
    visit: Visit


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What happened to one server in one round: it won, was refused or failed."""

    server: str
    win: Win | None = None
    refusal: str = ""
    error: str = ""


@dataclass(frozen=True)
class Round:
    number: int
    answers: list[Answer]

    @property
    def wins(self) -> dict[str, Win]:
        """The runs that won, by server. There should be one."""
        return {answer.server: answer.win for answer in self.answers if answer.win}

    @property
    def refusals(self) -> list[str]:
        return [answer.refusal for answer in self.answers if answer.refusal]
