"""The threads that are in a database call, and how long each call has taken."""

import sys
from types import FrameType
from typing import NamedTuple

from django_singlejob.clock import local_now


class Call(NamedTuple):
    """A call that has not returned. ``seen_at`` is the ``local_now()`` at which it was first seen."""

    frame: FrameType
    seen_at: float

    @property
    def age(self) -> float:
        """Seconds since the call was first seen."""
        return local_now() - self.seen_at


class Calls:
    """The database calls in progress at the last look, by thread."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def look(self) -> dict[int, Call]:
        """Look again. A call that was there before keeps its age."""
        now, before = local_now(), self._calls
        frames = {thread: frame_of_call(frame) for thread, frame in sys._current_frames().items()}
        self._calls = {
            thread: before[thread] if thread in before and before[thread].frame is frame else Call(frame, now)
            for thread, frame in frames.items()
            if frame
        }
        return self._calls


_DJANGO = "django.db.backends."
# Top-level modules in the stack of a call to a server: the drivers, and the modules in which they wait.
_DRIVERS = {"psycopg", "psycopg_pool", "MySQLdb", "pymysql", "oracledb"}
_WAITS = {"contextlib", "queue", "selectors", "socket", "ssl", "threading"}


def frame_of_call(frame: FrameType | None) -> FrameType | None:
    """Return the frame of a thread's database call, given the thread's innermost frame. The frame stays the same until
    the call returns. ``None`` if the thread is not in a database call; it may be in the program's own hook, which
    Django calls on commit."""
    while frame and _package(frame) in _WAITS:
        frame = frame.f_back
    if frame is None or not (_package(frame) in _DRIVERS or _is_djangos(frame)):
        return None
    while frame is not None and not _is_djangos(frame):
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_djangos(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_DJANGO)
