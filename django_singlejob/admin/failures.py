"""What went wrong: an error, the line of the project's own code that it comes from, and the traceback."""

from typing import Any, NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast, Right
from django.utils.safestring import SafeString

from django_singlejob.admin.cells import cut
from django_singlejob.admin.tracebacks import traceback_panel
from django_singlejob.locking.endings import ORIGIN_LENGTH, TRACEBACK_LENGTH
from django_singlejob.models.one_offs import ERRORS_LENGTH, errors_in, one_offs
from django_singlejob.process.escaping import shown
from django_singlejob.process.frames import Frame

# With more of an error, the frame below it would not be on the first screen of a phone.
ERROR_LENGTH = 300
# Nobody looks at more errors of one one-off.
MOST_ERRORS = 20


class Failure(NamedTuple):
    """What a page shows of an error. ``frame``: ``None`` if it is not known; ``details``: empty if the error is all."""

    error: str
    frame: Frame | None
    details: SafeString | str


def failure_of(error: str, traceback: str, origin: str = "") -> Failure | None:
    """``None`` if nothing went wrong. ``origin``: the frame, as it was recorded."""
    if not (error or traceback):
        return None
    # A text that was written by hand may have any length, and marks that change the direction of writing.
    error = shown(cut(error, TRACEBACK_LENGTH), keep="\n").strip()
    traceback = shown(traceback[-TRACEBACK_LENGTH:], keep="\n").strip()
    brief = cut(error, ERROR_LENGTH)
    details = traceback or (error if brief != error or "\n" in error else "")
    return Failure(
        brief, Frame.recorded(shown(origin[:ORIGIN_LENGTH], keep="\n")), traceback_panel(details) if details else ""
    )


def failures_of(row: Any) -> tuple[Failure | None, list[Failure | None]]:
    """What went wrong in the last attempt at a one-off, and in the earlier ones, the oldest first."""
    kept = one_offs().filter(pk=row.pk).values_list(Right(Cast("errors", TextField()), ERRORS_LENGTH), flat=True)
    earlier = list(errors_in(kept.first() or ""))[-MOST_ERRORS:]
    if row.shown_error and earlier and earlier[-1]["error"] == row.shown_error:
        del earlier[-1]
    failures = [failure_of(error["error"], error["traceback"], error["origin"]) for error in earlier]
    return failure_of(row.shown_error, row.shown_traceback, row.shown_origin), failures
