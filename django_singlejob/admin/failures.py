"""What went wrong: an error, the line of the project's own code that it comes from, and the traceback."""

from typing import NamedTuple

from django.utils.safestring import SafeString

from django_singlejob.admin.cells import cut, preformatted
from django_singlejob.locking.endings import ORIGIN_LENGTH, TRACEBACK_LENGTH
from django_singlejob.process.escaping import shown
from django_singlejob.process.frames import Frame

# With more of an error, the frame below it would not be on the first screen of a phone.
ERROR_LENGTH = 300


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
        brief, Frame.recorded(shown(origin[:ORIGIN_LENGTH], keep="\n")), preformatted(details) if details else ""
    )
