"""Finds out that the code has changed since it was loaded: another process of this program would not be the same."""

import os
import sys

from django_singlejob.process.clock import local_now

# Seconds between two looks.
EVERY = 1.0


class Code:
    """The files of the modules that this process has loaded, as they were at the first look that found them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._differing: set[str] = set()
        self._look_at = local_now()
        self._has_changed = False

    def has_changed(self) -> bool:
        """Whether a file has changed, or is gone. The first call only looks at them."""
        if local_now() >= self._look_at and not self._has_changed:
            self._look_at = local_now() + EVERY
            now = {path: _state(path) for path in _files()}
            differing = {path for path, state in now.items() if self._seen.setdefault(path, state) != state}
            # Twice: an editor, or a deploy, may be in the middle of replacing it.
            self._has_changed = bool(differing & self._differing)
            self._differing = differing
        return self._has_changed


def _files() -> set[str]:
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file for file in files if isinstance(file, str)}


def _state(path: str) -> tuple[int, int] | None:
    """``None`` if the file is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116  (a path object for each of thousands of files would take longer)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
