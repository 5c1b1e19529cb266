from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from datetime import timedelta
from functools import partial
from textwrap import dedent
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from asgiref.sync import async_to_sync

from django_singlejob import (
    SKIPPED,
    CurrentRun,
    InvalidName,
    SingleJobError,
    current_run,
    job_lock,
    singleton_job,
)
from django_singlejob.jobs import registry
from tests.children import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")

MINUTE = timedelta(minutes=1)


def test_bare_it_takes_the_functions_name() -> None:
    @singleton_job
    def nightly() -> None: ...

    assert (nightly.name, nightly.lock) == ("nightly", "nightly")
    assert registry.get("nightly") is nightly


def test_with_empty_brackets_too() -> None:
    @singleton_job()
    def nightly() -> None: ...

    assert nightly.name == "nightly"


def test_with_another_name() -> None:
    @singleton_job("report.hourly")
    def hourly() -> None: ...

    assert (hourly.name, hourly.lock) == ("report.hourly", "report.hourly")


def test_with_settings_and_what_they_are_without() -> None:
    settings: dict[str, Any] = {
        "min_interval": MINUTE,
        "lock": "reports",
        "lease": 2 * MINUTE,
        "heartbeat": False,
        "max_runtime": MINUTE,
        "on_held": "raise",
        "wait": timedelta(),
        "max_attempts": 1,
    }
    given = singleton_job("given", **settings)(print)
    assert {name: getattr(given, name) for name in settings} == settings
    usual = singleton_job("usual")(lambda: None)
    assert {name: getattr(usual, name) for name in settings} == {
        "min_interval": None,
        "lock": "usual",
        "lease": None,
        "heartbeat": True,
        "max_runtime": None,
        "on_held": "skip",
        "wait": None,
        "max_attempts": 3,
    }


def test_it_looks_like_the_function() -> None:
    def nightly(amount: int) -> str:
        """Counts the day's sales.

        And more.
        """
        return str(amount)

    job = singleton_job(nightly)
    assert job.__wrapped__ is job.func is nightly
    assert (job.__name__, job.__doc__, job.__module__) == (nightly.__name__, nightly.__doc__, __name__)  # type: ignore[attr-defined]
    assert inspect.signature(job) == inspect.signature(nightly)
    assert job.description == "Counts the day's sales."
    assert job.__wrapped__(5) == "5"


def test_it_cannot_be_changed_and_prints_no_address() -> None:
    job = singleton_job("nightly")(print)
    with pytest.raises(AttributeError):
        job.lease = MINUTE  # type: ignore[misc]
    assert repr(job).startswith("SingletonJob(name='nightly'")
    assert " at 0x" not in repr(job)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"name": "Nightly"}, InvalidName, "'Nightly' is not a valid name"),
        ({"lock": "a b"}, InvalidName, "'a b' is not a valid name"),
        ({"lease": 60}, SingleJobError, "Job 'nightly': lease is 60, but must be a timedelta."),
        ({"lease": timedelta()}, SingleJobError, "lease is .*, but must be 0.5 seconds or longer"),
        ({"max_runtime": timedelta()}, SingleJobError, "max_runtime is .*, but must be longer"),
        ({"wait": -MINUTE}, SingleJobError, "wait is .*, but must not be negative"),
        ({"min_interval": "1h"}, SingleJobError, "min_interval is '1h', but must be a timedelta"),
        ({"on_held": "wait"}, SingleJobError, "on_held is 'wait', but must be 'skip' or 'raise'"),
        ({"max_attempts": 0}, SingleJobError, "max_attempts is 0, but must be 1 or more"),
        ({"max_attempts": 10**20}, SingleJobError, "max_attempts is 10{20}, but must be 1 or more, and 10{9} at most"),
        (
            {"schedule": "@daily", "catch_up": "none", "misfire_grace": timedelta()},
            SingleJobError,
            "no slot runs that is later than misfire_grace, which is .*make it a second or more",
        ),
        ({"lesae": MINUTE}, SingleJobError, "has no option 'lesae'. Did you mean 'lease'"),
        ({"colour": MINUTE}, SingleJobError, "has no option 'colour'. Its options are: name, schedule, "),
        ({"cron": "@daily"}, SingleJobError, "has no option 'cron'. Use schedule, such as"),
        ({"queue": "mail"}, SingleJobError, "has no option 'queue'. Call the job's using\\(queue_name=...\\).enqueue"),
        ({"retries": "3"}, SingleJobError, r"retries is '3' \(a str\), but must be a whole number\."),
        ({"max_attempts": 1.5}, SingleJobError, r"max_attempts is 1\.5 \(a float\), but must be a whole number\."),
        ({"heartbeat": "no"}, SingleJobError, r"heartbeat is 'no' \(a str\), but must be True or False\."),
    ],
    ids=str,
)
def test_what_can_never_work_is_refused_at_registration(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        singleton_job(**{"name": "nightly"} | settings)(print)
    assert not list(registry.all_jobs())


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (5, {}, InvalidName, "5 is not a valid name"),
        ("nightly", {"lease": 60}, SingleJobError, "Lock 'nightly': lease is 60, but must be a timedelta."),
        (
            "nightly",
            {"heartbeat": "no"},
            SingleJobError,
            r"Lock 'nightly': heartbeat is 'no' \(a str\), but must be",
        ),
    ],
    ids=str,
)
def test_a_lock_that_can_never_work_is_refused(
    name: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), job_lock(name, **options):
        pytest.fail("it ran")


