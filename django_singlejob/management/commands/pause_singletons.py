"""``manage.py pause_singletons``: prevent new runs of jobs."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_singlejob.control.pausing import pause
from django_singlejob.management.arguments import instant, reason
from django_singlejob.management.exit_status import EX_USAGE
from django_singlejob.management.pause_or_resume import GateCommand
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import listed


class Command(GateCommand):
    help = (
        "Pauses jobs: no new run of them starts, and their one-offs wait. A run in progress continues to its end. "
        "Tasks that are not jobs are not paused: stop their workers."
    )
    act = pause
    done = "Paused"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--until",
            type=instant,
            metavar="INSTANT",
            help="When the jobs resume by themselves, in ISO 8601, such as 2026-12-01T06:00 (default: when "
            "resume_singletons, or a user in the admin, resumes them).",
        )
        parser.add_argument("--because", type=reason, metavar="TEXT", help="The reason, for others to read.")

    def how(self, given: dict[str, Any]) -> dict[str, Any]:
        until = given["until"]
        if until and until <= (now := database_now()):
            raise CommandError(
                f"--until is {instant_in_words(until)}, but by the database's clock it is {instant_in_words(now)} "
                "already. Give a later instant.",
                returncode=EX_USAGE,
            )
        return super().how(given) | {"until": until, "reason": given["because"] or ""}

    def aside(self, how: dict[str, Any]) -> str:
        return f" until {instant_in_words(how['until'])}" if how["until"] else ""

    def not_done(self, how: dict[str, Any]) -> str:
        return "was already paused"

    def close(self, given: dict[str, Any]) -> None:
        if given["all"]:
            self.say("Tasks that are not jobs are not paused.")
            by_name = gates().paused().filter(paused_with_all=False, paused_until__isnull=False)
            sooner = by_name.filter(paused_until__lt=given["until"]) if given["until"] else by_name
            if names := sorted(sooner.values_list("name", flat=True)):
                self.say(f"Paused by name, these resume by themselves before that: {listed(names)}.")
