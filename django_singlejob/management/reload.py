"""Detects that the code has changed since it was loaded, so that a worker can restart if DEBUG is on."""

import os
import sys
from pathlib import Path

from django.utils import autoreload

from django_singlejob.management.output import flush
from django_singlejob.process.clock import local_now

# Seconds between two checks.
EVERY = 1.0


class Code:
    """The files of the loaded modules, as they were at the first check that found them."""

    def __init__(self) -> None:
        self._times: dict[Path, float] = {}
        self._look_at = local_now()
        self._is_outdated = False

    def is_outdated(self) -> bool:
        """Whether one of the files has changed."""
        if local_now() >= self._look_at:
            self._look_at = local_now() + EVERY
            self._is_outdated = self._is_outdated or self._has_changed()
        return self._is_outdated

    def _has_changed(self) -> bool:
        now = {path: time for path in autoreload.iter_all_python_module_files() if (time := _changed_at(path))}
        before, self._times = self._times, {**now, **self._times}
        return any(before.get(path, time) != time for path, time in now.items())


def _changed_at(path: Path) -> float | None:
    """``None`` if the file is missing, for example while an editor replaces it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def start_anew() -> None:
    """Replace this process with a new one that runs the same command. Does not return."""
    flush([sys.stdout, sys.stderr])
    os.execv(sys.executable, autoreload.get_child_arguments())  # noqa: S606
