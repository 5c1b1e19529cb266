"""What a child process prints: it is passed on, and its last part is kept.

A thread of the supervisor does this. It touches no database, so a driver that hangs does not hold up a body that
prints. If nobody reads what it passes on, it waits, and only what prints waits with it: in a worker not for long. A
pass of cron holds it back, unless the run fails.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Protocol

from django_singlejob.conf import options
from django_singlejob.process import messages, rooms
from django_singlejob.process.calls import Calls
from django_singlejob.process.clock import local_now, wait
from django_singlejob.process.escaping import printable_end
from django_singlejob.process.logs import about
from django_singlejob.process.progress import OUTPUT_LENGTH
from django_singlejob.process.received_signals import start_thread
from django_singlejob.running.shared import SharedMemory
from django_singlejob.running.waker import Waker, wait_for

logger = logging.getLogger("django_singlejob")

STDOUT, STDERR = 1, 2
# How much is read at once, and the longest line that is passed on as a whole. Bytes.
CHUNK = 65_536
# How much is still read once the child is over: as much as a pipe holds, and no more. Others may print for ever. Bytes.
MOST_LEFT = 1_048_576
# No character takes more bytes.
_WIDEST = 4
# A wait that is as good as endless. Seconds.
_DAY = 86_400.0
# If nobody has read anything for this long, what a worker's children print is lost; and no longer than this, a run that
# is over waits until somebody has read it. Seconds.
_STALLED = 5.0
# The share of what may wait to be written that is for what children print. The rest is for the process itself.
_SHARE = 0.5


class Printer:
    """Standard output and standard error of this process, for what its children print.

    Attributes:
        has_lines: whether only whole lines are passed on, because several children may print at once.
        is_quiet: whether what a run prints is passed on only if it fails, or if it cannot be kept.
    """

    def __init__(self, *, has_lines: bool = False, has_titles: bool = False, is_quiet: bool = False) -> None:
        """``has_titles``: whether a line says which child has printed what follows, if that was another one before."""
        self.has_lines = has_lines
        self.is_quiet = is_quiet and options().output > 0
        self._has_titles = has_titles
        self._titles: dict[tuple[int, int], str] = {}

    def write(self, stream: int, data: bytes, title: str, give_up_at: Callable[[], float]) -> bool:
        """Write to that stream what the child of this title has printed. ``False`` if that is impossible. Whole lines
        are lost if too many wait, and nobody reads them, or if too many still do at ``give_up_at()``."""
        try:
            file, calls = _file(stream), messages.of_file(stream)
        except OSError:  # it is closed
            return False
        if self.has_lines:
            write = partial(self._write, stream, file, data, title)
            until = partial(self._until, calls, give_up_at)
            calls.put(write, len(data), count=data.count(b"\n"), share=_SHARE, until=until)
            return True
        written: Future[bool] = Future()
        calls.put(lambda: written.set_result(self._write(stream, file, data, title)), until=lambda: inf)
        return written.result()

    def _until(self, calls: Calls, give_up_at: Callable[[], float]) -> float:
        return min(calls.moved_at + _STALLED, give_up_at())

    def _write(self, stream: int, file: tuple[int, int], data: bytes, title: str) -> bool:
        return messages.write(stream, self._title(file, title) + data)

    def _title(self, file: tuple[int, int], title: str) -> bytes:
        if not self._has_titles or self._titles.get(file) == title:
            return b""
        self._titles[file] = title
        return f"==> {title} <==\n".encode(errors="replace")


def _file(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def output_of(
    printer: Printer, title: str, memory: SharedMemory, *, has_terminal: bool, is_command: bool = False
) -> "Output | None":
    """How to pass on and keep what a child will print. ``None`` if that child has the terminal, if the project does not
    want to keep anything and nothing else is printed beside it, or if it cannot be kept."""
    is_wanted = options().output or options().output_file or printer.has_lines
    if not is_wanted or are_closed() or (has_terminal and (os.isatty(STDOUT) or os.isatty(STDERR))):
        return None
    try:
        return Output(printer, title, memory, is_command=is_command)
    except (OSError, RuntimeError) as error:  # too many open files, or threads
        logger.warning("What %r prints is not kept: %s", title, error, extra=about(job=title, reason=error))
        return None


def are_closed() -> bool:
    """Whether a stream was closed when this process began. Its number may be a database connection's by now."""
    try:
        return not all(map(os.get_inheritable, (STDOUT, STDERR)))  # Python makes what it opens not inheritable
    except OSError:
        return True


