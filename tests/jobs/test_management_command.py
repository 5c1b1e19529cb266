"""A management command as a job."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from django.core.management import CommandError

from django_singlejob import DuplicateJob, SingleJobError, command_job, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from tests.app.management.commands.report import Command as Report

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def test_it_is_run_with_its_arguments_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    job = command_job("report", "today", "--format", "pdf")
    assert job() == "today as pdf"
    assert capsys.readouterr().out == "today as pdf\n"
    assert (runs().get().job_name, runs().get().status) == ("report", "successful")
    assert not locks().exists()


def test_it_has_every_option_of_a_job() -> None:
    job = command_job("report", "today", name="nightly_report", schedule="0 3 * * *", lease=timedelta(seconds=50))
    assert registry.get("nightly_report") is job
    assert (job.name, job.lock, job.schedule) == ("nightly_report", "nightly_report", "0 3 * * *")
    assert job.path == f"{__name__}.command_job('report', 'today')"


@pytest.mark.parametrize(
    ("words", "helped", "described"),
    [
        (["report", "last day"], "Reports the day's sales.", "manage.py report 'last day': Reports the day's sales."),
        (["report", "today"], "\n    Reports the day.\n\n    In euros.\n", "manage.py report today: Reports the day."),
        (["report", "today"], "", "manage.py report today"),
        (["check", "--deploy"], None, "manage.py check --deploy"),
        (["clearsessions"], None, "manage.py clearsessions"),
    ],
)
def test_its_words_describe_it_and_its_help_unless_that_is_djangos(
    words: list[str], helped: str | None, described: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if helped is not None:
        monkeypatch.setattr(Report, "help", helped)
    assert command_job(*words).description == described


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reprot"], r"There is no management command 'reprot'\. Did you mean 'report'\?"),
        (["no_such_thing"], r"'no_such_thing'\. Is its app in INSTALLED_APPS\?"),
        (["report"], r"'report' does not accept the arguments \[\]: the following arguments are required: day"),
        (["report", "today", "--fromat", "pdf"], r"'report' does not .* \['today', '--fromat', 'pdf'\]: unrecognized"),
        (["report", "today", "--format", "doc"], "'report' does not accept .*invalid choice: 'doc'"),
        (
            ["report", 5],
            "The arguments of the management command 'report' must be strings, as in a shell, and 5 is not one",
        ),
        (["report", "--help"], "'report' would run nothing"),
    ],
)
def test_a_mistake_is_told_when_it_is_registered(arguments: list[str], words: str) -> None:
    with pytest.raises(SingleJobError, match=words):
        command_job(*arguments)
    assert not registry.all_jobs()


def test_an_option_that_no_job_has_is_refused() -> None:
    with pytest.raises(SingleJobError, match=r"command_job\(\) has no option 'cron'\. Use schedule"):
        command_job("report", "today", cron="@daily")


def test_two_commands_cannot_have_one_name() -> None:
    command_job("report", "today")
    command_job("report", "today")  # its module was reloaded
    with pytest.raises(DuplicateJob):
        command_job("report", "tomorrow")
    with pytest.raises(DuplicateJob):
        singleton_job("report")(len)


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["never"], "There is no such day.", 4),
        (["today", "--status", "3"], "report exited with status 3.", 3),
    ],
)
def test_one_that_fails_is_a_run_that_failed(arguments: list[str], words: str, status: int) -> None:
    job = command_job("report", *arguments)
    with pytest.raises(CommandError) as raised:
        job()
    assert (str(raised.value), raised.value.returncode) == (words, status)
    assert (runs().get().status, runs().get().error) == ("failed", f"CommandError: {words}")


def test_one_that_exits_with_0_has_run() -> None:
    assert command_job("report", "today", "--status", "0")() is None
    assert runs().get().status == "successful"


def test_it_takes_no_arguments_when_it_is_enqueued() -> None:
    job = command_job("report", "today")
    assert job.enqueue().args == []
    with pytest.raises(SingleJobError, match="too many positional arguments"):
        job.using().enqueue("tomorrow")


def test_it_can_be_pickled_by_its_name() -> None:
    job = command_job("report", "today")
    assert pickle.loads(pickle.dumps(job)) is job
