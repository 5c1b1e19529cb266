from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps

from django_singlejob.exceptions import JobInterrupted
from django_singlejob.process.received_signals import deferred_signals, let_in
from django_singlejob.tasks import modules
from django_singlejob.tasks.modules import exception_at, found_at, imported, is_allowed, takes_import

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_broken", set())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module that leaves a line in `ran` each time that it is executed, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code: str, name: str = "") -> str:
        name = name or f"module_of_{tmp_path.name}"
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"with open({str(tmp_path / 'ran')!r}, 'a') as file: file.write(__name__ + ' ')\n{code}\n")
        return name

    return write


@pytest.fixture
def in_an_app(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has this module count as one of an installed app."""

    def put(name: str) -> None:
        usual = apps.get_containing_app_config
        of_tests = apps.get_app_config("test_app")
        monkeypatch.setattr(apps, "get_containing_app_config", lambda path: of_tests if path == name else usual(path))

    return put


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


# --- which modules


@pytest.mark.parametrize(
    "path",
    [
        "tests.app.task",
        "tests.app.tasks.send",
        "tests.app.deep.down.send",
        "django_singlejob.exceptions.LeaseLost",
        "django.contrib.auth.models.User",
    ],
)
def test_a_task_is_in_an_app(path: str) -> None:
    assert is_allowed(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "send",
        ".",
        "tests.appendix.send",
        "tests.app_tasks.send",
        ".tests.app.tasks.send",
        "antigravity.send",
        "__main__.send",
        "tests.app.__main__.send",
        "tests.app.__main__.deep.send",
        "\0",
        "\ud800.send",
    ],
)
def test_and_nowhere_else(path: str) -> None:
    assert not is_allowed(path)


def test_a_module_that_the_project_has_imported_is_safe(module: Callable[[str], str], tmp_path: Path) -> None:
    name = module("send = 5")
    assert not is_allowed(f"{name}.send")
    __import__(name)
    assert is_allowed(f"{name}.send")
    assert found_at(f"{name}.send") == 5
    assert ran(tmp_path) == [name]
    assert not is_allowed("__main__.send")


# --- what an import does


BAD = [
    "1 / 0",
    "raise SystemExit(3)",
    "raise KeyboardInterrupt",
    "from django_singlejob.exceptions import *; raise JobInterrupted(15)",
    "def f(): f()\nf()",
]


@pytest.mark.parametrize("name", ["", ".", "..", "no_such_module", "tests.app.", "tests.app..jobs", "tests.app.\0"])
def test_what_does_not_exist_is_no_error(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert imported(name) is None
    assert caplog.records == []


def test_a_signal_waits_for_the_import_and_is_not_swallowed(module: Callable[[str], str], tmp_path: Path) -> None:
    name = module("import signal; signal.raise_signal(signal.SIGTERM); here = 5")
    with deferred_signals(), pytest.raises(JobInterrupted):
        let_in(lambda: imported(name))
    found = imported(name)
    assert found
    assert vars(found)["here"] == 5
    assert ran(tmp_path) == [name]


def test_nor_is_a_ctrl_c_in_a_program_of_your_own(module: Callable[[str], str]) -> None:
    name = module("import signal; signal.raise_signal(signal.SIGINT)")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            imported(name)


def test_only_the_first_look_up_takes_an_import(module: Callable[[str], str], in_an_app: Callable[[str], None]) -> None:
    name = module("1 / 0")
    assert not takes_import(f"{name}.send")
    in_an_app(name)
    assert takes_import(f"{name}.send")
    assert imported(name) is None
    assert not takes_import(f"{name}.send")
    assert not takes_import("tests.app.models.send")


# --- exceptions


def test_one_of_a_module_that_was_imported_is_found_wherever_that_is(module: Callable[[str], str]) -> None:
    name = module("class Broken(Exception): ...")
    __import__(name)
    assert exception_at(f"{name}.Broken").__name__ == "Broken"


def test_another_one_is_not_imported(
    module: Callable[[str], str], tmp_path: Path, in_an_app: Callable[[str], None]
) -> None:
    name = module("class Broken(Exception): ...")
    with pytest.raises(
        ImportError,
        match=rf"^No exception '{name}\.Broken' was found\. Is its module in an installed app, or imported\?$",
    ):
        exception_at(f"{name}.Broken")
    assert ran(tmp_path) == []
    in_an_app(name)
    assert exception_at(f"{name}.Broken").__name__ == "Broken"
    assert ran(tmp_path) == [name]


@pytest.mark.parametrize("code", BAD)
def test_one_of_a_broken_module_is_an_import_error(
    code: str, module: Callable[[str], str], in_an_app: Callable[[str], None], tmp_path: Path
) -> None:
    name = module(code)
    in_an_app(name)
    for _ in range(2):
        with deferred_signals(), pytest.raises(ImportError):
            exception_at(f"{name}.Broken")
    assert ran(tmp_path) == [name]


@pytest.mark.parametrize(
    "path", ["", "ValueError", ".", "builtins.", "tests.app.jobs.Gone", "tests.app.gone.Gone", "\0"]
)
def test_one_that_does_not_exist_is_an_import_error(path: str) -> None:
    with pytest.raises(ImportError):
        exception_at(path)


@pytest.mark.parametrize("path", ["builtins.print", "builtins.int", "os.sep", "django_singlejob.conf.quoted"])
def test_what_is_no_exception_is_refused_as_django_does(path: str) -> None:
    with pytest.raises(ValueError, match="does not reference a valid exception"):
        exception_at(path)


def test_no_module_is_asked_for_what_it_would_import(module: Any, tmp_path: Path) -> None:
    other = module("", f"other_of_{tmp_path.name}")
    name = module(f"def __getattr__(name):\n    import {other}\n    return ValueError")
    __import__(name)
    with pytest.raises(ImportError):
        exception_at(f"{name}.Lazy")
    assert ran(tmp_path) == [name]
