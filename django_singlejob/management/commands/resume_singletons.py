"""``manage.py resume_singletons``: allow new runs of paused jobs again."""

from typing import Any

from django_singlejob.control.pausing import resume
from django_singlejob.management.pause_or_resume import GateCommand
from django_singlejob.models.jobs import gates
from django_singlejob.process.escaping import listed


class Command(GateCommand):
    help = "Resumes paused jobs: they run again when they are due, and so do their one-offs."
    act = resume
    done = "Resumed"

    def not_done(self, how: dict[str, Any]) -> str:
        return "was not paused with --all" if how["with_all"] else "was not paused"

    def close(self, given: dict[str, Any]) -> None:
        if given["all"] and (names := sorted(gates().paused().values_list("name", flat=True))):
            self.say(f"Still paused, because they were not paused with --all: {listed(names)}. Resume them by name.")