@pytest.mark.parametrize("thing", [5, "nightly", None])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(SingleJobError, match=f"{thing!r} is not a function"):
        singleton_job("nightly")(thing)


def test_a_functions_own_attributes_do_not_change_the_job() -> None:
    def function() -> None: ...

    function.name = function.lock = "Something Else"  # type: ignore[attr-defined]
    job = singleton_job("nightly")(function)
    assert (job.name, job.lock) == ("nightly", "nightly")


def test_what_has_no_name_of_its_own_needs_one() -> None:
    call = functools.partial(int, "5")
    with pytest.raises(SingleJobError, match=r"has no __name__\. Name the job: @singleton_job\('a_name'\)"):
        singleton_job(call)
    assert singleton_job("nightly")(call).path.startswith("functools.")


def test_a_generator_is_refused() -> None:
    with pytest.raises(SingleJobError):

        @singleton_job
        def nightly() -> Any:
            yield


METHOD = r"'test_.*Service\.work' is a method, .* Write a function at module level that calls the method"


def test_a_method_is_refused_when_its_class_is_defined() -> None:
    with pytest.raises(SingleJobError, match=METHOD):

        class Service:
            @singleton_job
            def work(self, amount: int) -> None: ...

    assert not list(registry.all_jobs())


def test_so_is_an_async_one_and_a_lambda() -> None:
    with pytest.raises(SingleJobError, match=METHOD):

        class Service:
            @singleton_job("work", wait=MINUTE)
            async def work(self) -> None: ...

    with pytest.raises(SingleJobError, match="is a method"):

        class Other:
            work = singleton_job("work")(lambda self: None)


def test_so_is_one_under_another_decorator() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    with pytest.raises(SingleJobError, match=METHOD):

        class Service:
            @singleton_job
            @logged
            def work(self) -> None: ...


def test_so_is_one_that_a_decorator_has_made_an_object() -> None:
    with pytest.raises(SingleJobError, match=METHOD):

        class Service:
            @singleton_job
            @functools.cache  # noqa: B019
            def work(self, amount: int) -> None: ...


@pytest.mark.django_db
def test_a_method_of_an_object_and_a_cached_function_are_functions() -> None:
    class Service:
        def work(self, amount: int) -> int:
            return amount

    @singleton_job("cached")
    @functools.cache
    def cached(amount: int) -> int:
        return amount

    class Other:
        bound = singleton_job("bound")(Service().work)
        job = cached

    assert (Other().bound(1), Other.bound(2), Other().job(3)) == (1, 2, 3)


def test_a_class_method_is_refused_in_either_order() -> None:
    with pytest.raises(SingleJobError, match=METHOD):

        class Service:
            @classmethod
            @singleton_job
            def work(cls) -> None: ...

    with pytest.raises(SingleJobError, match=METHOD):

        class AnotherService:
            @singleton_job
            @classmethod
            def work(cls) -> None: ...


