"""The text of a ``jobs.py``, what is said below its jobs, and a comparison of the former rules with theirs."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from django_singlejob.adopt.found import Found, Job
from django_singlejob.jobs.schedule import next_slot, parse

LINE = "* * * * *  cd {directory} && .venv/bin/python manage.py singleton_worker --once"
# How many instants of each job are compared.
COMPARED = 200


def jobs_py(found: Found, differences: Sequence[str] = ()) -> str:
    """A ``jobs.py`` that runs as it is, and below it what should stay, what differs, and the one line."""
    body = "\n\n".join(job.code for job in found.jobs)
    needed = sorted({line for job in found.jobs for line in job.imports})
    used = [name for name in ("command_job", "shell_job", "singleton_job") if f"{name}(" in body]
    others = [line for line in needed if line.startswith("from ")]
    groups = [
        ["from datetime import timedelta"] if "timedelta(" in body else [],
        [*others, f"from django_singlejob import {', '.join(used)}"] if used else [],
        [line for line in needed if line not in others],
    ]
    imports = ["\n".join(group) + "\n" for group in groups if group]
    return "\n".join(filter(None, [*imports, body, *_remarks(found, differences)])) + "\n"


def _remarks(found: Found, differences: Sequence[str]) -> Iterator[str]:
    yield _commented("These stay as they are:", [f"{each.source}\n    {each.why}." for each in found.left])
    noted = [f"{job.name}: {note}." for job in found.jobs for note in job.notes]
    yield _commented("What differs:", [*noted, *found.notes, *differences])
    heading = "The crontab of every server:" if found.crontab else "The one line for the crontab of every server:"
    yield _commented(heading, [*found.crontab, LINE.format(directory=found.directory or "/srv/shop")], mark="")


def _commented(heading: str, lines: Iterable[str], mark: str = "* ") -> str:
    texts = [f"# {line}" for text in lines for line in f"{mark}{text}".splitlines()]
    return "\n".join(["", f"# {heading}", "#", *texts]) if texts else ""


# --- the comparison


def differences(jobs: Sequence[Job], after: datetime) -> Iterator[str]:
    """Which jobs would run at other instants than before: of the next ones, and of those around a change of clocks."""
    for job in jobs:
        if found := _difference(job, after):
            yield f"{job.name}: {found}."


def _difference(job: Job, after: datetime) -> str:
    if job.former is None:
        return ""
    zone, schedule = ZoneInfo(job.zone), parse(job.schedule, job.zone)
    for begin in (after, *(after + timedelta(days=days) for days in _days_before_changes(zone, after))):
        at = begin
        for old in islice(job.former(begin), COMPARED):
            at = next_slot(schedule, at)
            if at != old:
                return f"before, it was due at {old.astimezone(zone)}, and the job is due at {at.astimezone(zone)}"
    return ""


def _days_before_changes(zone: ZoneInfo, after: datetime) -> Iterator[int]:
    offsets = [(after + timedelta(days=days)).astimezone(zone).utcoffset() for days in range(367)]
    yield from (days for days in range(366) if offsets[days] != offsets[days + 1])
