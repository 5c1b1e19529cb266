"""What a message quotes of a value that is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_singlejob import SingleJobError, job_lock, singleton_job

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
    "many": lambda: job(lease=[timedelta(1)] * 5000),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=[name[:20] for name in REFUSED])
def test_a_long_value_is_cut(refused: Callable[[], object]) -> None:
    with pytest.raises((SingleJobError, CommandError)) as refusal:
        refused()
    assert len(str(refusal.value)) < 600
