"""`@retried`: what it accepts, and what it refuses with words that say what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

import pytest

from django_singlejob import SingleJobError, retried, singleton_job
from tests.app import django_tasks as tasks
from tests.app.tasks_api import task

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.usefixtures("fresh_process")]


def test_it_keeps_the_function_and_its_type() -> None:
    def double(number: int) -> int:
        return 2 * number

    same = retried(3)(double)
    assert same is double
    assert assert_type(same(2), int) == 4
    assert tasks.delivered.module_path == "tests.app.django_tasks.delivered"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retries": -1}, "retries is -1, but must be 0 or more"),
        ({"retries": 10**10}, "1000000000 at most"),
        ({"retries": True}, "must be a whole number"),
        ({"retries": 1.5}, "must be a whole number"),
        ({"retries": 1, "retry_delay": 60}, "retry_delay is 60, but must be a timedelta"),
        ({"retries": 1, "retry_delay": timedelta(-1)}, "must not be negative"),
        ({"retries": 1, "on": ()}, "must be a subclass of Exception, or a tuple"),
        ({"retries": 1, "on": [OSError]}, "must be a subclass of Exception, or a tuple"),
        ({"retries": 1, "on": (OSError, KeyboardInterrupt)}, "must be a subclass of Exception, or a tuple"),
        ({"retries": 1, "on": OSError()}, "must be a subclass of Exception, or a tuple"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SingleJobError, match=rf"^retried\(\): .*{message}"):
        retried(**arguments)


def plain() -> None: ...


def test_above_the_task_or_without_arguments_it_is_refused() -> None:
    with pytest.raises(SingleJobError, match="Write it below @task"):
        retried(3)(task(plain))  # type: ignore[type-var]
    with pytest.raises(SingleJobError, match=r"retries is <function plain.*must be a whole number"):
        retried(plain)  # type: ignore[arg-type]


def test_a_job_has_retries_of_its_own() -> None:
    with pytest.raises(SingleJobError, match=r"'plain' is a job.*write @singleton_job\(retries=3\)"):
        retried(3)(singleton_job(plain))
    with pytest.raises(
        SingleJobError, match=r"^Job 'nightly' has @retried. Remove it, and write @singleton_job\(retries=...\)"
    ):
        singleton_job("nightly")(retried(3)(lambda: None))
