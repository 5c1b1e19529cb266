"""Which threads are in a call to a database, and since when."""

import sys
from types import FrameType
from typing import NamedTuple

from django_singlejob.clock import local_now


class Call(NamedTuple):
    """A call that has not returned. ``seen_at``: when it was first seen, a value of ``local_now()``."""

    frame: FrameType
    seen_at: float

    @property
    def age(self) -> float:
        """Seconds."""
        return local_now() - self.seen_at


class Calls:
    """The calls that are under way, by thread, as of the last look."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def look(self) -> dict[int, Call]:
        """Look once more: a call that was there before keeps its age."""
        now, before = local_now(), self._calls
        frames = {thread: frame_of_call(frame) for thread, frame in sys._current_frames().items()}
        self._calls = {
            thread: before[thread] if thread in before and before[thread].frame is frame else Call(frame, now)
            for thread, frame in frames.items()
            if frame
        }
        return self._calls


_DJANGO = "django.db.backends."
# What is in a call to a server, by the first part of a module's name: the drivers, and what they wait with.
_DRIVERS = {"psycopg", "psycopg_pool", "MySQLdb", "pymysql", "oracledb"}
_WAITS = {"contextlib", "queue", "selectors", "socket", "ssl", "threading"}


def frame_of_call(frame: FrameType | None) -> FrameType | None:
    """Of a call to a database that a thread is in, whose innermost frame this is. It stays the same until the call
    returns. ``None``: the thread is in none; it may be in a hook of the program's own, which Django calls on commit."""
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
