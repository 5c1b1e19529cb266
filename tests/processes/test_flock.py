"""The shell wrapper beside `flock(1)`: the table in `docs/contributors/flock.md`, row by row."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest

from django_singlejob import LockHeld, job_lock
from django_singlejob.models import JobLock
from tests.children import ROOT
from tests.databases import APPS
from tests.processes import rests
from tests.processes.rests import pid
from tests.processes.witness import is_alive
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.skipif(not shutil.which("flock"), reason="there is no flock(1)"),
]

A_SECOND_THOUGHT = 1.2
# By then a wrapper that releases the lock too early has done so: this is longer than the short grace.
A_WHILE = 2.5

CLOSING = f'{sys.executable} -c \'import os; os.closerange(3, 256); os.execvp("sh", ["sh", os.environ["REST"]])\''


# --- the two wrappers


class Wrapper(Protocol):
    child: Child
    forwards_signals: bool

    def is_free(self) -> bool: ...

    def lose(self) -> None: ...


class RunSingleton:
    forwards_signals = True

    def __init__(self, spawn: Spawn, script: str, *options: str) -> None:
        self.child = spawn.command("run_singleton", "nightly", *options, "--", "sh", "-c", script)

    def is_free(self) -> bool:
        try:
            with job_lock("nightly"):
                return True
        except LockHeld:
            return False

    def lose(self) -> None:
        JobLock.objects.all().delete()


class Flock:
    forwards_signals = False

    def __init__(self, spawn: Spawn, script: str, *options: str) -> None:
        self._file = spawn.folder / "lock"
        own = [option for option in options if option == "-o"]
        words = ["flock", *own, str(self._file), "sh", "-c", script]
        self.child = spawn("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *words)

    def is_free(self) -> bool:
        return subprocess.run(["flock", "-n", self._file, "true"], check=False).returncode == 0

    def lose(self) -> None:
        self._file.unlink()


# --- what may happen to the lock, and to the rest: what the command has started and left behind


class Scene:
    def __init__(self, wrapper: Wrapper, go: Path) -> None:
        self.wrapper = wrapper
        self.child = wrapper.child
        self._go = go

    def is_rest_alive(self) -> bool:
        return is_alive(pid("rest", self.child))

    def end_the_rest(self) -> None:
        self._go.touch()


def no_rest(scene: Scene) -> None:
    scene.child.finish()
    assert scene.wrapper.is_free()


def held(scene: Scene) -> None:
    eventually(lambda: not is_alive(pid("command", scene.child)) or scene.child.poll() is not None)
    work_for(A_WHILE)
    assert not scene.wrapper.is_free()
    assert scene.is_rest_alive()
    scene.end_the_rest()
    eventually(scene.wrapper.is_free)
    assert "rest has ended" in scene.child.output


def released(scene: Scene) -> None:
    eventually(scene.wrapper.is_free)
    assert scene.is_rest_alive()
    scene.end_the_rest()


def killed(scene: Scene) -> None:
    eventually(scene.wrapper.is_free)
    assert not scene.is_rest_alive()
    assert "rest has ended" not in scene.child.output


def lost_and_killed(scene: Scene) -> None:
    scene.child.finish()
    assert not scene.is_rest_alive()
    assert "rest has ended" not in scene.child.output


WORDS: dict[Callable[[Scene], None], str] = {
    no_rest: "free",
    held: "held until the rest ends",
    released: "free, and the rest goes on",
    killed: "held until the rest is killed",
    lost_and_killed: "lost, and the rest is killed",
}


class Expected(NamedTuple):
    check: Callable[[Scene], None]
    status: int

    def __str__(self) -> str:
        return f"{WORDS[self.check]}; {self.status}"


# --- what the wrapper goes through


def nothing(scene: Scene) -> None:
    pass


def sigterm(scene: Scene) -> None:
    scene.child.terminate()


def sigterm_twice(scene: Scene) -> None:
    scene.child.terminate()
    if scene.wrapper.forwards_signals:
        scene.child.wait_for("rest was signalled")
    work_for(A_SECOND_THOUGHT)
    scene.child.terminate()


def sigkill(scene: Scene) -> None:
    scene.child.kill()


def loss(scene: Scene) -> None:
    scene.wrapper.lose()


class Situation(NamedTuple):
    title: str
    script: str
    act: Callable[[Scene], None]
    ours: Expected
    flocks: Expected
    options: tuple[str, ...] = ("--lease", "600")


SHORT_GRACE = ("--lease", "6")
SITUATIONS = [
    Situation("it ends, and leaves nothing behind", "exit 7", nothing, Expected(no_rest, 7), Expected(no_rest, 7)),
    Situation("it leaves a background process", "sh $REST & exit 7", nothing, Expected(held, 7), Expected(held, 7)),
    Situation("it forks twice", "(sh $REST &) & exit 7", nothing, Expected(held, 7), Expected(held, 7)),
    Situation(
        "it leaves a process in a session of its own",
        "setsid sh $REST & exit 7",
        nothing,
        Expected(held, 7),
        Expected(held, 7),
    ),
    Situation(
        "it leaves a process that closes all descriptors",
        f"{CLOSING} & until [ -e $GO.started ]; do sleep 0.05; done; exit 7",
        nothing,
        Expected(released, 7),
        Expected(released, 7),
    ),
    Situation(
        "it leaves a background process, with `-o`",
        "sh $REST & until [ -e $GO.started ]; do sleep 0.05; done; exit 7",
        nothing,
        Expected(released, 7),
        Expected(released, 7),
        ("-o",),
    ),
    Situation(
        "SIGTERM; the rest shuts down slowly", "sh $REST; exit 7", sigterm, Expected(held, 143), Expected(held, 143)
    ),
    Situation(
        "SIGTERM; the rest takes longer than the grace",
        "sh $REST; exit 7",
        sigterm,
        Expected(killed, 143),
        Expected(held, 143),
        SHORT_GRACE,
    ),
    Situation(
        "SIGTERM; the rest is in a session of its own",
        "setsid sh $REST & wait",
        sigterm,
        Expected(held, 143),
        Expected(held, 143),
        SHORT_GRACE,
    ),
    Situation(
        "a second SIGTERM, a second later",
        "sh $REST; exit 7",
        sigterm_twice,
        Expected(killed, 143),
        Expected(held, 143),
    ),
    Situation(
        "the lock is lost: its row, or its file, is deleted",
        "sh $REST; exit 7",
        loss,
        Expected(lost_and_killed, 75),
        Expected(released, 7),
        SHORT_GRACE,
    ),
    Situation(
        "`kill -9` of the wrapper",
        "sh $REST; exit 7",
        sigkill,
        Expected(killed, 137),
        Expected(held, 137),
        SHORT_GRACE,
    ),
]


@pytest.fixture
def child_env(child_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return child_env | rests.write_scripts(tmp_path)


@pytest.fixture(autouse=True)
def no_rest_outlives_its_test(spawn: Spawn) -> Iterator[None]:
    yield
    rests.end(spawn)


@pytest.mark.parametrize("wrapper_class", [RunSingleton, Flock])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.title)
def test_both_wrappers(spawn: Spawn, go: Path, situation: Situation, wrapper_class: Callable[..., Wrapper]) -> None:
    wrapper = wrapper_class(spawn, f"echo command is $$\n{situation.script}", *situation.options)
    scene = Scene(wrapper, go)
    expected = situation.ours if wrapper_class is RunSingleton else situation.flocks
    wrapper.child.wait_for("command is")
    if "REST" in situation.script:
        eventually((spawn.folder / "go.started").exists)
    situation.act(scene)
    expected.check(scene)
    go.touch()
    assert shown(wrapper.child.finish()) == expected.status
    assert wrapper.forwards_signals or "rest was signalled" not in wrapper.child.output


def shown(status: int) -> int:
    """The status as a shell shows it."""
    return 128 - status if status < 0 else status


def test_the_table_in_the_documentation_is_the_same() -> None:
    text = (ROOT / "docs" / "contributors" / "flock.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+; \d+) \| (.+; \d+) \|$", text, re.MULTILINE)
    assert rows == [(title, str(ours), str(flocks)) for title, _, _, ours, flocks, _ in SITUATIONS]
    assert len(rows) == 12
