"""Finds out that the code has changed since it was loaded: another process of this program would not be the same."""

import os
import sys
from types import ModuleType

from django_singlejob.process.clock import local_now

# Seconds between two looks.
EVERY = 1.0


class Code:
    """The files of the modules that this process has loaded, as they were at the first look that found them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._missing: set[str] = set()
        self._look_at = local_now()
        self._has_changed = False

    def has_changed(self) -> bool:
        """Whether a file has changed, or is gone. The first call only looks at them."""
        self._has_changed = self._has_changed or self._look()
        return self._has_changed

    def has_changed_lately(self) -> bool:
        """The same, as of the last second: for a caller that asks again and again."""
        if local_now() >= self._look_at:
            self._look_at = local_now() + EVERY
            return self.has_changed()
        return self._has_changed

    def _look(self) -> bool:
        now = {path: _state(path) for path in _files()}
        differing = {path for path, state in now.items() if self._seen.setdefault(path, state) != state}
        missing, self._missing = self._missing, {path for path in differing if now[path] is None}
        # One that is missing is looked for twice: an editor, or a deploy, may be in the middle of replacing it.
        return bool(differing - self._missing or missing & self._missing)


def _files() -> set[str]:
    # Not by getattr(), which would import what is to be imported later. What is here need not be a module.
    modules: list[object] = list(sys.modules.values())
    files = {vars(module).get("__file__") for module in modules if isinstance(module, ModuleType)}
    return {file for file in files if isinstance(file, str)}


def _state(path: str) -> tuple[int, int] | None:
    """``None`` if the file is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116  (a path object for each of thousands of files would take longer)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
