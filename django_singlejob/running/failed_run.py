"""What a mail, or a command, says of a run that failed, beside its error."""

from typing import TYPE_CHECKING

from django_singlejob.conf import options
from django_singlejob.locking.endings import ORIGIN_LENGTH
from django_singlejob.process.escaping import shown
from django_singlejob.process.frames import Frame

if TYPE_CHECKING:
    from django_singlejob.models import JobRun


def own_line(run: "JobRun") -> str:
    """The line of the project's own code where it failed; empty if it is not known."""
    frame = Frame.recorded(shown(run.origin[:ORIGIN_LENGTH], keep="\n"))
    return f"{frame.path}, line {frame.line}, in {frame.function}: {frame.source}" if frame else ""


def where_more_is(run: "JobRun | None", *, command: str) -> str:
    """The address of the run's page, or the overview's; without ``ADMIN_URL``, a command to type."""
    if (base := options().admin_url) is None:
        return f"More: manage.py {command}"
    page = f"jobrun/{run.pk}/change/" if run else "overview/"
    return f"More: {base.rstrip('/')}/django_singlejob/{page}"
