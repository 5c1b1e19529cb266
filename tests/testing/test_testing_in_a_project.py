"""A small project tests its jobs, with pytest and in four processes at once."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT
from tests.databases import named

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = pytest.mark.slow

OTHERS = ["-p", "xdist.plugin", "-p", "pytest_django.plugin"]
PLUGIN = "django_singlejob.testing.pytest_plugin"
FILES = {
    "pytest.ini": "[pytest]\n",
    "project_settings.py": """
        from tests.settings import DATABASES

        SECRET_KEY = "only-for-tests"
        USE_TZ = True
        TIME_ZONE = "Europe/Rome"
        INSTALLED_APPS = ["django_singlejob", "shop"]
    """,
    "shop/__init__.py": "",
    "shop/jobs.py": """
        from datetime import timedelta

        from django_singlejob import singleton_job


        @singleton_job(schedule="30 2 * * *", max_runtime=timedelta(hours=1))
        def report(*rows):
            write(rows)
            return len(rows)


        def write(rows):
            pass
    """,
    "test_jobs.py": """
        import pytest
        from django.test import TestCase, TransactionTestCase

        from django_singlejob import SKIPPED, JobTimeout, LeaseLost, job_lock
        from django_singlejob.models import JobLock, JobRun
        from django_singlejob.testing import (
            assert_scheduled, enqueued, expire, held_elsewhere, run_due, times_out, travel
        )
        from shop.jobs import report


        def use_each_tool():
            assert_scheduled("report", "2027-03-28", ["03:00"])
            with held_elsewhere(report):
                assert report() is SKIPPED
                expire(report)
                assert report(1) == 1
            report.enqueue(1, 2)
            assert [row.args for row in enqueued(report)] == [[1, 2]]
            outcomes = run_due(at="2027-03-28T03:00+02:00")
            assert [(outcome.status, outcome.value) for outcome in outcomes] == [("successful", 0), ("successful", 2)]
            with times_out(report, at="shop.jobs.write"), pytest.raises(JobTimeout):
                report()
            with job_lock("a-lock") as lease, travel("2027-03-28T03:00+02:00"), pytest.raises(LeaseLost):
                lease.check()
            assert [run.status for run in JobRun.objects.order_by("pk")] == [*["successful"] * 3, "interrupted"]
            assert not JobLock.objects.exists()


        class InATransaction(TestCase):
            def test_each_tool(self):
                use_each_tool()

            def test_each_tool_again(self):
                use_each_tool()


        class Committed(TransactionTestCase):
            def test_each_tool(self):
                use_each_tool()


        @pytest.mark.usefixtures("no_lock_left")
        @pytest.mark.parametrize("number", range(2))
        def test_each_tool_with_pytest(db, number):
            use_each_tool()


        @pytest.mark.usefixtures("no_lock_left")
        @pytest.mark.parametrize("number", range(2))
        def test_each_tool_committed(transactional_db, number):
            use_each_tool()
    """,
    "forgetful.py": """
        import pytest
        from django_singlejob import job_lock


        @pytest.mark.parametrize("name", ["first", "second"])
        def test_it_forgets(transactional_db, no_lock_left, name):
            kept.append(job_lock("a-lock"))
            kept[-1].__enter__()


        def test_it_does_not(transactional_db, no_lock_left):
            with job_lock("a-lock"):
                pass


        kept = []
    """,
    "plain/pytest.ini": "[pytest]\n",
    "plain/test_plain.py": """
        import sys


        def test_it():
            assert "django_singlejob.testing" in sys.modules
            assert not {"django.db", "django_singlejob.conf"} & {*sys.modules}
    """,
}


@pytest.fixture(autouse=True)
def kind() -> None:
    """The project has tests of each kind itself."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
    return tmp_path


def run_pytest(spawn: Spawn, ini: Path, *arguments: str) -> Child:
    """The process of pytest, at its end. Its test databases are its own."""
    options = ["-c", str(ini), "--rootdir", str(ini.parent), "-p", "no:cacheprovider", "-p", PLUGIN]
    # If the package is installed, pytest would load its plugin twice.
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "DJANGO_SETTINGS_MODULE": "project_settings"}
    env |= {"PYTHONPATH": f"{ini.parent}:{ROOT}", "SINGLEJOB_TEST_NAME": named("test_project")}
    child = spawn("-m", "pytest", *options, *arguments, **env)
    child.finish()
    return child


def test_each_tool_works_in_each_kind_of_test_and_in_four_processes(spawn: Spawn, project: Path) -> None:
    child = run_pytest(spawn, project / "pytest.ini", *OTHERS, "-n", "4", str(project / "test_jobs.py"))
    assert "7 passed" in child.output


def test_a_lock_that_a_test_leaves_fails_that_test_and_no_other(spawn: Spawn, project: Path) -> None:
    child = run_pytest(spawn, project / "pytest.ini", *OTHERS, str(project / "forgetful.py"))
    assert "3 passed, 2 errors" in child.output
    assert "This test has left a lock behind" in child.output


def test_a_project_without_django_is_left_alone(spawn: Spawn, project: Path) -> None:
    child = run_pytest(spawn, project / "plain" / "pytest.ini", str(project / "plain"))
    assert "1 passed" in child.output
