"""Runs tests in a copy of the tree, and reads in pytest's report what became of each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.mutants.copies import Edit
    from tests.mutants.mutant import Simulation

# How long one test may take, and a whole run, in seconds.
PATIENCE = 60
LONGEST_RUN = 900
# What Python raises for code that does not fit together. It proves nothing about the protocol.
UNUSABLE = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "UnboundLocalError")


class Result(Enum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"
    HUNG = "hung"
    SKIPPED = "skipped"
    #: It could not even begin, or could not be cleaned up, or the code does not fit together.
    UNUSABLE = "unusable"


class CannotBeTried(Exception):
    """The tests did not run: the result says nothing about the copy."""


def results_in(folder: Path, tests: Sequence[str], database: str) -> dict[str, set[Result]]:
    """The results of these tests in this copy: those of each parameter. Raises `CannotBeTried` if a test is missing."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", f"--timeout={PATIENCE}", f"--junitxml={report}"]
    status, output = run(folder, ["-m", "pytest", *options, "--database", database, *tests])
    if status not in (0, 1):
        raise CannotBeTried(f"pytest ended with status {status}:\n{output[-3000:]}")
    root = ET.parse(report).getroot()
    found = {test: results_of(test, root) for test in tests}
    if missing := [test for test, results in found.items() if not results]:
        raise CannotBeTried(f"pytest did not run {', '.join(missing)}:\n{output[-3000:]}")
    return found


def results_of(test: str, report: ET.Element) -> set[Result]:
    """What the report says of this test, with any parameters unless it names one."""
    path, _, name = test.partition("::")
    wanted = f"{path.removesuffix('.py').replace('/', '.')}.{name.replace('::', '.')}"
    return {
        result_of(case)
        for case in report.iter("testcase")
        if wanted in (full := f"{case.get('classname')}.{case.get('name')}", re.sub(r"\[.*\]$", "", full))
    }


def result_of(case: ET.Element) -> Result:
    failure = case.find("failure")
    if failure is not None:
        message = failure.get("message") or ""
        if "from pytest-timeout" in message:
            return Result.HUNG
        return Result.UNUSABLE if message.startswith(UNUSABLE) else Result.FAILED
    if case.find("error") is not None:
        return Result.UNUSABLE
    return Result.PASSED if case.find("skipped") is None else Result.SKIPPED


def violation_in(folder: Path, simulation: Simulation) -> tuple[int, str] | None:
    """The first schedule that breaks a promise in this copy: its seed, and what is broken. `None` if there is none."""
    schedules = [simulation.scenario, simulation.profile, str(simulation.schedules), "1"]
    status, output = run(folder, ["-m", "tests.mutants.simulated", *schedules])
    if status != 0:
        raise CannotBeTried(f"The simulation ended with status {status}:\n{output[-3000:]}")
    violation = json.loads(output.splitlines()[-1])
    return (int(violation[0]), str(violation[1])) if violation else None


def check_soundness(folder: Path, edits: Iterable[Edit]) -> None:
    """Raise `CannotBeTried` if the broken modules are unusable."""
    modules = sorted({edit.module for edit in edits})
    status, output = run(folder, ["-m", "tests.mutants.soundness", *modules])
    if status != 0:
        raise CannotBeTried(output[-3000:])


def run(folder: Path, arguments: Sequence[str], seconds: float = LONGEST_RUN) -> tuple[int, str]:
    """Run Python with these arguments in the copy. Returns its status and its output."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException as error:
        output = end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise CannotBeTried(f"It did not end within {seconds:.0f} seconds:\n{output[-3000:]}") from None
        raise
    finally:
        kill_the_rest(folder)
    return process.returncode, output


def kill_the_rest(folder: Path) -> None:
    """Kill what uses the copy: a run that nothing ends, because the mutant has broken what ends it."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            if f"PYTHONPATH={folder}" in environ.read_bytes().decode(errors="replace").split("\0"):
                os.kill(int(environ.parent.name), signal.SIGKILL)


def environment(folder: Path) -> Mapping[str, str]:
    # A run inside a test must not take itself for a part of the outer one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return inherited | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(folder),
        # Each process of the tests would compile everything anew without bytecode.
        "PYTHONDONTWRITEBYTECODE": "",
    }


def end(process: subprocess.Popen[str]) -> str:
    """End a run that lasts too long. At the first signal, pytest ends what its tests started."""
    process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output
