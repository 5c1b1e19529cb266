"""A terminal that has few characters, and rows that have many; and one at which a job tells how far it is."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
import termios
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob import job_lock
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from tests.contract.acts import HOUR, MINUTE, expire, start_run
from tests.databases import APPS
from tests.processes.conftest import WAYS, both_ways
from tests.processes.witness import ends, is_over
from tests.processes.workers import SETTINGS, enqueue
from tests.selection import sampled
from tests.terminal import Screen
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Spawn

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]

HOST = "héro-夜\u202e\x1b[31m"
ENCODINGS = sampled(["ascii", "latin-1", "utf-8"])
COMMANDS = [
    ["singleton_status"],
    ["singleton_status", "--format", "json"],
    ["run_singleton", "held", "--", "true"],
    ["clear_stale_locks", "--dry-run"],
    ["pause_singletons", "夜間"],
    ["singleton_worker", "--once"],
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_command_fails_because_a_terminal_lacks_a_character(spawn: Spawn, encoding: str) -> None:
    start_run("held", lease=HOUR)
    start_run("stale")
    expire("stale")
    locks().update(hostname=HOST, command=HOST)
    gates().create(name="夜間")
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    children = [spawn.command(*words, **env) for words in COMMANDS]
    for words, child in zip(COMMANDS, children, strict=True):
        assert child.finish() in (0, 2), (words, child.output)
        said = child.output_path.read_bytes().decode(encoding)
        assert "Error:" not in said.replace("CommandError:", ""), words
        assert said.replace("\n", "").isprintable(), words
        if "json" in words:
            assert HOST in {job["holder"]["hostname"] for job in json.loads(said)["jobs"] if job["holder"]}


# --- how far a run is


class Window:
    """A terminal, and a command that runs in it."""

    def __init__(self, spawn: Spawn, folder: Path, arguments: list[str], *, columns: int, kind: str) -> None:
        self.go = folder / "go"
        self.screen = Screen(columns)
        self._terminal, tty = os.openpty()
        fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.child = spawn("-c", IN_ITS_WINDOW, os.ttyname(tty), *arguments, TERM=kind, GO=str(self.go))
        self._tty = tty
        self.written = ""

    def read(self) -> list[str]:
        """The lines on the screen."""
        os.set_blocking(self._terminal, False)
        with suppress(BlockingIOError):
            while read := os.read(self._terminal, 65_536).decode():
                self.written += read
                self.screen.write(read)
        return self.screen.lines

    def wait_for(self, text: str) -> list[str]:
        eventually(lambda: any(text in line for line in self.read()))
        return self.screen.lines

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def finish(self) -> list[str]:
        assert self.child.wait(PATIENCE) == 0, self.child.output
        return self.read()

    def close(self) -> None:
        os.close(self._terminal)
        os.close(self._tty)


#: Runs a management command with this terminal as its own.
IN_ITS_WINDOW = """if True:
    import fcntl, os, sys, termios
    terminal = os.open(sys.argv[1], os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for stream in range(3):
        os.dup2(terminal, stream)
    os.execv(sys.executable, [sys.executable, "-m", "django", *sys.argv[2:]])
"""


@contextmanager
def window(spawn: Spawn, folder: Path, *arguments: str, columns: int = 80, kind: str = "xterm") -> Iterator[Window]:
    command = ["run_singleton", "prints_and_tells_its_progress", *arguments]
    opened = Window(spawn, folder, command, columns=columns, kind=kind)
    yield opened
    opened.close()


def has_told() -> bool:
    """Whether a heartbeat has recorded the progress: by then, a bar would have been drawn."""
    return any(lock.progress for lock in locks().all())


@pytest.mark.parametrize("lines", [1, 23, 100])
def test_a_bar_is_drawn_below_what_the_job_prints(spawn: Spawn, tmp_path: Path, lines: int) -> None:
    printed = [f"line {number}" for number in range(lines)]
    with window(spawn, tmp_path, "--args", f"[{lines}]") as terminal:
        *begin, bar = terminal.wait_for("24 %")
        assert bar == "120 of 500, importing [####----------------]  24 %"
        assert [*terminal.screen.above, *filter(None, begin)] == [*printed, "half"]
        terminal.go.touch()
        shown = [*terminal.finish(), ""]
        end = [f"another line {number}" for number in range(lines)]
        *found, ran = filter(None, [*terminal.screen.above, *shown])
        assert found == [*printed, "half a line", *end]
        assert ran.startswith("prints_and_tells_its_progress: ran in")
        assert terminal.screen.scrolls_all


@pytest.mark.parametrize(
    ("columns", "bar"),
    [(50, "[####----------------]  24 %"), (28, "120 of 500, importing 24 %"), (20, "24 %")],
)
def test_it_fits_the_window(spawn: Spawn, tmp_path: Path, columns: int, bar: str) -> None:
    with window(spawn, tmp_path, columns=columns) as terminal:
        assert terminal.wait_for(bar)[-1] == bar
        terminal.go.touch()
        terminal.child.wait(PATIENCE)


def test_if_the_command_is_interrupted_the_line_is_given_back(spawn: Spawn, tmp_path: Path) -> None:
    with window(spawn, tmp_path) as terminal:
        terminal.wait_for("[####-")
        terminal.press("\x03")
        assert terminal.child.wait(PATIENCE) == 130
        assert "[####-" not in "".join(terminal.read())
        assert terminal.screen.scrolls_all


@pytest.mark.parametrize(("arguments", "kind"), [(["-v", "0"], "xterm"), ([], "dumb"), ([], "")])
def test_none_is_drawn_if_it_is_not_wanted(spawn: Spawn, tmp_path: Path, arguments: list[str], kind: str) -> None:
    with window(spawn, tmp_path, *arguments, kind=kind) as terminal:
        eventually(has_told)
        terminal.go.touch()
        terminal.finish()
        assert "\x1b7" not in terminal.written


def test_nor_into_a_file(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn.command("run_singleton", "prints_and_tells_its_progress", TERM="xterm", GO=str(tmp_path / "go"))
    eventually(has_told)
    (tmp_path / "go").touch()
    assert child.finish() == 0
    assert "\x1b" not in child.output


# --- what a person does there

IN_A_SHELL = """if True:
    import fcntl, os, sys, termios
    terminal = os.open(sys.argv[1], os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for stream in range(3):
        os.dup2(terminal, stream)
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
"""


class Shell:
    """A terminal with a shell that can stop its commands, and have them go on."""

    def __init__(self, spawn: Spawn, way: str) -> None:
        self._terminal, self._tty = os.openpty()
        os.set_blocking(self._terminal, False)
        self.written = ""
        env = WAYS[way] | {"PS1": "ready> ", "TERM": "dumb", "HISTFILE": ""}
        self.child = spawn("-c", IN_A_SHELL, os.ttyname(self._tty), **env)
        self.wait_for("ready> ")

    def read(self) -> str:
        with suppress(BlockingIOError):
            while read := os.read(self._terminal, 65_536).decode():
                self.written += read
        return self.written

    def wait_for(self, text: str) -> None:
        """Wait for the text, and forget what was written up to there."""
        eventually(lambda: text in self.read())
        self.written = self.written.partition(text)[2]

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def close(self) -> None:
        os.close(self._terminal)
        os.close(self._tty)


@pytest.fixture
def way() -> str:
    return "fork"


@pytest.fixture
def shell(spawn: Spawn, way: str) -> Iterator[Shell]:
    opened = Shell(spawn, way)
    yield opened
    print("What the test has not read:", opened.read(), sep="\n")
    opened.close()


def run(shell: Shell, job: str) -> None:
    shell.press(f"{sys.executable} -m django run_singleton {job} --now -v 2; echo status=$?\n")


def test_a_job_asks_and_is_answered_and_ctrl_c_interrupts_it(shell: Shell) -> None:
    run(shell, "asks_a_question")
    shell.wait_for("name?")
    shell.press("Ada\n")
    shell.wait_for("Hello Ada")
    shell.press("\x03")
    shell.wait_for("status=130")
    shell.wait_for("ready> ")
    assert is_over("asks_a_question", "interrupted")


def stop(shell: Shell) -> None:
    shell.press("\x1a")
    shell.wait_for("Stopped")
    shell.wait_for("ready> ")


@both_ways
def test_a_job_that_was_stopped_goes_on_in_the_foreground(shell: Shell) -> None:
    run(shell, "asks_a_question")
    shell.wait_for("name?")
    stop(shell)
    shell.press("fg; echo status=$?\n")
    shell.wait_for("run_singleton asks_a_question")
    shell.press("Ada\n")
    shell.wait_for("Hello Ada")
    shell.press("\x03")
    shell.wait_for("status=130")
    assert is_over("asks_a_question", "interrupted")


def test_but_not_if_its_lease_has_ended_meanwhile(shell: Shell) -> None:
    run(shell, "stubborn --args '[\"sleeps\"]'")
    shell.wait_for("started")
    stop(shell)
    with job_lock("stubborn", wait=MINUTE):
        shell.press("fg; echo status=$?\n")
        shell.wait_for("status=75")
    assert ends("stubborn") == ["abandoned"]


@both_ways
def test_a_job_can_be_debugged(shell: Shell) -> None:
    run(shell, "stops_in_a_debugger")
    shell.wait_for("(Pdb) ")
    shell.press("p 6 * number\n")
    shell.wait_for("42")
    shell.wait_for("(Pdb) ")
    shell.press("c\n")
    shell.wait_for("status=0")
    assert is_over("stops_in_a_debugger", "successful")


def test_a_job_that_is_being_debugged_can_be_interrupted(shell: Shell) -> None:
    run(shell, "stops_in_a_debugger")
    shell.wait_for("(Pdb) ")
    shell.press("q\n")
    shell.wait_for("status=1\r")
    assert is_over("stops_in_a_debugger", "failed")


STOPPED = "was stopped by its terminal, which it reads or changes in the background, and keeps its lock until"


@both_ways
def test_a_job_that_asks_in_the_background_is_stopped_with_its_command_and_asks_again_in_the_foreground(
    shell: Shell,
) -> None:
    shell.press("set -b\n")  # The shell says at once what has become of its jobs, not with its next prompt.
    shell.press(f"{sys.executable} -m django run_singleton asks_a_question --now &\n")
    shell.wait_for("name?")
    shell.wait_for("Stopped")
    shell.press("fg; echo status=$?\n")
    shell.wait_for("run_singleton asks_a_question")
    shell.press("Ada\n")
    shell.wait_for("Hello Ada")
    shell.press("\x03")
    shell.wait_for("status=130")
    assert is_over("asks_a_question", "interrupted")


def run_command(shell: Shell, words: str, *, lease: int = 6) -> None:
    shell.press(f"{sys.executable} -m django run_singleton asks --lease {lease} --now -- {words}\n")


ASKS = "sh -c 'trap \"echo cleans up; exit 1\" INT TERM; read answer < /dev/tty; echo answered: $?'"


def test_a_command_that_asks_although_its_input_is_a_file_is_said_to_be_stopped_and_ends_by_a_signal(
    shell: Shell,
) -> None:
    run_command(shell, f"{ASKS} < /etc/passwd; echo status=$?")
    shell.wait_for(f"'asks' {STOPPED}")
    told = locks().get().heartbeats
    eventually(lambda: locks().get().heartbeats > told + 2)
    assert STOPPED not in shell.read()
    shell.press("\x03")
    shell.wait_for("cleans up")
    shell.wait_for("status=1\r")
    assert is_over("asks", "interrupted")


def test_so_does_one_that_a_user_stops(shell: Shell) -> None:
    # The grace is a sixth of the lease.
    run_command(shell, f"{ASKS} < /etc/passwd; echo status=$?", lease=24)
    shell.wait_for(f"'asks' {STOPPED}")
    assert locks().update(stopped_by="ada") == 1
    shell.wait_for("cleans up")
    shell.wait_for("status=1\r")
    assert is_over("asks", "interrupted")


def test_with_dev_null_it_has_no_terminal_either(shell: Shell) -> None:
    run_command(shell, f"{ASKS} < /dev/null")
    shell.wait_for("answered: 2")
    shell.wait_for("ready> ")
    assert is_over("asks", "successful")


def test_nor_has_what_a_worker_runs(shell: Shell) -> None:
    for name in "asks_its_terminal", "tasks.asks_its_terminal":
        enqueue(name)
    shell.press(
        f"DJANGO_SETTINGS_MODULE={SETTINGS['DJANGO_SETTINGS_MODULE']} "
        f"{sys.executable} -m django singleton_worker --drain -v 0; echo status=$?\n"
    )
    shell.wait_for("status=0")
    assert [row.result for row in OneOffJob.objects.all()] == ["no terminal, no input"] * 2


# --- its other keys


def test_ctrl_backslash_interrupts_too_and_leaves_no_lock(shell: Shell) -> None:
    run(shell, "asks_a_question")
    shell.wait_for("name?")
    shell.press("Ada\n")
    shell.wait_for("Hello Ada")  # just before input() reads, Python would leave the signal for later
    shell.press("\x1c")
    shell.wait_for("status=131")
    assert is_over("asks_a_question", "interrupted")


def test_a_command_gets_ctrl_backslash_once(shell: Shell) -> None:
    run_command(
        shell,
        """sh -c 'trap "echo caught; sleep 2; exit 1" QUIT; echo begun; while :; do sleep 0.1; done'; echo status=$?""",
    )
    shell.wait_for("begun\r")
    shell.press("\x1c")
    shell.wait_for("caught")
    shell.wait_for("status=1\r")
    assert "caught" not in shell.read()
    assert is_over("asks", "interrupted")
