"""The history records of a failed command what ``RECORD_COMMAND`` says, and so does every line that we print or log."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_singlejob import singleton_job
from django_singlejob.results import Ending, ending, summary
from tests.contract.acts import last_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

pytest_plugins = "tests.fixtures"

SECRET = "hun" + "ter2"  # never in a line of this file, because tracebacks show the lines
ARGUMENTS = [sys.executable, "-c", "raise SystemExit(3)", "--password", SECRET, "shop"]
SCRIPT = f"exit 3 # --password {SECRET} shop"


def fail(arguments: object = ARGUMENTS, **terms: object) -> None:
    subprocess.run(arguments, check=True, **terms)  # type: ignore[call-overload]


def fail_in_a_shell() -> None:
    fail(SCRIPT, shell=True)


def fail_in_a_shell_of_several_lines() -> None:
    fail(f"true\ntrue {SECRET}\nexit 3", shell=True)


def time_out_with_a_secret() -> None:
    raise subprocess.TimeoutExpired(ARGUMENTS, 5)


def fail_in_words() -> None:
    try:
        fail()
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"It failed: {error}") from error


def fail_in_a_repr() -> None:
    try:
        fail()
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"It failed: {error!r}, {' '.join(error.cmd)}")  # noqa: B904


def fail_before_something_else() -> None:
    try:
        fail()
    except subprocess.CalledProcessError:
        raise ValueError("the backup")  # noqa: B904


def fail_in_a_group() -> None:
    errors: list[Exception] = []
    for act in fail, fail_in_a_shell_of_several_lines, time_out_with_a_secret:
        try:
            act()
        except subprocess.SubprocessError as error:
            errors.append(error)
    raise ExceptionGroup("several", errors)


def fail_with_bytes_and_paths() -> None:
    raise subprocess.CalledProcessError(3, [Path("/usr/bin/backup"), SECRET.encode()])


def fail_to_find_it() -> None:
    subprocess.run(f"no-such-program --password {SECRET}", check=True)


def fail_by_itself() -> None:
    error = subprocess.CalledProcessError(3, ARGUMENTS)
    error.__cause__ = error
    raise error


def be_killed() -> None:
    raise subprocess.CalledProcessError(-9, ARGUMENTS)


ACTS = [
    *(fail, fail_in_a_shell, fail_in_a_shell_of_several_lines, time_out_with_a_secret, fail_in_words, fail_in_a_repr),
    *(fail_before_something_else, fail_in_a_group, fail_with_bytes_and_paths, fail_to_find_it, fail_by_itself),
    be_killed,
]


def end(act: Callable[[], object]) -> Ending:
    with pytest.raises((Exception, ExceptionGroup)) as failure:
        act()
    second = timedelta(seconds=1)
    return ending(failure.value, duration=second, acquire_duration=second)


@pytest.mark.parametrize("choice", ["none", "name"])
@pytest.mark.parametrize("act", ACTS)
def test_its_arguments_are_not_in_the_history(settings: Settings, act: Callable[[], object], choice: str) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": choice}
    ended = end(act)
    assert SECRET not in ended.error
    assert SECRET not in ended.traceback
    assert act.__name__ in ended.traceback


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ("none", "Command '...' returned non-zero exit status 3."),
        ("name", f"Command '{Path(sys.executable).name}' returned non-zero exit status 3."),
        (
            "full",
            f"Command '{sys.executable} -c raise SystemExit(3) --password *** shop' returned non-zero exit status 3.",
        ),
        (len, "Command '(RECORD_COMMAND failed: TypeError)' returned non-zero exit status 3."),
        (lambda arguments: arguments[3], "Command '--password' returned non-zero exit status 3."),
    ],
)
def test_it_says_of_it_what_the_setting_says(settings: Settings, choice: object, shown: str) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": choice}
    assert end(fail).error == f"CalledProcessError: {shown}"
    assert end(fail).traceback.splitlines()[-1] == f"subprocess.CalledProcessError: {shown}"
    assert end(fail_in_words).error == f"RuntimeError: It failed: {shown}"


def test_the_script_of_a_shell_is_one_argument(settings: Settings) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": lambda arguments: str(arguments == ["/bin/sh", "-c", SCRIPT])}
    assert end(fail_in_a_shell).error == "CalledProcessError: Command 'True' returned non-zero exit status 3."
    settings.SINGLEJOB = {"RECORD_COMMAND": "name"}
    assert end(fail_in_a_shell).error == "CalledProcessError: Command 'sh' returned non-zero exit status 3."


def test_how_it_ended_is_still_said() -> None:
    name = Path(sys.executable).name
    assert end(be_killed).error == f"CalledProcessError: Command '{name}' died with <Signals.SIGKILL: 9>."
    assert end(time_out_with_a_secret).error == f"TimeoutExpired: Command '{name}' timed out after 5 seconds"
    assert "No such file or directory: 'sh'" in end(fail_to_find_it).error


def test_another_error_is_as_it_was() -> None:
    assert (
        summary(FileNotFoundError(2, "No such file", "/srv/a b"))
        == "FileNotFoundError: [Errno 2] No such file: '/srv/a b'"
    )
    assert summary(None) == "NoneType: None"


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_the_rows_and_the_logs_lines_follow(caplog: pytest.LogCaptureFixture) -> None:
    job = singleton_job("nightly")(fail)
    with suppress(subprocess.CalledProcessError):
        job()
    run = last_run()
    assert SECRET not in run.error + run.traceback
    assert SECRET not in caplog.text
    assert run.error.startswith("CalledProcessError: Command 'python")
