"""The jobs that a crontab becomes, as the text of a ``jobs.py``, and what is said beside them."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from django_singlejob.adopt.command import Command, Left, understood
from django_singlejob.adopt.crontab import Entry, Unread, read
from django_singlejob.adopt.matcher import instants
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.names import NAME_LENGTH
from django_singlejob.jobs.schedule import next_slot, parse

LINE = "* * * * *  cd /srv/shop && .venv/bin/python manage.py singleton_worker --once"
# How many instants of each line are compared.
COMPARED = 200
# What stands in front of a command, and names no job.
_NO_NAME = re.compile(
    r"nice|ionice|chronic|sudo|env|cd|umask|set|export|test|if|then|bash|sh|python[\d.]*|uv|run|exec|\W*|[\d.]+"
)
# What cron itself reads.
_OF_CRON = {"MAILTO", "MAILFROM", "SHELL", "PATH", "HOME", "LOGNAME", "CRON_TZ", "RANDOM_DELAY", "CONTENT_TYPE", "LANG"}


@dataclass(frozen=True)
class Adopted:
    """A line that becomes a job."""

    entry: Entry
    command: Command
    name: str
    lock: str
    schedule: str
    zone: str

    @property
    def notes(self) -> Iterator[str]:
        """What differs."""
        command, entry = self.command, self.entry
        yield from command.notes
        if command.spread and self.schedule != entry.schedule:
            yield f"sleep by chance: the job's name chooses its minute ({self.schedule}), the same each time"
        elif command.spread:
            yield "sleep by chance: only one server runs it, so nothing has to be spread"
        if command.lock and command.wait:
            yield "flock waits: while another job holds the lock, the slot stays due instead"
        if command.max_runtime:
            yield "timeout: a run that takes longer has failed with JobTimeout, and not with the status 124"
        if entry.user:
            yield f"{entry.user} ran it: it runs as the user of the worker"
        unknown = sorted(entry.variables.keys() - _OF_CRON)
        if unknown and not command.management:
            yield f"the crontab sets {', '.join(unknown)}: set this for the worker, too"


def adopt(
    text: str, *, zone: str, has_users: bool = False, commands: Collection[str] | None = None
) -> tuple[list[Adopted], list[Unread]]:
    """The lines that become jobs, and those that should stay. ``zone``: the time zone of cron; ``has_users``: whether
    the crontab has a column with users, as those in ``/etc/cron.d``; ``commands``: the project's management commands;
    ``None``: they are not known."""
    jobs: list[Adopted] = []
    left: list[Unread] = []
    entries = [*read(text, has_users=has_users)]
    understandable = [each for each in entries if isinstance(each, Entry)]
    locks = Counter(_lock_of(each) for each in understandable)
    names: set[str] = set()
    for entry in entries:
        if isinstance(entry, Unread):
            left.append(entry)
            continue
        try:
            job = _adopted(entry, zone, names, locks, commands)
            jobs.append(job)
            names.add(job.name)
        except Left as why:
            left.append(Unread(entry.number, entry.text, str(why)))
    return jobs, left


def _lock_of(entry: Entry) -> str:
    try:
        return understood(entry.command, entry.given).lock
    except Left:
        return ""


def _adopted(
    entry: Entry, zone: str, names: set[str], locks: Mapping[str, int], commands: Collection[str] | None
) -> Adopted:
    if entry.schedule == "@reboot":
        raise Left("it runs when the machine boots: use systemd or, for one copy, run_singleton --standby")
    command = understood(entry.command, entry.given)
    if commands is not None and command.management and command.management[0] not in commands:
        raise Left(f"this project has no command {command.management[0]!r}")
    zone = entry.variables.get("CRON_TZ", zone)
    schedule = _spread(entry.schedule, command.spread)
    try:
        parse(entry.schedule, zone)
    except InvalidSchedule as error:
        raise Left(f"its schedule is not understood: {str(error).rstrip('.')}") from None
    name = _name(command, entry, names)
    lock = _slug(command.lock.rpartition("/")[2].partition(".")[0]) if locks[command.lock] > 1 and command.lock else ""
    return Adopted(entry, command, name, lock, schedule, zone)


def _spread(schedule: str, seconds: int) -> str:
    """The schedule whose minute the job's name chooses, among as many as the line may have slept."""
    minute, _, rest = schedule.partition(" ")
    if seconds < 60 or not minute.isdecimal():
        return schedule
    last = min(int(minute) + -(-seconds // 60) - 1, 59)
    return f"H({minute}-{last}) {rest}" if last > int(minute) else schedule


def _name(command: Command, entry: Entry, taken: set[str]) -> str:
    words = [*command.management] or [*command.words] or entry.command.split()
    if match := re.search(r"manage\.py\s+(\w+)", " ".join(command.words) or command.line):
        words = [match[1]]
    elif command.line:
        words = command.line.rpartition(" | ")[2].split() if entry.given else command.line.split()
    telling = [word for word in words if not (word.startswith("-") or "=" in word or _NO_NAME.fullmatch(_base(word)))]
    plain = [_slug(_base(word)) for word in telling]
    first = next(filter(None, plain), "") or f"line_{entry.number}"
    longer = "_".join(filter(None, plain[:3]))
    choices = [first, longer, *(f"{first}_{number}" for number in range(2, len(taken) + 3))]
    return next(each[:NAME_LENGTH] for each in choices if each and each[:NAME_LENGTH] not in taken)


def _base(word: str) -> str:
    return word.strip("\"'`(){}").rpartition("/")[2]


def _slug(text: str) -> str:
    base = re.sub(r"\.(?:sh|py|pl|rb|php|bash)$", "", text.lower())
    return re.sub(r"[^a-z0-9]+", "_", base).strip("_")


# --- the text


def jobs_py(jobs: Sequence[Adopted], left: Sequence[Unread], differences: Sequence[str] = ()) -> str:
    """A ``jobs.py`` that runs as it is, and below it what should stay, what differs, and the one line."""
    body = "\n\n".join(map(_job, jobs))
    used = [name for name in ("command_job", "shell_job") if f"{name}(" in body]
    imports = ["from datetime import timedelta\n"] if "timedelta(" in body else []
    imports += [f"from django_singlejob import {', '.join(used)}\n"] if used else []
    return "\n".join(filter(None, [*imports, body, *_remarks(jobs, left, differences)])) + "\n"


def _job(job: Adopted) -> str:
    command = job.command
    if command.management:
        head = [*map(_quoted, command.management)]
        options = {"name": job.name} if job.name != command.management[0] else {}
        function = "command_job"
    else:
        function, head = "shell_job", [_quoted(job.name), f"[{', '.join(map(_quoted, _words(command)))}]"]
        options = {}
    options |= {"schedule": job.schedule, "time_zone": job.zone}
    if command.host:
        options["on"] = command.host
    if job.lock:
        options["lock"] = job.lock
    notify = command.notify or job.entry.variables.get("MAILTO")
    shown = {name: _quoted(value) for name, value in options.items()}
    if notify is not None:
        addresses = [each.strip() for each in notify.split(",") if "@" in each]
        shown |= {"notify": f"[{', '.join(map(_quoted, addresses))}]"} if addresses or not notify else {}
    if command.max_runtime:
        shown["max_runtime"] = f"timedelta(seconds={command.max_runtime:g})"
    arguments = [*head, *(f"{name}={value}" for name, value in shown.items())]
    comment = [f"# {job.entry.comment}"] if job.entry.comment else []
    call = f"{function}({', '.join(arguments)})"
    if len(call) > 100:
        call = f"{function}(\n" + "".join(f"    {each},\n" for each in arguments) + ")"
    return "\n".join([*comment, f"# Line {job.entry.number}: {job.entry.text}", call])


def _quoted(text: str) -> str:
    """As Python code, in double quotes unless there are some in it, as formatters write it."""
    shown = repr(text)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in text and "\\'" not in shown else shown


def _words(command: Command) -> list[str]:
    """The words of a command that needs no shell, or else of one that begins a shell."""
    if command.words and not (command.directory or command.sources):
        return [*command.words]
    path = command.directory if command.directory.startswith("~") else shlex.quote(command.directory)
    change = [f"cd {path}"] if command.directory else []
    line = " && ".join([*change, *command.sources, command.line or shlex.join(command.words)])
    return ["bash", "-o", "pipefail", "-c", line]


def _remarks(jobs: Sequence[Adopted], left: Sequence[Unread], differences: Sequence[str]) -> Iterator[str]:
    if left:
        yield _commented("These lines stay:", [f"Line {each.number}: {each.text}\n    {each.why}." for each in left])
    noted = [f"{job.name}: {note}." for job in jobs for note in job.notes]
    yield _commented("What differs:", [*noted, *_of_all(jobs), *differences])
    yield _commented("The one line for the crontab of every server:", [LINE])


def _of_all(jobs: Sequence[Adopted]) -> Iterator[str]:
    if jobs:
        yield "All: one paragraph is mailed of a run that fails, and nothing of another: its output is in the admin."
        yield "All: a slot that no server has run in time is run late, once."
    if mailed := sorted({job.entry.variables["MAILTO"] for job in jobs if job.entry.variables.get("MAILTO")}):
        yield f"MAILTO={', '.join(mailed)}: the address hears of failures, and no more of each output."
    if any(job.command.line for job in jobs):
        yield "Lines of a shell: if any command of a pipe fails, the run has failed."


def _commented(heading: str, lines: Iterable[str]) -> str:
    texts = [f"# {line}" for text in lines for line in f"* {text}".splitlines()]
    return "\n".join(["", f"# {heading}", "#", *(text.replace("# * *", "# *") for text in texts)]) if texts else ""


# --- the comparison


def differences(jobs: Sequence[Adopted], after: datetime) -> Iterator[str]:
    """Which jobs would run at other instants than their lines: of the next ones, and of those around a change of
    clocks."""
    for job in jobs:
        if found := _difference(job, after):
            yield f"{job.name}: {found}."


def _difference(job: Adopted, after: datetime) -> str:
    zone, schedule = ZoneInfo(job.zone), parse(job.entry.schedule, job.zone)
    for begin in (after, *(after + timedelta(days=days) for days in _days_before_changes(zone, after))):
        at = begin
        for old in islice(instants(job.entry.schedule, zone, begin), COMPARED):
            at = next_slot(schedule, at)
            if at != old:
                return f"cron would begin it at {old.astimezone(zone)}, and the job begins at {at.astimezone(zone)}"
    return ""


def _days_before_changes(zone: ZoneInfo, after: datetime) -> Iterator[int]:
    offsets = [(after + timedelta(days=days)).astimezone(zone).utcoffset() for days in range(367)]
    yield from (days for days in range(366) if offsets[days] != offsets[days + 1])
