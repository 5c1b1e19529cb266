"""What type checkers must say about jobs. Nothing imports it: test_types.py has it checked.

Each `type: ignore` is a line that must not pass, because one without an error is an error itself.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar, assert_type

from asgiref.sync import async_to_sync

from django_singlejob import SKIPPED, Outcome, Skipped, command_job, shell_job, singleton_job
from django_singlejob.models import OneOffJob

T = TypeVar("T")


@singleton_job
def report() -> str:
    return ""


@singleton_job("report.daily", retries=3)
def daily(amount: int, *, title: str = "") -> str | None:
    return title * amount or None


@singleton_job
async def later(amount: int) -> str:
    return str(amount)


@singleton_job(retries=3)
async def much_later(amount: dict[str, Any]) -> None: ...


@singleton_job
def first(rows: Sequence[T]) -> T:
    return rows[0]


@singleton_job(retries=3)
def last(rows: Sequence[T]) -> T:
    return rows[-1]


@singleton_job
async def first_later(rows: Sequence[T]) -> T:
    return rows[0]


@singleton_job(retries=3)
async def last_later(rows: Sequence[T]) -> T:
    return rows[-1]


@singleton_job
def unknown(amount: int) -> Any:
    return amount


@singleton_job
async def unknown_later(amount: int) -> Any:
    return amount


@singleton_job
def without_types(amount, title=""):
    return amount, title


@singleton_job
async def without_types_later(amount, title=""):
    return amount, title


@singleton_job
def forever() -> NoReturn:
    raise SystemExit


clear_sessions = command_job("clearsessions")
backup = shell_job("backup", ["true"])


def a_job_that_returns_text_may_be_skipped() -> str:
    assert_type(report(), str | Skipped)
    report().upper()  # type: ignore[union-attr]
    if (value := report()) is SKIPPED:
        assert_type(value, Literal[Skipped.SKIPPED])
    else:
        assert_type(value, str)
    if value := report():
        assert_type(value, str)
    if not (number := first([1])):
        assert_type(number, Literal[0, Skipped.SKIPPED])
    return report()  # type: ignore[return-value]


def the_value_is_that_of_the_function() -> None:
    assert_type(daily(1, title="sales"), str | None | Skipped)
    assert_type(first([1]), int | Skipped)
    assert_type(last([1]), int | Skipped)
    assert_type(unknown(1), Any | Skipped)
    assert_type(forever(), Skipped)
    assert_type(clear_sessions(), Any | Skipped)
    assert_type(backup(), None | Skipped)
    assert_type(report.__wrapped__(), str)


async def so_is_that_of_a_coroutine() -> None:
    coroutine = assert_type(later(1), Coroutine[Any, Any, str | Skipped])
    assert_type(await coroutine, str | Skipped)
    assert_type(await much_later({}), None | Skipped)
    assert_type(await first_later([1]), int | Skipped)
    assert_type(await last_later([1]), int | Skipped)
    assert_type(await unknown_later(1), Any | Skipped)
    (await later(1)).upper()  # type: ignore[union-attr]
    (await without_types_later(1)).items()  # type: ignore[union-attr]


def others_see_it_too() -> None:
    assert_type(partial(report)(), str | Skipped)
    assert_type([*map(first, [[1]])], list[int | Skipped])
    assert_type(async_to_sync(later)(1), str | Skipped)
    with ThreadPoolExecutor() as threads:
        assert_type(threads.submit(report), Future[str | Skipped])


def the_arguments_are_those_of_the_function() -> None:
    report(1)  # type: ignore[call-arg]
    daily("1")  # type: ignore[arg-type]
    daily.run()  # type: ignore[call-arg]
    daily.enqueue(1, name="sales")  # type: ignore[call-arg]
    later("1")  # type: ignore[call-overload]
    first(1)  # type: ignore[arg-type]
    last.enqueue(1)  # type: ignore[arg-type]
    unknown("1")  # type: ignore[call-overload]
    without_types()  # type: ignore[call-overload]
    without_types.run(1, 2, 3)  # type: ignore[call-arg]
    clear_sessions(1)  # type: ignore[call-overload]
    backup.enqueue(1)  # type: ignore[call-arg]


async def what_else_a_job_returns() -> None:
    assert_type(daily.run(1), Outcome)
    assert_type(daily.enqueue(1), OneOffJob)
    assert_type(await later.aenqueue(1), OneOffJob)
