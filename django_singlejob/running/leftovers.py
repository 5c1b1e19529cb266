"""What a run leaves behind in its process, and the next run there would find, or what is only written when the process
ends."""

import atexit
import fcntl
import gc
import locale
import logging
import os
import resource
import signal
import socket
import stat
import sys
import threading
import weakref
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from django_singlejob.locking.at_exit import may_hold_a_lock
from django_singlejob.process.clock import local_now, sleep
from django_singlejob.process.logs import all_loggers
from django_singlejob.process.received_signals import other_threads

# How long what ends by itself, such as a thread of asgiref's, may take for that, and how often to look. Seconds.
_PATIENCE, _MOMENT = 0.05, 0.002
# By how much the memory of a process may grow. Bytes.
_MOST_GROWTH = 100 * 1024 * 1024
# Where a system has the descriptors of a process. In a container without ``/proc``, there is nothing.
_DESCRIPTORS = "/dev/fd"


_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
# Of these, some may be gone.
_GROWING = ("threads", "raw_threads")
# The finalizers of these only close connections.
_HARMLESS = ("urllib3.",)


class Surroundings(NamedTuple):
    """What a run may change in its process, apart from the modules that it imports and what they keep in memory."""

    directory: str
    umask: int
    environment: dict[str, str]
    path: list[str]
    handlers: list[Any]
    timers: list[tuple[float, float]]
    streams: list[Any]
    user: list[Any]
    locale: str
    socket_timeout: float | None
    logging: list[tuple[str, int, bool, list[Any]]]
    disabled_level: int
    signal_mask: set[int]
    limits: list[Any]
    threads: set[threading.Thread]
    raw_threads: set[int]

    @classmethod
    def now(cls) -> Self:
        os.umask(umask := os.umask(0o77))
        loggers = sorted(all_loggers().items())
        return cls(
            directory=_directory(),
            umask=umask,
            environment=dict(os.environ),
            path=list(sys.path),
            handlers=[signal.getsignal(signum) for signum in signal.valid_signals()],
            timers=[
                signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
            ],
            streams=[sys.stdin, sys.stdout, sys.stderr],
            user=[os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups(), os.getpgrp()],
            locale=locale.setlocale(locale.LC_ALL),
            socket_timeout=socket.getdefaulttimeout(),
            logging=[(name, each.level, each.disabled, _handlers_of(each)) for name, each in loggers],
            disabled_level=logging.root.manager.disable,
            signal_mask=set(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            limits=[os.nice(0), gc.isenabled(), sys.getrecursionlimit(), *map(resource.getrlimit, _LIMITS)],
            threads=other_threads(),
            # Those that Python's threading does not know.
            raw_threads=sys._current_frames().keys() - {thread.ident for thread in threading.enumerate()},
        )


class Leftovers:
    """Finds what runs leave behind in this process, compared with what is there before the first one."""

    def __init__(self, ours: AbstractSet[int]) -> None:
        """``ours``: descriptors that the process itself keeps open."""
        self._ours = ours
        self._before = Surroundings.now()
        # Some belong to no logger, such as those behind a queue. By their types: a lazy object would be made.
        self._handlers = [each for each in gc.get_objects() if issubclass(type(each), logging.Handler)]
        self._hooks = _ExitHooks()
        self._memory: int | None = None

    def found(self) -> list[str]:
        """What the last run has left behind, in words; empty if the next one may run in the same process."""
        end = local_now() + _PATIENCE
        while (left := self._look()) and local_now() < end:
            gc.collect()  # what nobody refers to any more
            sleep(_MOMENT)
        return left

    def _look(self) -> list[str]:
        before, now = self._before, Surroundings.now()
        # Loggers are made as modules are imported.
        known = {name for name, *_ in before.logging}
        now = now._replace(logging=[each for each in now.logging if each[0] in known or each[3]])
        changed = [name for name, old in before._asdict().items() if getattr(now, name) != old and name not in _GROWING]
        threads = sorted(f"the thread {thread.name!r}" for thread in now.threads - before.threads)
        things = {
            "a child process": _has_children(),
            "a thread": not now.raw_threads <= before.raw_threads,
            "a file that is open for writing": self._has_open_file(),
            "what cannot be seen here, because there is no /dev/fd": not os.path.isdir(_DESCRIPTORS),  # noqa: PTH112
            "a hook for the exit": self._hooks.are_more(),
            "a lock": may_hold_a_lock(),
            "much memory": self._has_grown(),
        }
        return [*changed, *threads, *(thing for thing, is_there in things.items() if is_there)]

    def _has_open_file(self) -> bool:
        """Whether a file is open for writing that somebody else may read: what is still buffered for it would overwrite
        newer work. The files of logging handlers are written to at once. ``False`` if the system does not say."""
        try:
            descriptors = {int(name) for name in os.listdir(_DESCRIPTORS)}  # noqa: PTH208  (they have no paths)
        except OSError:
            return False
        handlers = [*self._handlers, *(handler for logger in all_loggers().values() for handler in logger.handlers)]
        logs = {descriptor for handler in handlers if (descriptor := _of_log(handler))}
        written = {*filter(_is_written_to, descriptors - {0, 1, 2} - logs - self._ours)}
        return bool(written and written - _mapped(written))

    def _has_grown(self) -> bool:
        """Whether this process uses much more memory than after the first run. ``False`` if the system does not say."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return False
        used = pages * os.sysconf("SC_PAGE_SIZE")
        self._memory = used if self._memory is None else self._memory
        return used - self._memory > _MOST_GROWTH


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _handlers_of(logger: logging.Logger) -> list[tuple[logging.Handler, int]]:
    return [(handler, handler.level) for handler in logger.handlers if not isinstance(handler, logging.NullHandler)]


class _ExitHooks:
    """What is called when the process ends. Python does not say that in public; if it does not say it at all, each run
    leaves something behind, as far as is known."""

    def __init__(self) -> None:
        self._count, self._finalizers = self._now()

    def are_more(self) -> bool:
        """Whether there are some that were not there at first."""
        count, finalizers = self._now()
        return count < 0 or count > self._count or not finalizers <= self._finalizers

    def _now(self) -> tuple[int, set[Any]]:
        try:
            registered = list(weakref.finalize._registry)  # type: ignore[attr-defined]  # noqa: SLF001
            finalizers = {each for each in registered if each.atexit and not _is_harmless(each)}
            return int(atexit._ncallbacks()), finalizers  # noqa: SLF001
        except AttributeError:
            return -1, set()


def _is_harmless(finalizer: Any) -> bool:
    alive = finalizer.peek()
    return alive is None or str(getattr(alive[1], "__module__", "")).startswith(_HARMLESS)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _of_log(handler: logging.Handler) -> int | None:
    with suppress(Exception):  # it may have no stream, or one of the project's own
        return int(handler.stream.fileno())  # type: ignore[attr-defined]
    return None


def _mapped(descriptors: set[int]) -> set[int]:
    """Those whose files are written to through shared memory, where nothing is buffered, as the metrics of
    prometheus_client are. Empty if the system does not say."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
        mappings = [line.split(maxsplit=5) for line in lines]
        paths = {fields[5] for fields in mappings if len(fields) == 6 and fields[1].startswith("rw-s")}
        return {descriptor for descriptor in descriptors if _path_of(descriptor) in paths}
    return set()


def _path_of(descriptor: int) -> str | None:
    with suppress(OSError):  # it was the directory's own
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # noqa: PTH115  (it may be no path)
    return None


def _is_written_to(descriptor: int) -> bool:
    try:
        status, flags = os.fstat(descriptor), fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError:  # it was the directory's own
        return False
    # One without a name is for nobody else.
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 0 and flags & os.O_ACCMODE != os.O_RDONLY
