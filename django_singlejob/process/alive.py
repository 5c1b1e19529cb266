"""The file that shows that this process goes on: its modification time says when it last did."""

import errno
import logging
import os
import stat
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
        try:
            is_empty = _is_empty_file(self._touched())
        except OSError as refused:
            if refused.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
            is_empty = False
        if not is_empty:
            raise OSError(errno.EEXIST, "it is not an empty file, and would be deleted")

    def _touched(self) -> os.stat_result:
        """Touch the file, and return its status. Raises ``OSError`` if that is impossible, or if it is a link, which
        somebody else may have made, or a pipe that nobody reads."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            os.utime(descriptor)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def delete(self) -> None:
        """Delete the file, if it is still an empty one. It may be missing."""
        try:
            if _is_empty_file(self.path.lstat()):
                self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as refused:
            self._warn("deleted", refused)

    def touch(self) -> float:
        """Touch the file if it is time for that. Returns when it is time again, a value of ``local_now()``."""
        now = local_now()
        if now >= self._touch_at:
            self._touch_at = now + EVERY
            try:
                self._touched()
            except OSError as refused:
                self._warn("touched", refused)
        return self._touch_at

    def _warn(self, what: str, refused: OSError) -> None:
        if not self._has_failed:
            message = "The file that shows that this process is alive, %s, cannot be %s: %s."
            logger.warning(message, self.path, what, refused.strerror, extra=about(reason=refused))
        self._has_failed = True


def _is_empty_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size == 0
