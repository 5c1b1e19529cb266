"""The file that shows that this process goes on: its modification time says when it last did."""

import errno
import logging
from math import inf
from pathlib import Path

from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

# Seconds between two touches.
EVERY = 2.0


class AliveFile:
    """A file that exists while the process goes on. What goes wrong after ``create`` is logged once."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._touch_at = -inf
        self._has_failed = False

    def create(self) -> None:
        """Raises ``OSError`` if the file cannot be written, or is not an empty one, which may be deleted at the end."""
        if self.path.exists() and not (self.path.is_file() and self.path.stat().st_size == 0):
            raise OSError(errno.EEXIST, "it is not an empty file, and would be deleted")
        self.path.touch()

    def delete(self) -> None:
        """Delete the file. It may be missing."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as refused:
            self._warn("deleted", refused)

    def touch(self) -> float:
        """Touch the file if it is time for that. Returns when it is time again, a value of ``local_now()``."""
        now = local_now()
        if now >= self._touch_at:
            self._touch_at = now + EVERY
            try:
                self.path.touch()
            except OSError as refused:
                self._warn("touched", refused)
        return self._touch_at

    def _warn(self, what: str, refused: OSError) -> None:
        if not self._has_failed:
            message = "The file that shows that this process is alive, %s, cannot be %s: %s."
            logger.warning(message, self.path, what, refused.strerror, extra=about(reason=refused))
        self._has_failed = True
