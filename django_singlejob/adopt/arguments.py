"""The options of ``python -m django_singlejob.adopt``, and of ``manage.py singleton_adopt``."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from django.db import DatabaseError

from django_singlejob.adopt.beat import adopt_beat
from django_singlejob.adopt.found import Found
from django_singlejob.adopt.jobs import differences, jobs_py
from django_singlejob.adopt.lines import adopt
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.schedule import parse
from django_singlejob.process.clock import utc_now

EX_DIFFERS, EX_NOINPUT = 1, 66
HELP = (
    "Reads a crontab, and writes a jobs.py that runs its lines once across all servers. Below the jobs stands what "
    "should stay, and why, what differs, and the one line for the crontab of every server."
)


class Writable(Protocol):
    """Where a command writes."""

    def write(self, text: str, /) -> object: ...


def add_arguments(parser: argparse.ArgumentParser, *, has_project: bool) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="The crontab; -: standard input (default).",
    )
    if has_project:
        source.add_argument(
            "--celery",
            action="store_true",
            help="Instead of a crontab, reads what Celery beat sends: CELERY_BEAT_SCHEDULE, the beat_schedule of the "
            "app, and the rows of django-celery-beat.",
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
        help="Compares the next 200 instants of each line or rule and its job, also across changes of clocks. Exits "
        "with 1 if some differ.",
    )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m django_singlejob.adopt", description=HELP)
    add_arguments(parser, has_project=False)
    return carry_out(vars(parser.parse_args(words)), sys.stdout, sys.stderr)


def carry_out(
    given: Mapping[str, Any], out: Writable, errors: Writable, commands: Collection[str] | None = None
) -> int:
    """Write the jobs. ``given``: the options; ``commands``: see ``adopt``. Returns the exit status: 0; 1 if ``--check``
    has found a difference; 66 if the file, the zone or Celery is not found."""
    zone = given["time_zone"] or _zone_here()
    try:
        parse("@daily", zone)
        found = adopt_beat(zone) if given.get("celery") else _of_crontab(given, zone, commands)
    except InvalidSchedule as error:
        errors.write(f"--time-zone: {error}\n")
        return EX_NOINPUT
    except (OSError, UnicodeError) as error:
        errors.write(f"The crontab cannot be read: {error}\n")
        return EX_NOINPUT
    except ImportError as error:
        errors.write(f"Celery is not found: {error}. Run this where beat can run.\n")
        return EX_NOINPUT
    except DatabaseError as error:
        errors.write(f"The rows of django-celery-beat cannot be read: {error}\n")
        return EX_NOINPUT
    differing = [*differences(found.jobs, utc_now())] if given["check"] else []
    out.write(jobs_py(found, differing))
    if given["check"]:
        counts = f"jobs: {len(found.jobs)}; staying: {len(found.left)}; due at other instants: {len(differing)}"
        errors.write(f"{counts.capitalize()}.\n")
    return EX_DIFFERS if differing else 0


def _of_crontab(given: Mapping[str, Any], zone: str, commands: Collection[str] | None) -> Found:
    file = given["file"]
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    has_users = given["users"] or Path(file).is_relative_to("/etc")
    return adopt(text, zone=zone, has_users=has_users, commands=commands)


def _zone_here() -> str:
    """The zone of this machine's clock; UTC if it has no name."""
    link = Path("/etc/localtime")
    try:
        target = str(link.readlink()) if link.is_symlink() else ""
    except OSError:
        return "UTC"
    name = target.partition("zoneinfo/")[2]
    return name.removeprefix("posix/") or "UTC"
