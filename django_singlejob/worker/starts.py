"""How a worker gets on with its executors: whether another run may begin."""

import logging

from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about
from django_singlejob.running.supervisor import Supervisor

logger = logging.getLogger("django_singlejob")

# How long nothing begins after many runs that have not begun, at most. Seconds.
LONGEST_PAUSE = 60.0
# How many in a row are worth an alarm.
MANY = 3

OUTDATED = "the code has changed since this program was started"


class Starts:
    """The beginnings of runs.

    Attributes:
        not_begun: how many runs in a row have not begun. After each, nothing begins for a while: longer and longer.
        is_outdated: whether a new executor was needed, but the code has changed: it would not be this program any more.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.not_begun = 0
        self.is_outdated = False
        self._supervisor = supervisor
        supervisor.note_code()
        self._pause_ends_at = local_now()

    @property
    def pause(self) -> float:
        """How long nothing begins from now on. Seconds; 0 or less: it is not paused."""
        return self._pause_ends_at - local_now()

    @property
    def may_begin(self) -> bool:
        """Whether another run may begin now."""
        return not self.is_outdated and self.pause <= 0

    def has_executor(self) -> bool:
        """Whether there is an executor for another run, or a new one may be started."""
        if self._supervisor.is_outdated and not self.is_outdated:
            self.is_outdated = True
            message = "The worker starts no new process, and ends: %s."
            logger.warning(message, OUTDATED, extra=about(reason="outdated"))
        return not self.is_outdated

    def note_begun(self) -> None:
        """Take note that a run has begun."""
        self.not_begun = 0

    def note_not_begun(self, name: str, why: str) -> None:
        """Take note that the run of this job, or the tasks, have not begun."""
        self._pause_ends_at = local_now() + min(2.0 ** min(self.not_begun, 6), LONGEST_PAUSE)
        self.not_begun += 1
        if self.not_begun == MANY:
            message = (
                "%d runs in a row have not begun. Nothing is lost, but nothing runs on this server: %s A process that "
                "runs jobs is started as this one was. What only one process can do, such as binding a port, leave to "
                "processes of which django_singlejob.is_executor() is False."
            )
            logger.critical(message, MANY, why, extra=about(job=name))