def test_one_that_calls_its_instance_otherwise_is_refused_too() -> None:
    with pytest.raises((SingleJobError, RuntimeError)) as refusal:

        class Service:
            @singleton_job
            def work(this, amount: int) -> None: ...  # noqa: N805

    # Python 3.11 raises a RuntimeError, with the original error as its cause.
    assert re.search(METHOD, str(refusal.value.__cause__ or refusal.value))


@pytest.mark.django_db
def test_a_static_method_is_no_method() -> None:
    class Service:
        @staticmethod
        @singleton_job("above")
        def above(amount: int) -> int:
            return amount

        @singleton_job("beneath")
        @staticmethod
        def beneath(amount: int) -> int:
            return amount

        @singleton_job("asynchronous")
        @staticmethod
        async def asynchronous(amount: int) -> int:
            return amount

    assert (Service.above(1), Service().above(2)) == (1, 2)
    assert (Service.beneath(1), Service().beneath(2)) == (1, 2)
    assert async_to_sync(Service().asynchronous)(3) == 3


def test_what_a_static_method_yields_would_come_without_the_lock() -> None:
    with pytest.raises(SingleJobError, match="is a generator"):

        class Service:
            @singleton_job
            @staticmethod
            def work() -> Any:
                yield


@pytest.mark.django_db
def test_a_job_may_be_an_attribute_of_a_class() -> None:
    @singleton_job
    def nightly(amount: int) -> int:
        return amount

    class Service:
        job = nightly
        static = staticmethod(nightly)
        call = singleton_job("call")(functools.partial(int, "5"))

    assert (Service.job(1), Service().job(2), Service().static(3), Service().call()) == (1, 2, 3, 5)


def test_outside_a_job_there_is_no_run_which_a_type_checker_knows() -> None:
    """If mypy did not complain here, the `type: ignore` would be unused, and an error itself."""
    with pytest.raises(AttributeError):
        current_run().lease  # type: ignore[union-attr]  # noqa: B018
    assert get_type_hints(current_run)["return"] == CurrentRun | None


@pytest.mark.parametrize("schedule", ["*/5 * * * *", "@hourly", "0 0 5 * * *", MINUTE], ids=str)
def test_a_schedule_is_no_name(schedule: Any) -> None:
    with pytest.raises(SingleJobError, match="is a schedule: write @singleton_job") as refusal:
        singleton_job(schedule)(print)
    assert f"write @singleton_job(schedule={schedule!r})." in str(refusal.value)


# --- what others do with them


def test_skipped_is_json_and_false() -> None:
    assert json.loads(json.dumps({"value": SKIPPED})) == {"value": "skipped"}
    assert not SKIPPED
    assert repr(SKIPPED) == str(SKIPPED) == "SKIPPED"
    assert copy.deepcopy(SKIPPED) is pickle.loads(pickle.dumps(SKIPPED)) is SKIPPED


@pytest.mark.slow
def test_a_job_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """Also one whose module has something else around it under its name, and one that is not at the top of it."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(
        "from django_singlejob import singleton_job\n"
        "@singleton_job\ndef plain(): ...\n"
        "@singleton_job\nasync def in_loop(): ...\n"
        "class Task:\n    def __init__(self, func): self.func = func\n"
        "@Task\n@singleton_job\ndef wrapped(): ...\n"
        "def make():\n    return singleton_job('inner')(lambda: None)\n"
        "inner_job = make()\n"
    )
    set_up = """
        import django, pickle, sys
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["django_singlejob"], USE_TZ=True)
        django.setup()
    """
    send = """
        from shop import jobs
        for job in jobs.plain, jobs.in_loop, jobs.wrapped.func, jobs.inner_job:
            assert pickle.loads(pickle.dumps(job)) is job, job
        sys.stdout.buffer.write(pickle.dumps([jobs.plain, jobs.in_loop, jobs.wrapped.func, jobs.inner_job]))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    run = partial(subprocess.run, env=environment, check=True, stdout=subprocess.PIPE)
    sent = run([sys.executable, "-c", dedent(set_up) + dedent(send)]).stdout
    receive = "print([job.name for job in pickle.load(sys.stdin.buffer)])"
    received: object = run([sys.executable, "-c", dedent(set_up) + receive], input=sent).stdout
    assert received == b"['plain', 'in_loop', 'wrapped', 'inner']\n"
