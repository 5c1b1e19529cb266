"""The lines of a crontab become jobs."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from zoneinfo import ZoneInfo

from django_singlejob.adopt.command import Command, understood
from django_singlejob.adopt.crontab import Entry, Unread, read
from django_singlejob.adopt.found import Found, Job, Left, Stays, call, free_name, in_seconds, quoted, slug
from django_singlejob.adopt.matcher import instants
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.schedule import parse

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


def adopt(text: str, *, zone: str, has_users: bool = False, commands: Collection[str] | None = None) -> Found:
    """What becomes of a crontab. ``zone``: the time zone of cron; ``has_users``: whether the crontab has a column with
    users, as those in ``/etc/cron.d``; ``commands``: the project's management commands; ``None``: they are not
    known."""
    adopted: list[Adopted] = []
    left: list[Stays] = []
    entries = [*read(text, has_users=has_users)]
    understandable = [each for each in entries if isinstance(each, Entry)]
    locks = Counter(_lock_of(each) for each in understandable)
    names: set[str] = set()
    for entry in entries:
        try:
            job = _adopted(entry, zone, names, locks, commands)
            adopted.append(job)
            names.add(job.name)
        except Left as why:
            left.append(Stays(_source(entry), str(why)))
    staying = {each.source for each in left}
    crontab = [*_variables(understandable), *(each.text for each in entries if _source(each) in staying)]
    return Found([*map(_job, adopted)], left, [*_of_all(adopted)], crontab, _directory(adopted))


def _variables(entries: Sequence[Entry]) -> Iterator[str]:
    """Those that have one value for all lines."""
    found = {name: {entry.variables.get(name) for entry in entries} for entry in entries for name in entry.variables}
    for name, values in found.items():
        if len(values) == 1:
            yield f"{name}={values.pop()}"


def _directory(jobs: Sequence[Adopted]) -> str:
    """Where most management commands run; empty if no line says."""
    known = Counter(job.command.directory for job in jobs if job.command.management and job.command.directory)
    return next((directory for directory, _ in known.most_common(1)), "")


def _source(entry: Entry | Unread) -> str:
    return f"Line {entry.number}: {entry.text}"


def _lock_of(entry: Entry) -> str:
    try:
        return understood(entry.command, entry.given).lock
    except Left:
        return ""


def _adopted(
    entry: Entry | Unread, zone: str, names: set[str], locks: Mapping[str, int], commands: Collection[str] | None
) -> Adopted:
    if isinstance(entry, Unread):
        raise Left(entry.why)
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
    lock = slug(command.lock.rpartition("/")[2].partition(".")[0]) if locks[command.lock] > 1 and command.lock else ""
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
    plain = [slug(_base(word)) for word in telling]
    first = next(filter(None, plain), "") or f"line_{entry.number}"
    longer = "_".join(filter(None, plain[:3]))
    return free_name([first, longer], taken)


def _base(word: str) -> str:
    return word.strip("\"'`(){}").rpartition("/")[2]


# --- the text


def _job(job: Adopted) -> Job:
    former = partial(instants, job.entry.schedule, ZoneInfo(job.zone))
    return Job(_source(job.entry), job.name, job.entry.schedule, job.zone, _code(job), tuple(job.notes), former)


def _code(job: Adopted) -> str:
    command = job.command
    if command.management:
        head = [*map(quoted, command.management)]
        options = {"name": job.name} if job.name != command.management[0] else {}
        function = "command_job"
    else:
        function, head = "shell_job", [quoted(job.name), f"[{', '.join(map(quoted, _words(command)))}]"]
        options = {}
    options |= {"schedule": job.schedule, "time_zone": job.zone}
    if command.host:
        options["on"] = command.host
    if job.lock:
        options["lock"] = job.lock
    notify = command.notify or job.entry.variables.get("MAILTO")
    shown = {name: quoted(value) for name, value in options.items()}
    if notify is not None:
        addresses = [each.strip() for each in notify.split(",") if "@" in each]
        shown |= {"notify": f"[{', '.join(map(quoted, addresses))}]"} if addresses or not notify else {}
    if command.max_runtime:
        shown["max_runtime"] = in_seconds(command.max_runtime)
    arguments = [*head, *(f"{name}={value}" for name, value in shown.items())]
    comment = [f"# {job.entry.comment}"] if job.entry.comment else []
    return "\n".join([*comment, f"# {_source(job.entry)}", call(function, arguments)])


def _words(command: Command) -> list[str]:
    """The words of a command that needs no shell, or else of one that begins a shell."""
    if command.words and not (command.directory or command.sources):
        return [*command.words]
    path = command.directory if command.directory.startswith("~") else shlex.quote(command.directory)
    change = [f"cd {path}"] if command.directory else []
    line = " && ".join([*change, *command.sources, command.line or shlex.join(command.words)])
    return ["bash", "-o", "pipefail", "-c", line]


def _of_all(jobs: Sequence[Adopted]) -> Iterator[str]:
    if jobs:
        yield "All: one paragraph is mailed of a run that fails, and nothing of another: its output is in the admin."
        yield "All: a slot that no server has run in time is run late, once."
    if mailed := sorted({job.entry.variables["MAILTO"] for job in jobs if job.entry.variables.get("MAILTO")}):
        yield f"MAILTO={', '.join(mailed)}: the address hears of failures, and no more of each output."
    if zones := sorted({job.zone for job in jobs if "CRON_TZ" in job.entry.variables}):
        yield (
            f"CRON_TZ={', '.join(zones)}: cronie heeds it, but Debian's and Ubuntu's cron runs lines in the machine's "
            "zone. If that is yours, take it out, and adopt the lines again."
        )
    if any(job.command.line for job in jobs):
        yield "Lines of a shell: if any command of a pipe fails, the run has failed."
