"""The options of ``python -m django_singlejob.adopt``, and of ``manage.py singleton_adopt``."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from django_singlejob.adopt.jobs import adopt, differences, jobs_py
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.schedule import parse
from django_singlejob.process.clock import utc_now

EX_DIFFERS, EX_NOINPUT = 1, 66
HELP = (
    "Reads a crontab, and writes a jobs.py that runs its lines once across all servers. Below the jobs stand the lines "
    "that should stay, and why, what differs, and the one line for the crontab of every server."
)


class Writable(Protocol):
    """Where a command writes."""

    def write(self, text: str, /) -> object: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="The crontab; -: standard input (default).",
    )
    parser.add_argument(
        "--users",
        action="store_true",
        help="The lines have a column with users, as those in /etc/cron.d (default: if the file is below /etc).",
    )
    parser.add_argument(
        "--time-zone", metavar="ZONE", help="The IANA time zone in which cron runs (default: this machine's)."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="Compares the next 200 instants of each line and its job, also across changes of clocks.",
    )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m django_singlejob.adopt", description=HELP)
    add_arguments(parser)
    return carry_out(vars(parser.parse_args(words)), sys.stdout, sys.stderr)


def carry_out(
    given: Mapping[str, Any], out: Writable, errors: Writable, commands: Collection[str] | None = None
) -> int:
    """Write the jobs of the crontab. ``given``: the options; ``commands``: see ``adopt``. Returns the exit status: 0; 1
    if ``--check`` has found a difference; 66 if the file cannot be read, or if the zone is unknown."""
    file, zone = given["file"], given["time_zone"] or _zone_here()
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeError) as error:
        errors.write(f"{file} cannot be read: {error}\n")
        return EX_NOINPUT
    try:
        parse("@daily", zone)
    except InvalidSchedule as error:
        errors.write(f"--time-zone: {error}\n")
        return EX_NOINPUT
    has_users = given["users"] or Path(file).is_relative_to("/etc")
    jobs, left = adopt(text, zone=zone, has_users=has_users, commands=commands)
    found = [*differences(jobs, utc_now())] if given["check"] else []
    out.write(jobs_py(jobs, left, found))
    if given["check"]:
        errors.write(f"{len(jobs)} lines become jobs, {len(left)} stay, {len(found)} are due at other instants.\n")
    return EX_DIFFERS if found else 0


def _zone_here() -> str:
    """The zone of this machine's clock; UTC if it has no name."""
    link = Path("/etc/localtime")
    try:
        target = str(link.readlink()) if link.is_symlink() else ""
    except OSError:
        return "UTC"
    name = target.partition("zoneinfo/")[2]
    return name.removeprefix("posix/") or "UTC"
