"""What a message says of a value that is refused, whatever the value is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_singlejob import Job, SingleJobError, command_job, job_lock, singleton_job

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]

LONG: Any = "x" * 5000


def job(**given: Any) -> Any:
    return singleton_job(**{"name": "nightly"} | given)(len)


def lock(**given: Any) -> None:
    with job_lock(**{"name": "nightly"} | given):
        pytest.fail("it was granted")


def with_setting(value: object) -> None:
    with override_settings(SINGLEJOB={"LEASE": value}):
        call_command("prune_singletons")


REFUSED: dict[str, Callable[[], object]] = {
    **{
        name: lambda name=name: job(**{name: LONG})  # type: ignore[misc]
        for name in ("name", "lock", "schedule", "catch_up", "on_held", "lease", "retries", "heartbeat", LONG)
    },
    "time_zone": lambda: job(schedule="@daily", time_zone=LONG),
    "a field": lambda: job(schedule=f"* * * * {LONG}"),
    "a nickname": lambda: job(schedule=f"@{LONG}"),
    "a schedule first": lambda: job(name=f"* * * * {LONG}"),
    "a count": lambda: job(retries=10**4000),
    "a lock": lambda: lock(name=LONG),
    "a lock's wait": lambda: lock(wait=LONG),
    **{name: lambda name=name: job().using(**{name: LONG}) for name in ("queue_name", "priority", "run_after")},  # type: ignore[misc]
    "a queue with NUL": lambda: job().using(queue_name="\0" * 200),
    "a setting": lambda: with_setting(LONG),
    **{
        command: lambda command=command: call_command(*command.split(), LONG)  # type: ignore[misc]
        for command in (
            "clear_stale_locks --force",
            "singleton_status --failures",
            "run_singleton",
            "run_singleton --wait",
            "run_singleton nightly --args",
            "run_singleton nightly -E",
            "retry_one_offs --failed-since",
            "retry_one_offs --queue a,b --queue",
            "cancel_one_offs",
            "singleton_worker --grace",
        )
    },
    "an argument": lambda: job().enqueue(**{LONG: 1}),
    "a command": lambda: command_job(LONG),
    "a command's argument": lambda: command_job("check", f"--{LONG}"),
    "many": lambda: job(lease=[timedelta(1)] * 5000),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=[name[:20] for name in REFUSED])
def test_a_long_value_is_cut(refused: Callable[[], object]) -> None:
    with pytest.raises((SingleJobError, CommandError)) as refusal:
        refused()
    assert len(str(refusal.value)) < 600


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


WRONG: dict[str, Any] = {
    "None": None,
    "a number": 5.5,
    "a long integer": 10**5000,
    "what cannot be printed": Unprintable(),
    "a list": [[]],
    "a dict": {1: 2},
    "NUL": "a\0",
    "half a character": "\ud800",
}
#: Each call, and those of the values that are right for it.
CALLS: dict[str, tuple[Callable[[Any], object], tuple[str, ...]]] = {
    **{
        name: (lambda value, name=name: job(**{name: value}), ("None",))  # type: ignore[misc]
        for name in Job.__dataclass_fields__
        if name not in ("name", "func")
    },
    "a name": (lambda value: singleton_job(value)(len), ("None",)),
    "what is decorated": (singleton_job(), ()),
    "a command": (command_job, ()),
    "an argument of a command": (lambda value: command_job("check", value), ("NUL", "half a character")),
    "a lock": (lambda value: lock(name=value), ()),
    "a lock's heartbeat": (lambda value: lock(heartbeat=value), ()),
    **{name: (lambda value, name=name: job().using(**{name: value}), ()) for name in ("priority", "queue_name")},  # type: ignore[misc]
    "run_after": (lambda value: job().using(run_after=value), ("None",)),
    "an argument of a one-off": (lambda value: job().enqueue(value), ("None", "a number", "a list", "a dict")),
    "calls": (lambda value: job().enqueue_many(value), ()),
    "a call": (lambda value: job().enqueue_many([value]), ()),
    "its arguments": (lambda value: job().enqueue_many([(value, {})]), ("a list",)),
    "its keyword arguments": (lambda value: job().enqueue_many([((), value)]), ()),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_any_wrong_value_is_refused_in_words(call: str, wrong: str) -> None:
    take, right = CALLS[call]
    if wrong in right:
        pytest.skip("It is right here.")
    with pytest.raises(SingleJobError) as refusal:
        take(WRONG[wrong])
    assert len(str(refusal.value)) < 600
