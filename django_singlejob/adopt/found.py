"""What is found in a crontab, or in Celery's schedules: the jobs, and what should stay."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django_singlejob.jobs.names import NAME_LENGTH


@dataclass(frozen=True)
class Job:
    """What becomes a job.

    Attributes:
        source: what it was, as people find it.
        name: of the job.
        schedule: of the job, before its name has chosen a minute.
        zone: the IANA time zone of the schedule.
        code: the text that registers it.
        notes: what differs.
        former: the instants later than the given one at which it was due before, one after another; ``None`` if they
            cannot be known.
        imports: the lines that the code needs, besides those for this package and for ``timedelta``.
    """

    source: str
    name: str
    schedule: str | timedelta
    zone: str
    code: str
    notes: tuple[str, ...]
    former: Callable[[datetime], Iterator[datetime]] | None
    imports: tuple[str, ...] = ()


class Stays(NamedTuple):
    """What should stay as it is, and why."""

    source: str
    why: str


class Found(NamedTuple):
    """The jobs, what should stay, what differs for all of them, and the lines of the new crontab, without ours.

    ``directory``: the project's, as far as it is known.
    """

    jobs: Sequence[Job]
    left: Sequence[Stays]
    notes: Sequence[str]
    crontab: Sequence[str] = ()
    directory: str = ""


class Left(ValueError):
    """It should stay as it is, and why."""


def slug(text: str) -> str:
    """The text as a name: small letters, digits and underscores."""
    base = re.sub(r"\.(?:sh|py|pl|rb|php|bash)$", "", text.lower())
    return re.sub(r"[^a-z0-9]+", "_", base).strip("_")


def free_name(choices: Sequence[str], taken: Collection[str]) -> str:
    """The first of the names that is not taken; if all are, the first with a number behind it."""
    short = [each[: NAME_LENGTH - 10] for each in choices if each]
    numbered = (f"{short[0]}_{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (*short, *numbered) if each not in taken)


def quoted(text: str) -> str:
    """As Python code, in double quotes unless there are some in it, as formatters write it."""
    shown = repr(text)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in text and "\\'" not in shown else shown


def in_seconds(duration: float) -> str:
    """As Python code."""
    return f"timedelta(seconds={int(duration) if duration == int(duration) else duration})"


def call(function: str, arguments: Sequence[str]) -> str:
    """As Python code, in one line if it is short enough."""
    text = f"{function}({', '.join(arguments)})"
    return text if len(text) <= 100 else f"{function}(\n" + "".join(f"    {each},\n" for each in arguments) + ")"
