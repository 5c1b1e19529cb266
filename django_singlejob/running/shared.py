"""What a supervisor and its child share: memory for the lease, the progress, why the body has to end, and how it ended;
and streams.

The memory has no name, and once both have it, no file descriptor: nothing that the body closes takes it away.
"""

import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django_singlejob.locking.lease import LeaseState
from django_singlejob.process.progress import TEXT_LENGTH, Progress
from django_singlejob.running import guard
from django_singlejob.running.waker import Waker

# Of what a child may say about its end. The memory that it does not use costs nothing.
MOST_BYTES = 4_000_000
# How many numbers come first.
NUMBERS = 24
# Where the rest begins: the progress, the user who stopped the run, and the message.
_PROGRESS_AT, _STOPPED_AT, _FIRST_BYTE = 192, 512, 4096
# Of the progress: which numbers are known, both of them, and the text.
_PROGRESS = struct.Struct("=BBdd255p")


def number(place: int, kind: Callable[[float], Any]) -> Any:
    """An attribute that is stored as the number at this place."""

    def read(memory: "SharedMemory") -> Any:
        return kind(memory.numbers[place])

    def write(memory: "SharedMemory", value: float) -> None:
        memory.numbers[place] = value

    return property(read, write)


def text(place: int, first: int) -> Any:
    """A text that is stored from this byte on. Its length is the number at this place."""

    def read(memory: "SharedMemory") -> str:
        length = int(memory.numbers[place])
        return memory.bytes[first : first + length].decode(errors="replace")

    def write(memory: "SharedMemory", value: str) -> None:
        written = value.encode(errors="replace")
        memory.bytes[first : first + len(written)] = written
        memory.numbers[place] = len(written)

    return property(read, write)


class SharedMemory(LeaseState):
    """What both processes see of a lease, and of the body that runs under it.

    Attributes:
        reason: why the body has to end, see ``body_end``; 0: it need not.
        has_output: whether the supervisor passes on what the body prints.
        is_behind: whether the child waits until what it has printed is passed on.
        is_logging: whether what it prints now is a record of this package, which is passed on, but not kept.
        has_logged: whether the child has logged the failure that it has reported, if there was one.
        begun_at: when the body has begun, as ``local_now()``; 0 before that.
        descriptor: for another process, until ``close_descriptor``.
    """

    proven_at = number(guard.PROVEN_AT, float)
    is_lost = number(1, bool)
    is_ending = number(2, bool)
    is_over = number(3, bool)
    is_only_writer = number(guard.IS_ONLY_WRITER, bool)
    reason = number(guard.REASON, int)
    _length = number(6, int)
    stopped_by = text(16, _STOPPED_AT)
    is_behind = number(17, bool)
    has_output = number(18, bool)
    has_logged = number(19, bool)
    begun_at = number(20, float)
    is_logging = number(21, bool)
    #: Wakes what passes on the output, if there is such a thing.
    output_waker: Waker | None = None

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor``: of the memory that another process has made, which is closed; ``None`` for a new one. Raises
        ``OSError`` if there is no memory, or no descriptor."""
        is_new = descriptor is None
        self.descriptor = unnamed_file(_FIRST_BYTE + MOST_BYTES) if descriptor is None else descriptor
        try:
            self.bytes = mmap.mmap(self.descriptor, _FIRST_BYTE + MOST_BYTES)
        except OSError:
            self.close_descriptor()
            raise
        # Each is written in one piece. struct.pack_into() writes zeros first, which the other process may see.
        self.numbers = memoryview(self.bytes)[: 8 * NUMBERS].cast("d")
        if is_new:
            super().__init__(0.0)
        else:
            self.close_descriptor()

    def close_descriptor(self) -> None:
        """Close the descriptor. The memory stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def progress(self) -> Progress:
        """How far the run is. A process that the body has forked may say so too."""
        has_done, has_total, done, total, text = _PROGRESS.unpack_from(self.bytes, _PROGRESS_AT)
        words = text.decode(errors="ignore")  # it may be cut
        return Progress(done if has_done else None, total if has_total else None, words)

    @progress.setter
    def progress(self, progress: Progress) -> None:
        known = progress.done is not None, progress.total is not None
        text = progress.text[:TEXT_LENGTH].encode(errors="replace")
        packed = _PROGRESS.pack(*known, progress.done or 0.0, progress.total or 0.0, text)
        self.bytes[_PROGRESS_AT : _PROGRESS_AT + len(packed)] = packed

    @property
    def message(self) -> bytes:
        """What the child has said of its end; empty if it has said nothing."""
        return self.bytes[_FIRST_BYTE : _FIRST_BYTE + self._length]

    @message.setter
    def message(self, message: bytes) -> None:
        if len(message) > MOST_BYTES:
            raise ValueError(f"The message has {len(message):,} bytes, but there is room for {MOST_BYTES:,}.")
        self.bytes[_FIRST_BYTE : _FIRST_BYTE + len(message)] = message
        # Last, so that a child that is killed meanwhile has said nothing.
        self._length = len(message)


def unnamed_file(size: int) -> int:
    """The descriptor of a new file of that size that nobody else can find. What is not written to takes no room."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("django-singlejob")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def flush_streams() -> None:
    """Write what is still to be written to standard output and standard error."""
    for stream in sys.stdout, sys.stderr:
        with suppress(Exception):  # it may be closed, or there may be none
            stream.flush()
