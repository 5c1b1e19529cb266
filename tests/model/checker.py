"""Has spin generate a checker for a model, compiles it, runs it, and reads its report."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
PROTOCOL = "protocol.pml"
MEGABYTE = 1 << 20


def lacks() -> str:
    """What the check needs and this machine does not have; empty if it has all."""
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    return f"it needs {' and '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class Configuration:
    """What of the model is switched on, and what must come of it.

    Attributes:
        words: the macros, separated by spaces.
        expected: the property that must be violated; empty if all must hold.
        file: the model.
        is_live: whether to look for cycles that break a property of liveness, under weak fairness.
        is_sampled: whether to keep three bits of each state instead of the state, so that some states are missed.
        is_short: whether the tests check it too.
        seconds: the most processor time.
        megabytes: the most memory.
    """

    name: str
    words: str
    expected: str = ""
    file: str = PROTOCOL
    is_live: bool = False
    is_sampled: bool = False
    is_short: bool = False
    seconds: int = 120
    megabytes: int = 3000


@dataclass(frozen=True)
class Verdict:
    """What spin found.

    Attributes:
        violated: the property that is violated; empty if none is.
        is_complete: whether all states were visited (if they are sampled: all that were found).
        trail: the steps to the violation.
    """

    configuration: Configuration
    violated: str
    is_complete: bool
    states: int
    depth: int
    seconds: float
    megabytes: float
    trail: str

    @property
    def is_as_expected(self) -> bool:
        """Whether exactly the expected property is violated; if none is expected, whether all states were visited."""
        wanted = self.configuration.expected
        return self.violated == wanted and (bool(wanted) or self.is_complete or self.configuration.is_sampled)

    @property
    def line(self) -> str:
        """One line of a table."""
        kind = "sampled" if self.configuration.is_sampled else "complete" if self.is_complete else "cut short"
        found = f"violated: {self.violated}" if self.violated else kind
        return (
            f"{'ok ' if self.is_as_expected else 'BAD'} {self.configuration.name:<44} {self.states:>9,} states, "
            f"depth {self.depth:>7,}, {self.seconds:>6.1f} s, {self.megabytes:>5.0f} MB, {found}"
        )


def build(words: str, folder: Path, *flags: str, model: Path = HERE / PROTOCOL) -> Path:
    """The path of a checker for this form of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    macros = [f"-D{word}" for word in words.split()]
    generated = _run(["spin", "-a", *macros, str(model)], folder)
    if "rror" in generated.stdout + generated.stderr:
        raise RuntimeError(generated.stdout + generated.stderr)
    _run(["gcc", "-w", "-O1", "-DNOREDUCE", f"-I{HERE}", *flags, "-o", "pan", "pan.c"], folder)
    return folder / "pan"


def check(configuration: Configuration, folder: Path) -> Verdict:
    """Check this form of the model."""
    storage = "-DBITSTATE" if configuration.is_sampled else "-DCOLLAPSE"
    kind = ["-DNFAIR=3"] if configuration.is_live else ["-DSAFETY"]
    pan = build(
        configuration.words,
        folder,
        storage,
        *kind,
        f"-DMEMLIM={configuration.megabytes}",
        model=HERE / configuration.file,
    )
    options = ["-a", "-f"] if configuration.is_live else []
    options += ["-w30", "-k3"] if configuration.is_sampled else ["-w20"]
    report = limited([str(pan), "-m2000000", *options], folder, configuration.seconds)
    return _verdict(configuration, report, folder)


def limited(command: list[str], folder: Path, seconds: int, **environment: str) -> str:
    """The output of a command at a low priority, which ends after ``seconds`` of processor time."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=partial(_limit, seconds),
    )
    return done.stdout + done.stderr


def _limit(seconds: int) -> None:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def _verdict(configuration: Configuration, report: str, folder: Path) -> Verdict:
    violated = re.search(r"assertion violated \(?(\w+)", report)
    cycle = re.search(r"acceptance cycle", report)
    named = re.search(r"never claim\s+\+ \((\w+)\)", report)
    found = violated[1] if violated else named[1] if cycle and named else ""
    is_cut_short = not re.search(r"errors: \d", report) or "not completed" in report or "too small" in report
    return Verdict(
        configuration,
        violated=found,
        is_complete=not is_cut_short and not found,
        states=int(
            _number(r"([\d.e+]+) states, stored", report) or _number(r"States=\s*([\d.e+]+)(?!.*States=)", report)
        ),
        depth=int(_number(r"depth reached (\d+)", report) or _number(r"Depth=\s*(\d+)(?!.*Depth=)", report)),
        seconds=_number(r"elapsed time ([\d.e+]+)", report) or _number(r"t=\s*([\d.e+]+)(?!.*t=)", report),
        megabytes=_number(r"([\d.]+)\s+total actual memory", report)
        or _number(r"Memory=\s*([\d.]+)(?!.*Memory=)", report),
        trail=_trail(configuration, folder) if found else "",
    )


def _number(pattern: str, report: str) -> float:
    found = re.search(pattern, report, re.DOTALL)
    return float(found[1]) if found else 0.0


_STEP = re.compile(r"^\s*(\d+):\s*proc\s+\d+ \((\w+):\d+\).*?\[(.*)\]$", re.MULTILINE)


def _trail(configuration: Configuration, folder: Path) -> str:
    """The steps to the violation: each process, and the condition under which it went on."""
    macros = [f"-D{word}" for word in configuration.words.split()]
    command = ["spin", "-t", "-p", "-k", f"{configuration.file}.trail", *macros, str(HERE / configuration.file)]
    steps: dict[str, str] = {}
    for number, process, condition in _STEP.findall(_run(command, folder).stdout):
        steps.setdefault(number, f"{number:>5} {process}: {condition.replace('&&1', '')}")
    return "\n".join(steps.values())
