"""A bar at a terminal that shows how far a run is.

The job has the terminal too, and may print at any time. So the bar has the last line of the terminal for itself: only
the lines above it are scrolled, and the cursor stays where the job has left it.
"""

import os
import threading
from contextlib import suppress
from functools import partial
from typing import Self
from unicodedata import category, east_asian_width

from django.core.management.base import OutputWrapper

from django_singlejob.locking.lease import Lease
from django_singlejob.management.output import UNWRITABLE
from django_singlejob.process import messages
from django_singlejob.process.clock import wait
from django_singlejob.process.escaping import shown
from django_singlejob.process.progress import Progress
from django_singlejob.process.received_signals import start_thread

# How long a drawing stays, at least. Seconds.
INTERVAL = 0.5
# The length of the bar itself.
LENGTH = 20
# In fewer columns, words are not cut, but left out.
LEAST, MORE = 24, "..."
# With fewer lines, none is taken from the job.
LEAST_LINES = 4

# What a terminal does as a VT100 did.
_SAVE, _RESTORE, _DOWN, _UP, _SCROLL_ALL = "\x1b7", "\x1b8", "\x1bD", "\x1b[A", "\x1b[r"


class ProgressBar:
    """Draws on ``stream`` while a run tells how far it is: nothing unless that is a terminal that can move its cursor,
    nor while this process is in the background there. Use it as a context manager."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._drawn = ""
        # The number of the line that it has for itself; 0 if it has none.
        self._line = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self, lease: Lease) -> None:
        """Show the progress of the run under this lease, from when it first tells any."""
        if _can_move_cursor(self._stream):
            self._over.clear()
            with suppress(RuntimeError):  # the system has no thread left
                self._thread = start_thread(partial(self._watch, lease), "progress")

    def end(self) -> None:
        """Clear it, and give the line back."""
        if self._thread:
            self._over.set()
            self._thread.join()
            self._thread = None
        if self._line:
            self._write(f"{_SAVE}{_SCROLL_ALL}{_at(self._line)}{_RESTORE}")
            self._drawn, self._line = "", 0

    def _watch(self, lease: Lease) -> None:
        while not wait(self._over.wait, INTERVAL):
            with suppress(*UNWRITABLE):
                size = os.get_terminal_size(self._stream.fileno())
                progress = Progress.read(lease.progress.stored)  # as others see it
                # The last column stays free: behind it, a terminal goes on in the next line.
                text = drawing(self._encodable(shown(progress.in_words)), progress, size.columns - 1)
                if size.lines >= LEAST_LINES and (text, size.lines) != (self._drawn, self._line or size.lines):
                    self._draw(text, size.lines)

    def _draw(self, text: str, line: int) -> None:
        if self._is_in_background():
            return
        # If the cursor is on that line, scroll, so that it is above it. To set what is scrolled moves the cursor.
        taken = "" if line == self._line else f"{_DOWN}{_UP}{_SAVE}\x1b[1;{line - 1}r{_RESTORE}"
        self._drawn, self._line = text, line
        self._write(f"{taken}{_SAVE}{_at(line)}{text}{_RESTORE}")

    def _is_in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self._stream.fileno()) != os.getpgrp()
        except UNWRITABLE:  # it is a terminal without job control
            return False

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _write(self, text: str) -> None:
        """Not through the stream, whose lock a child must not find taken when it is forked."""
        with suppress(*UNWRITABLE):
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            data, descriptor = text.encode(encoding), self._stream.fileno()
            messages.say(self._stream, partial(messages.write, descriptor, data), text)


def _at(line: int) -> str:
    """Go to this line, and clear it."""
    return f"\x1b[{line};1H\x1b[2K"


def _can_move_cursor(stream: OutputWrapper) -> bool:
    with suppress(*UNWRITABLE):
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and stream.fileno() >= 0
    return False


def drawing(words: str, progress: Progress, width: int) -> str:
    """What is drawn: ``120 of 500, importing [####----------------]  24 %``, at most ``width`` columns wide. Empty if
    there is nothing to tell, or no room."""
    share = progress.share
    filled = "" if share is None else "#" * int(LENGTH * share)
    figure = "" if share is None else f"[{filled:-<{LENGTH}}] {progress.percentage:>5}"
    if width_of(figure) > width:
        figure = progress.percentage if width_of(progress.percentage) <= width else ""
    return " ".join(filter(None, (_cut(words, width - width_of(figure) - bool(figure)), figure)))


def _cut(words: str, width: int) -> str:
    """Not in the middle of a number, so that nobody takes the rest of it for the whole."""
    if width_of(words) <= width:
        return words
    if width < LEAST:
        return ""
    while width_of(words) > width - len(MORE):
        words = words[:-1]
    return words + MORE


def width_of(text: str) -> int:
    """The number of columns that a terminal needs for it."""
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1
