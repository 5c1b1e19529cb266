from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from datetime import timedelta
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import django
import pytest

from django_singlejob import DuplicateJob, InvalidSchedule, SingleJobError, UnknownJob, shell_job, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.jobs.discovery import autodiscover, remedy_for
from tests.app.tasks_api import PACKAGE
from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
NOTHING = (
    "No job is registered. Put a function with @singleton_job into the jobs.py of an app, and the app into "
    "INSTALLED_APPS."
)
# No test is marked `django_db`, because registering and discovering jobs uses no database.
pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.fixture
def app(fresh_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[Path]:
    """The path for the `jobs.py` of an installed app. The test writes the file."""
    package = tmp_path / "some_shop"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "some_shop"]
    yield package / "jobs.py"
    for module in [name for name in sys.modules if name.partition(".")[0] == "some_shop"]:
        del sys.modules[module]


def run_python(code: str, *, cwd: Path = ROOT) -> str:
    """Run the code in a process without settings, and return what it prints."""
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", dedent(code)]
    paths = os.pathsep.join([str(cwd), str(ROOT)])
    done = subprocess.run(
        command, env=env | {"PYTHONPATH": paths}, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jobs_are_found_by_name_and_listed_by_name() -> None:
    jobs = [singleton_job(name)(print) for name in ("weekly", "hourly", "nightly")]
    assert [job.name for job in registry.all_jobs()] == ["hourly", "nightly", "weekly"]
    assert [registry.get(job.name) for job in jobs] == jobs


def test_two_jobs_of_one_name_are_refused_and_both_places_are_named() -> None:
    @singleton_job("report")
    def sales() -> None: ...

    with pytest.raises(DuplicateJob, match="Two jobs are called 'report'") as refusal:

        @singleton_job("report")
        def stock() -> None: ...

    for function in ("sales", "stock"):
        assert re.search(rf"\.{function} \({re.escape(__file__)}:\d+\)", str(refusal.value))
    assert not registry.is_known("report")


def test_of_a_function_that_does_not_tell_any_arguments_may_fit() -> None:
    assert registry.Job(name="mail", func=dict.pop).misfit([], {}) is None
    assert registry.Job(name="mail", func=lambda *args, **kwargs: None).misfit([1], {"copies": 2}) is None


@pytest.mark.parametrize("schedule", [timedelta(hours=1), "PT1H"])
def test_an_interval_has_no_time_zone(schedule: Any) -> None:
    with pytest.raises(SingleJobError, match=r"'hourly' has a time_zone, but .* counts from the Unix epoch in UTC\."):
        singleton_job("hourly", schedule=schedule, time_zone="Europe/Rome")(print)
    policy = singleton_job("hourly", schedule=schedule)(print).policy
    assert policy
    assert policy.schedule.time_zone == "UTC"


def test_without_a_schedule_there_is_no_time_zone() -> None:
    with pytest.raises(SingleJobError, match="'hourly' has a time_zone, but no schedule"):
        singleton_job("hourly", time_zone="Europe/Rome")(print)


@pytest.mark.parametrize("zone", ["", "Europe/Roma", "localtime"])
def test_a_time_zone_that_will_not_do_is_refused_and_the_job_is_named(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"Job 'nightly': '{zone}' is not"):
        singleton_job("nightly", schedule="@daily", time_zone=zone)(print)


def test_a_schedule_that_is_never_due_is_refused_and_the_job_is_named() -> None:
    with pytest.raises(InvalidSchedule, match=r"Job 'nightly': .* is never due"):
        singleton_job("nightly", schedule="*/10 2 * 3 7L", time_zone="Europe/Rome")(print)


def test_a_place_can_be_without_a_line() -> None:
    assert singleton_job("print")(print).place == "builtins.print"


def test_a_reloaded_module_replaces_its_jobs(app: Path) -> None:
    app.write_text("from django_singlejob import singleton_job\n@singleton_job\ndef restock(): return 'before'\n")
    assert autodiscover() == []
    app.write_text(app.read_text().replace("before", "after"))
    importlib.reload(sys.modules["some_shop.jobs"])
    assert registry.get("restock").func() == "after"


def test_an_unknown_job_is_refused_with_what_was_meant() -> None:
    with pytest.raises(UnknownJob, match=r"no job 'nightly'\. No job is registered. Put a function"):
        registry.get("nightly")
    for name in "nightly_report", "nightly_import", "restock":
        singleton_job(name)(print)
    with pytest.raises(UnknownJob, match=r"Did you mean 'nightly_report' or 'nightly_import'\?"):
        registry.get("nightly_repor")
    with pytest.raises(UnknownJob, match=r"The jobs are: nightly_import, nightly_report, restock\."):
        registry.get("something else")


def test_an_app_needs_no_jobs(app: Path) -> None:
    assert autodiscover() == []
    assert not list(registry.all_jobs())


@pytest.mark.parametrize(
    ("code", "error"),
    [("import no_such_module", ModuleNotFoundError), ("1 / 0", ZeroDivisionError), ("def", SyntaxError)],
)
def test_an_error_in_a_jobs_module_is_not_swallowed(app: Path, code: str, error: type[Exception]) -> None:
    app.write_text(code)
    [found] = autodiscover()
    assert type(found) is error


@pytest.mark.slow
def test_the_package_and_its_exceptions_can_be_imported_without_settings() -> None:
    printed = run_python("""
        import django_singlejob
        from django_singlejob import LockHeld, LeaseLost, UnknownJob, SingleJobError

        from django.apps import apps
        from django.conf import settings
        print(issubclass(LockHeld, SingleJobError), settings.configured, apps.ready)
    """)
    assert printed == "True False False\n"


@pytest.mark.slow
def test_a_job_in_an_app_that_is_just_being_loaded_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(
        "from django_singlejob import singleton_job\n@singleton_job\ndef restock(): ...\n"
    )
    printed = run_python(
        """
        import django
        from django.conf import settings
        from django.core.exceptions import AppRegistryNotReady
        settings.configure(INSTALLED_APPS=["shop", "django_singlejob"], USE_TZ=True)
        try:
            django.setup()
        except AppRegistryNotReady as error:
            print(error)
        """,
        cwd=tmp_path,
    )
    assert printed == (
        "django_singlejob.singleton_job needs Django's models, which are not loaded yet. Put jobs into the jobs.py of "
        "an app, not into its __init__.py; in a script, call django.setup() first.\n"
    )


def test_the_package_says_what_is_in_it() -> None:
    package = importlib.import_module("django_singlejob")
    assert {*package.__all__, "jobs"} <= {*dir(package)}
    for name in package.__all__:
        assert getattr(package, name).__module__.startswith("django_singlejob.")
    with pytest.raises(AttributeError, match="'django_singlejob' has no attribute 'singelton_job'"):
        _ = package.singelton_job


# --- which modules are imported


def test_jobs_and_tasks_of_each_app_are_imported(app: Path) -> None:
    for module in "jobs", "tasks":
        app.with_name(f"{module}.py").write_text(a_job(f"in_{module}"))
    assert autodiscover() == []
    assert registry.is_known("in_jobs")
    assert registry.is_known("in_tasks")


def test_a_project_names_the_modules(app: Path, settings: Settings) -> None:
    (app.parent / "nightly").mkdir()
    (app.parent / "nightly" / "__init__.py").touch()
    (app.parent / "nightly" / "reports.py").write_text(a_job("report"))
    app.write_text(a_job("in_jobs"))
    settings.SINGLEJOB = {"AUTODISCOVER": ["nightly.reports"]}
    assert autodiscover() == []
    assert registry.is_known("report")
    assert not registry.is_known("in_jobs")


def test_for_an_unknown_name_it_is_said_where_jobs_are_searched(settings: Settings) -> None:
    begin = f"There is no job 'nightly'. {NOTHING} "
    with pytest.raises(UnknownJob) as refusal:
        registry.get("nightly")
    assert str(refusal.value) == (
        f"{begin}Jobs are searched for in jobs.py and tasks.py of each installed app (SINGLEJOB['AUTODISCOVER'])."
    )
    settings.SINGLEJOB = {"AUTODISCOVER": []}
    with pytest.raises(UnknownJob) as refusal:
        registry.get("nightly")
    assert str(refusal.value) == f"{begin}No module was searched: SINGLEJOB['AUTODISCOVER'] is empty."


def test_what_registers_a_job_is_named_also_for_functions_without_a_line() -> None:
    singleton_job("report")(print)
    with pytest.raises(DuplicateJob) as refusal:
        singleton_job("report")(input)
    places = [rf"builtins\.{name} \({re.escape(__file__)}:\d+\)" for name in ("print", "input")]
    assert re.search(" and ".join(places), str(refusal.value))


def a_job(name: str) -> str:
    return f"from django_singlejob import singleton_job\nsingleton_job({name!r})(print)\n"


# --- one broken module


def test_the_others_run(app: Path) -> None:
    app.with_name("tasks.py").write_text(f"{a_job('before')}1 / 0\n{a_job('after')}")
    app.write_text(a_job("in_jobs"))
    for _ in range(2):  # a page or a command may ask again
        [found] = autodiscover()
        assert isinstance(found, ZeroDivisionError)
        assert [job.name for job in registry.all_jobs()] == ["in_jobs"]
    with pytest.raises(
        UnknownJob, match=r"no job 'before'.* These are not registered, because of an error: some_shop\.tasks\."
    ):
        registry.get("before")


def test_what_it_imports_stays_and_what_fails_with_it_does_not(app: Path) -> None:
    app.with_name("whole.py").write_text(a_job("whole"))
    app.with_name("half.py").write_text(f"{a_job('half')}1 / 0")
    app.with_name("helper.py").write_text(
        "from django_singlejob import singleton_job\ndef add(name):\n    singleton_job(name)(print)\n"
    )
    app.write_text(f"from some_shop import helper, whole\nhelper.add('helped')\n{a_job('own')}import some_shop.half")
    [found] = autodiscover()
    assert isinstance(found, ZeroDivisionError)
    assert [job.name for job in registry.all_jobs()] == ["whole"]


def test_so_it_is_if_another_module_has_tried_it_before(app: Path) -> None:
    app.write_text(f"{a_job('nightly')}1 / 0")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("some_shop.jobs")
    assert len(autodiscover()) == 1
    assert not registry.is_known("nightly")


def test_two_shell_jobs_of_one_name_are_refused_whatever_differs() -> None:
    shell_job("backup", ["true"], schedule="@daily")
    shell_job("backup", ["true"], schedule="@daily")  # as when its module is reloaded
    with pytest.raises(DuplicateJob):
        shell_job("backup", ["true"], schedule="@hourly")
    assert not registry.is_known("backup")


def test_when_it_is_mended_its_jobs_are_back(app: Path) -> None:
    app.write_text(f"{a_job('nightly')}1 / 0")
    assert len(autodiscover()) == 1
    app.write_text(a_job("nightly"))
    assert autodiscover() == []
    assert registry.is_known("nightly")


def test_a_name_that_is_registered_twice_runs_in_neither_place(app: Path) -> None:
    app.write_text(a_job("nightly") + a_job("in_jobs"))
    app.with_name("tasks.py").write_text(a_job("nightly").replace("print", "input") + a_job("in_tasks"))
    for _ in range(2):
        [found] = autodiscover()
        assert isinstance(found, DuplicateJob)
        assert f"({app}:2)" in str(found)
        assert f"({app.with_name('tasks.py')}:2)" in str(found)
        assert [job.name for job in registry.all_jobs()] == ["in_jobs"]


def test_a_schedule_that_only_the_projects_zone_makes_invalid_stops_one_job(app: Path, settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Rome"
    job = "from django_singlejob import singleton_job\nsingleton_job('nightly', schedule='*/10 2 * 3 7L')(print)\n"
    app.write_text(f"{job}{a_job('hourly')}")
    for _ in range(2):
        [found] = autodiscover()
        assert re.match(r"The schedule of the job 'nightly', builtins\.print, cannot work .* is never due", str(found))
        assert [job.name for job in registry.all_jobs()] == ["hourly"]


# --- whose mistake it is


@pytest.mark.parametrize(
    "code",
    [
        "import json\n\njson.loads('{')",
        "import re\n\nre.compile('(')",
        "import asgiref.sync\n\nasgiref.sync.sync_to_async(5)",
    ],
    ids=["standard library", "regular expression", "package"],
)
def test_the_file_to_fix_is_the_projects_own(app: Path, code: str) -> None:
    app.write_text(code)
    [found] = autodiscover()
    assert remedy_for(found).startswith(f"Fix the error in {app}, line 3.")


@pytest.mark.parametrize(
    "is_set",
    [True, pytest.param(False, marks=pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django sets TASKS"))],
)
def test_for_a_task_over_a_job_it_is_said_which_backend_takes_it(app: Path, settings: Settings, is_set: bool) -> None:
    settings.TASKS = {"default": {"BACKEND": f"{PACKAGE}.backends.immediate.ImmediateBackend"}}
    if not is_set:
        del settings.TASKS
    app.write_text(
        f"from {PACKAGE} import task\nfrom django_singlejob import singleton_job\n"
        "@task\n@singleton_job\ndef mail(): ...\n"
    )
    [found] = autodiscover()
    assert "must be defined at a module level" in str(found)
    assert "let TASKS name its backend: {'default': {'BACKEND': 'django_singlejob.backends." in remedy_for(found)


def test_or_nothing_where_no_task_of_django_is_set_up(app: Path, settings: Settings) -> None:
    """A package that has tasks for older releases of Django needs no setting."""
    del settings.TASKS
    app.write_text("class InvalidTask(Exception): ...\n\nraise InvalidTask('No.')")
    [found] = autodiscover()
    assert remedy_for(found).startswith(f"Fix the error in {app}, line 3.")
