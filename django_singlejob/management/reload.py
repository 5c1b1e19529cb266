"""Has the code changed since it was loaded? For DEBUG, where a worker starts anew then."""

import os
import sys
from pathlib import Path

from django.utils import autoreload

from django_singlejob.clock import local_now

# Seconds between two looks.
EVERY = 1.0


class Code:
    """The files of the modules that are loaded, as they were when they were first seen."""

    def __init__(self) -> None:
        self._times: dict[Path, float] = {}
        self._look_at = local_now()
        self._is_outdated = False

    def is_outdated(self) -> bool:
        """Whether one of them has changed."""
        if local_now() >= self._look_at:
            self._look_at = local_now() + EVERY
            self._is_outdated = self._is_outdated or self._has_changed()
        return self._is_outdated

    def _has_changed(self) -> bool:
        now = {path: time for path in autoreload.iter_all_python_module_files() if (time := _changed_at(path))}
        before, self._times = self._times, {**now, **self._times}
        return any(before.get(path, time) != time for path, time in now.items())


def _changed_at(path: Path) -> float | None:
    """``None``: it is away, as while an editor replaces it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def start_anew() -> None:
    """Become the same command again. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, autoreload.get_child_arguments())  # noqa: S606
