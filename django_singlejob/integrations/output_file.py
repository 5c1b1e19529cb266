"""``SINGLEJOB["OUTPUT_FILE"]``: what a run prints is also appended to a file, as ``>> file 2>&1`` does in a crontab."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_singlejob.conf import options
from django_singlejob.process import messages
from django_singlejob.process.calls import Calls
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.logs import about

if TYPE_CHECKING:
    from django_singlejob.running.current_run import CurrentRun

logger = logging.getLogger("django_singlejob")

# How long the file of a run may be out of order, and what waits for it meanwhile, at most. Seconds, bytes.
PATIENCE, MOST = 2.0, 1_048_576
# How soon to try again. Seconds.
_SOON = 0.1
# A pipe that nobody reads is an error, and not a wait.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


# One thread for all files.
_calls = Calls("Nothing could be written to SINGLEJOB['OUTPUT_FILE']", most=MOST, patience=PATIENCE)


# The folders in which nothing could be written for the last run, so that the next one does not wait.
_out_of_order: set[Path] = set()


class OutputFile:
    """The file of one run. It is opened for the run, and again when another file has its name, as after a rotation.
    A thread writes to it; if that does not work for ``PATIENCE``, the rest of the run's output is not written there."""

    def __init__(self, path: str, title: str) -> None:
        self._path, self._title = Path(path), title
        self._descriptor = -1
        self._is_dropped = False

    def write(self, data: bytes) -> None:
        """Append what the run has printed."""
        if not (self._is_dropped or self._put(partial(self._append, data), len(data))):
            self._drop("nothing could be written for a while")

    def end(self) -> None:
        """Wait until all is written, but not for long."""
        if self._put(self._close, 0):
            _calls.end(local_now())

    def _put(self, call: Callable[[], object], size: int) -> bool:
        return _calls.put(call, size, until=lambda: _calls.moved_at + PATIENCE)

    # --- in the thread

    def _append(self, data: bytes) -> None:
        left, give_up_at = memoryview(data), local_now() + (0 if self._path.parent in _out_of_order else PATIENCE)
        while left and not self._is_dropped:
            try:
                left = left[os.write(self._opened(), left) :]
                _out_of_order.discard(self._path.parent)
            except OSError as error:  # perhaps for a moment: a rotation, a full disk
                if local_now() >= give_up_at:
                    self._drop(error.strerror or str(error))
                else:
                    _calls.move()  # what waits behind it is for other files
                    sleep(_SOON)

    def _opened(self) -> int:
        """Its descriptor. Raises ``OSError``."""
        if self._descriptor >= 0 and not self._is_moved():
            return self._descriptor
        self._close()
        self._descriptor = os.open(self._path, _APPEND, 0o666)
        return self._descriptor

    def _is_moved(self) -> bool:
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except OSError:
            return True

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _drop(self, why: str) -> None:
        self._is_dropped = True
        _out_of_order.add(self._path.parent)
        message = "What %r prints is not written to %s any more: %s. Its run goes on."
        logger.warning(message, self._title, self._path, why, extra=about(job=self._title))


def output_file(title: str) -> OutputFile:
    """Where what this run prints is appended."""
    return OutputFile((options().output_file or "").replace("{name}", title), title)


def append_traceback(*, run: "CurrentRun", **_: Any) -> None:
    """Receive ``job_finished``: append why the run of a command failed, as Python prints it for ``manage.py``."""
    row = run.run if options().output_file and messages.are_begun else None
    if row and row.traceback:
        file = output_file(run.job.name)
        file.write(f"{row.traceback.rstrip()}\n".encode(errors="replace"))
        file.end()
