"""``manage.py pause_singletons``: prevent new runs of jobs."""

from typing import Any

from django_singlejob.locking.pausing import pause
from django_singlejob.management.job_choice import GateCommand


class Command(GateCommand):
    help = (
        "Pauses jobs: no new run of them starts, and their one-offs wait. A run in progress continues to its end. "
        "Tasks that are not jobs are not paused: stop their workers."
    )
    act = pause
    done = "Paused"
    not_done = "was already paused"

    def close(self, given: dict[str, Any]) -> None:
        if given["all"]:
            self.say("Tasks that are not jobs are not paused.")
