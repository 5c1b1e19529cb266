from __future__ import annotations

import signal
import subprocess
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, ProgrammingError

from django_singlejob import SkipRun
from django_singlejob.locking.endings import Ending, ending, summary

SECOND = timedelta(seconds=1)


def end(failure: BaseException | None) -> Ending:
    return ending(failure, duration=SECOND, acquire_duration=2 * SECOND)


@pytest.mark.parametrize(
    ("skip", "words"),
    [(SkipRun(), ""), (SkipRun("holiday"), "holiday"), (SkipRun("a\nb"), r"a\nb"), (SkipRun("x" * 2000), "x" * 1000)],
    ids=["silent", "short", "lines", "long"],
)
def test_a_run_that_skips_itself_leaves_its_reason_alone(skip: SkipRun, words: str) -> None:
    ended = end(skip)
    assert (ended.status, ended.is_failure, ended.error) == ("skipped", False, words)
    assert (ended.error_class, ended.traceback, ended.origin) == ("", "", "")


def test_the_error_is_one_line_and_the_traceback_is_lines() -> None:
    ended = end(ValueError("one\ntwo\0\ud800"))
    assert ended.error == r"ValueError: one\ntwo\x00\ud800"
    assert ended.traceback.splitlines()[-1] == r"two\x00\ud800"


def test_long_ones_are_cut_where_they_say_least() -> None:
    ended = end(ValueError("x" * 20_000 + "the end"))
    assert len(ended.error) == 1000
    assert len(ended.traceback) == 10_000
    assert ended.traceback.endswith("the end\n")


def test_an_exception_that_cannot_be_printed_ends_a_run_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert end(Unprintable()).error == "Unprintable: (the message cannot be printed)"
    assert "Unprintable" in end(Unprintable()).traceback


def test_nor_does_one_without_a_traceback_cost_it_its_end() -> None:
    class Endless(ValueError):
        @property
        def __notes__(self) -> list[str]:  # type: ignore[override]
            raise RecursionError

    # Newer Pythons print as much of it as they can.
    assert "RecursionError" in end(Endless()).traceback


def test_of_an_error_of_the_database_the_statement_is_left_out() -> None:
    drivers = Exception('relation "shop_sale" does not exist\nLINE 1: SELECT * FROM "shop_sale"\n         ^')
    drivers.diag = SimpleNamespace(message_primary='relation "shop_sale" does not exist')  # type: ignore[attr-defined]
    error = ProgrammingError(str(drivers))
    error.__cause__ = drivers
    assert summary(error) == 'ProgrammingError: relation "shop_sale" does not exist'


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["connection failed:\n\tIs the server running?"], "connection failed: Is the server running?"),
        ([1146, "Table 'shop.sale' doesn't exist"], "1146: Table 'shop.sale' doesn't exist"),
        ([], ""),
    ],
)
def test_what_a_driver_says_is_one_line(said: list[object], words: str) -> None:
    assert summary(OperationalError(*said)) == f"OperationalError: {words}"


SECRET = "hun" + "ter2"  # never in a line of this file, because tracebacks show the lines
COMMAND = ["backup", "--password", SECRET]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (subprocess.CalledProcessError(3, COMMAND), "Command '...' returned non-zero exit status 3."),
        (subprocess.CalledProcessError(-signal.SIGKILL, COMMAND), "Command '...' died with <Signals.SIGKILL: 9>."),
        (subprocess.TimeoutExpired(COMMAND, 5), "Command '...' timed out after 5 seconds"),
    ],
)
def test_of_a_failed_command_only_its_status_is_recorded(failure: Exception, words: str) -> None:
    ended = end(failure)
    assert ended.error == f"{type(failure).__name__}: {words}"
    assert ended.traceback.rstrip().endswith(words)
    assert SECRET not in ended.traceback
