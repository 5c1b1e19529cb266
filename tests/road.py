"""The way of an ordinary run through the package: which of its functions are entered, in how many files, and how many
of its frames are on the stack at the first SQL statement.

`python -m tests.road` prints it, for `run_singleton JOB`, in the process of the command, and for a job that is called.
It uses the database of `DATABASE_URL`, or else one of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import django
from django.core.management import load_command_class
from django.db.backends.utils import CursorWrapper
from django.utils.module_loading import import_string

from tests.children import ROOT
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PACKAGE = f"{ROOT / 'django_singlejob'}{os.sep}"
#: A small project, and its job.
SETTINGS, JOB = "tests.benchmarks.shop.settings", "shop.work"
WAYS = {"command": ["run_singleton", JOB, "--now"], "in process": ["call"]}
#: The functions that only ask which database it is, and which settings there are.
_ASK = {"conf.py options", "database/transactions.py alias"}


@dataclass
class Road:
    """``calls``: how often each function was entered, in all threads. Functions without a name do not count, and a
    generator is entered each time that it goes on. ``stack``: our frames at the first SQL statement, outermost
    first."""

    calls: Counter[str] = field(default_factory=Counter)
    stack: list[str] = field(default_factory=list)

    @property
    def by_file(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for function in sorted(self.calls):
            found.setdefault(function.split()[0], []).append(function)
        return found

    @property
    def functions(self) -> int:
        return len(self.calls)

    @property
    def files(self) -> int:
        return len(self.by_file)

    @property
    def depth(self) -> int:
        return len(self.stack)

    def __str__(self) -> str:
        asking = sum(self.calls[function] for function in _ASK)
        return (
            f"{self.functions} functions in {self.files} files, {self.calls.total()} calls, {asking} of them for the "
            f"settings or the database; the first SQL is {self.depth} frames deep"
        )


def measured(way: str, folder: Path, env: dict[str, str]) -> Road:
    """Go this way in a new process, for the second time: the first run of a job makes its gate."""
    file = folder / "road.json"
    arguments = [sys.executable, "-m", __spec__.name, str(file), *WAYS[way]]
    env = {**env, "DJANGO_SETTINGS_MODULE": SETTINGS}
    for _ in range(2):
        subprocess.run(arguments, env=env, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    calls, stack = json.loads(file.read_text())
    return Road(Counter(calls), stack)


def travel(file: Path, arguments: list[str]) -> None:
    """What the new process does. What is imported, and registered by that, comes before."""
    django.setup()
    job = import_string(f"{SETTINGS.removesuffix('settings')}jobs.work_alone")
    command = load_command_class("django_singlejob", "run_singleton")
    road = Road()
    enter = partial(_enter, road)
    # The command forks, and then this process does not come to its usual end.
    os._exit = partial(_leave, os.getpid(), os._exit, road, file)  # type: ignore[assignment]
    threading.setprofile(enter)
    sys.setprofile(enter)
    if arguments == WAYS["in process"]:
        job()
    else:
        command.run_from_argv([sys.argv[0], *arguments])
    os._exit(0)


def _enter(road: Road, frame: FrameType, event: str, _: object) -> None:
    if event != "call":
        return
    if function := _ours(frame):
        road.calls[function] += 1
    elif frame.f_code is CursorWrapper.execute.__code__ and not road.stack:
        road.stack = [*filter(None, map(_ours, _outwards(frame)))][::-1]


def _ours(frame: FrameType) -> str:
    """Empty if the package does not define it, or if it has no name."""
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return ""
    return f"{code.co_filename.removeprefix(PACKAGE)} {code.co_qualname}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


def _leave(pid: int, leave: Callable[[int], object], road: Road, file: Path, status: int) -> None:
    if os.getpid() == pid:
        sys.setprofile(None)
        file.write_text(json.dumps([{**road.calls}, road.stack]))
    leave(status)


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        env = {"DATABASE_URL": f"sqlite:///{folder / 'road.sqlite3'}", "PYTHONPATH": str(ROOT), **os.environ}
        migrate = [sys.executable, "-m", "django", "migrate", "--verbosity=0"]
        subprocess.run(migrate, env={**env, "DJANGO_SETTINGS_MODULE": SETTINGS}, cwd=ROOT, check=True)
        roads = {way: measured(way, folder, env) for way in WAYS}
    for way, road in roads.items():
        print(f"{way}: {road}.")
        for file, functions in road.by_file.items():
            names = (f"{each.split()[1]}{f' x{n}' if (n := road.calls[each]) > 1 else ''}" for each in functions)
            print(f"  {file} {len(functions)}: {', '.join(names)}")
        print("  The first SQL:", *road.stack, sep="\n    ")


if __name__ == "__main__":
    if sys.argv[1:]:
        travel(Path(sys.argv[1]), sys.argv[2:])
    else:
        main()
