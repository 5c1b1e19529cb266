"""What a supervisor and its child share: memory for the lease, why the body has to end, and how it ended; and streams.

The memory is anonymous, so it has no name and no file descriptor: nothing that the body closes takes it away.
"""

import mmap
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django_singlejob.locking.lease import LeaseState

# Of what a child may say about its end. The memory that it does not use costs nothing.
MOST_BYTES = 4_000_000
_FIRST_BYTE = 128


def number(place: int, kind: Callable[[float], Any]) -> Any:
    """An attribute that is stored as the number at this place."""

    def read(memory: "SharedMemory") -> Any:
        return kind(struct.unpack_from("d", memory.bytes, 8 * place)[0])

    def write(memory: "SharedMemory", value: float) -> None:
        struct.pack_into("d", memory.bytes, 8 * place, value)

    return property(read, write)


class SharedMemory(LeaseState):
    """What both processes see of a lease, and of the body that runs under it.

    Attributes:
        reason: why the body has to end, see ``in_child``; 0: it need not.
    """

    proven_at = number(0, float)
    is_lost = number(1, bool)
    is_ending = number(2, bool)
    is_over = number(3, bool)
    is_only_writer = number(4, bool)
    reason = number(5, int)
    _length = number(6, int)

    def __init__(self) -> None:
        self.bytes = mmap.mmap(-1, _FIRST_BYTE + MOST_BYTES)
        super().__init__(0.0)

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


def flush_streams() -> None:
    """Write what is still to be written to standard output and standard error."""
    for stream in sys.stdout, sys.stderr:
        with suppress(Exception):  # it may be closed, or there may be none
            stream.flush()