class _File(Protocol):
    """Where else it is written."""

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class Output:
    """The streams of one child process.

    Attributes:
        is_over: whether all is passed on.
    """

    def __init__(self, printer: Printer, title: str, memory: SharedMemory, *, is_command: bool) -> None:
        """``is_command``: whether the child is a shell command, which ends if nobody reads what it prints."""
        self.is_over = False
        self._printer, self._title, self._memory, self._is_command = printer, title, memory, is_command
        self._most_bytes = options().output * _WIDEST
        self._file: _File | None = rooms.find("output_file")(title) if options().output_file else None
        self._kept = bytearray()
        # The beginning of a line whose end has not come yet, by stream.
        self._rests = {STDOUT: b"", STDERR: b""}
        self._waker = Waker()
        self._reads: dict[int, int] = {}
        self._writes: dict[int, int] = {}
        self._is_asked = self._is_ending = False
        self._give_up_at = inf
        # How many bytes may still be read from each stream once the child is over.
        self._left = dict.fromkeys(self._rests, MOST_LEFT)
        try:
            # One pipe if both are one file, as with 2>&1: so what comes first stays first.
            for stream in (STDOUT,) if _file(STDOUT) == _file(STDERR) else (STDOUT, STDERR):
                read, self._writes[stream] = os.pipe()
                self._reads[read] = stream
            memory.output_waker = self._waker
            memory.has_output = True
            self._thread = start_thread(self._run, "output of a job")
        except BaseException:
            memory.has_output = False
            for descriptor in self._reads:
                os.close(descriptor)
            self.let_go()
            self._waker.close()
            raise

    @property
    def descriptors(self) -> list[int]:
        """Where the child prints: standard output and standard error, or both in one, until ``let_go``."""
        return list(self._writes.values())

    @property
    def waker(self) -> int:
        """What wakes the thread, for another process."""
        return self._waker.writer

    def let_go(self) -> None:
        """Close the ends that are the child's, once it has them."""
        for write in self._writes.values():
            os.close(write)
        self._writes = {}

    def end(self, seconds: float) -> bool:
        """Pass on what is left, now that the child is over: what it has left behind may go on printing. Waits for at
        most ``seconds``. ``False`` if that takes longer."""
        self._give_up_at = min(self._give_up_at, local_now() + _STALLED)
        self._is_ending = True
        self._waker.wake()
        wait(self._thread.join, seconds)
        if self.is_over:
            self._waker.close()
        return self.is_over

    @property
    def text(self) -> str:
        """The last part of what it has printed, as it is stored."""
        return printable_end(self._kept.decode(errors="replace"), options().output)

    def tell(self, most: int | None) -> None:
        """Write to standard error what was held back: its last ``most`` characters, or all that is kept."""
        text = self.text.rstrip()[-most if most else 0 :]
        if self._printer.is_quiet and text:
            self._printer.write(STDERR, f"{text}\n".encode(), self._title, lambda: local_now() + _STALLED)

    # --- in the thread

    def _run(self) -> None:
        is_left = True
        while self._reads and is_left:
            is_left = self._go_on()
        for stream, rest in self._rests.items():
            if rest:
                self._printer.write(stream, rest + b"\n", self._title, lambda: self._give_up_at)
        self._memory.has_output = self._memory.is_behind = False
        for read in self._reads:
            os.close(read)
        if self._file:
            self._file.end()
        self.is_over = True

    def _go_on(self) -> bool:
        """Pass on what comes. ``False`` once the child is over and nothing is left."""
        is_ending = self._is_ending  # first: what the child has printed is there by then
        ready = wait_for([*self._reads, self._waker.descriptor], 0.0 if is_ending or self._is_asked else _DAY)
        if self._waker.descriptor in ready:
            self._waker.taken()
            self._is_asked = True
        come = ready & self._reads.keys()
        for read in come:
            self._take(read, is_last=is_ending)
        if come or not (is_ending or self._is_asked):
            return True
        self._is_asked = self._memory.is_behind = False
        return not is_ending

    def _take(self, read: int, *, is_last: bool) -> None:
        stream = self._reads[read]
        data = os.read(read, min(CHUNK, self._left[stream]))
        if is_last:
            self._left[stream] -= len(data)
        line_at = self._kept.rfind(b"\n") + 1
        kept = b"" if self._memory.is_logging else data
        self._kept[line_at:] = b"\n".join(map(_last_state, (self._kept[line_at:] + kept).split(b"\n")))
        if len(self._kept) > 2 * self._most_bytes:
            del self._kept[: len(self._kept) - self._most_bytes]
        if data:
            end = self._kept[-OUTPUT_LENGTH * _WIDEST :].decode(errors="replace")
            self._memory.output = end[-options().output :]  # empty, if nothing is to be kept
            if self._file:
                self._file.write(data)
        if not data or not (self._pass_on(stream, data) or not self._is_command):
            os.close(read)
            del self._reads[read]

    def _pass_on(self, stream: int, data: bytes) -> bool:
        """``False`` if nobody reads it."""
        memory = self._memory
        if self._printer.is_quiet and (not memory.is_logging or (memory.message and not memory.has_logged)):
            return True  # the record of a failure, too: what has held it back prints the failure
        if self._printer.has_lines:
            whole, end, rest = (self._rests[stream] + data).rpartition(b"\n")
            is_long = len(rest) > CHUNK
            data, self._rests[stream] = (whole + end + rest + b"\n", b"") if is_long else (whole + end, rest)
        return not data or self._printer.write(stream, data, self._title, lambda: self._give_up_at)


def _last_state(line: bytearray) -> bytearray:
    """What a terminal shows of the line in the end, without the earlier states of a progress bar."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]
