"""What a command reports of a run, and its exit status. No job runs here."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import InterfaceError, OperationalError, ProgrammingError, connection
from django.utils.connection import ConnectionDoesNotExist

from django_singlejob import (
    SKIPPED,
    DatabaseUnreachable,
    DatabaseUnusable,
    JobInterrupted,
    JobTimeout,
    LeaseLost,
    Outcome,
    Reason,
    UnsafeTransaction,
)
from django_singlejob.exceptions import Lack, SingleJobError, UnknownJob
from django_singlejob.locking.acquire import IN_DOUBT
from django_singlejob.management.exit_status import (
    discover_jobs,
    explanation_of,
    refuse_settings,
    status_and_line,
    status_of_skip,
    where_traceback_is,
)
from django_singlejob.running.command import CommandFailed
from django_singlejob.running.outcomes import raised

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"

SECOND = timedelta(seconds=1)
SLOT = datetime(2026, 11, 21, 10, 5, tzinfo=UTC)
ROME = timezone(timedelta(hours=1))


def unusable(lack: Lack | None, job_name: str = "nightly") -> DatabaseUnusable:
    return DatabaseUnusable("It lacks something.", job_name=job_name, lack=lack)


def ran(slot: datetime | None = None) -> Outcome:
    return Outcome(status="successful", value=None, duration=1.26 * SECOND, slot=slot)


def of_outcome(outcome: Outcome) -> Outcome:
    return replace(outcome, name="nightly")


def of_error(error: BaseException) -> Outcome:
    return raised("nightly", error)


def exit_status_of(report: Outcome, **terms: Any) -> int:
    return status_and_line(report, **terms)[0]


def message_of(report: Outcome, **terms: Any) -> str:
    return status_and_line(report, **terms)[1]


def skipped(reason: Reason, **facts: Any) -> Outcome:
    return Outcome(status="skipped", value=SKIPPED, reason=reason, **facts)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (ran(), "nightly: ran in 1.3 s."),
        (ran(SLOT.astimezone(ROME)), "nightly: ran its slot 2026-11-21 10:05:00 UTC in 1.3 s."),
        (skipped(Reason.ITSELF), "nightly: skipped itself."),
        (skipped(Reason.ITSELF, detail="holiday"), "nightly: skipped itself, holiday."),
        (skipped(Reason.ITSELF, detail="It is Sunday."), "nightly: skipped itself, It is Sunday."),
        (
            replace(skipped(Reason.PAUSED), detail="until 2026-12-01 06:00:00 UTC (upgrade)"),
            "nightly: skipped, paused until 2026-12-01 06:00:00 UTC (upgrade).",
        ),
        (skipped(Reason.HELD), "nightly: skipped, held by somebody else."),
        (
            skipped(Reason.NOT_DUE, next_slot=SLOT.astimezone(ROME)),
            "nightly: skipped, not due (next: 2026-11-21 10:05:00 UTC).",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ran_or_was_skipped_is_no_error(outcome: Outcome, message: str) -> None:
    assert status_and_line(of_outcome(outcome)) == (0, message)


def test_a_skip_may_have_a_status_of_its_own() -> None:
    assert status_of_skip(of_outcome(skipped(Reason.HELD)), 75) == 75
    assert status_of_skip(of_outcome(ran()), 75) == 0
    assert status_of_skip(of_outcome(skipped(Reason.ITSELF)), 75) == 0, "It did run."


def test_a_signal_before_it_began_is_an_error() -> None:
    report = of_outcome(skipped(Reason.INTERRUPTED))
    assert exit_status_of(report, signum=15) == 143
    assert status_and_line(report) == (128, "nightly: interrupted before it started.")
    in_doubt = of_outcome(replace(skipped(Reason.INTERRUPTED), detail=IN_DOUBT))
    message = message_of(in_doubt, signum=15)
    assert message.startswith("nightly: interrupted before it started, but it is not known whether the lock was")


def test_one_that_could_not_be_decided_is_an_error() -> None:
    report = of_outcome(replace(skipped(Reason.UNDECIDED), detail="the gate is busy"))
    assert status_and_line(report) == (69, "nightly: undecided, the gate is busy")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (
            ValueError("no\ncustomer"),
            1,
            r"failed, ValueError: no\ncustomer",
        ),
        (JobTimeout(), 1, "failed, JobTimeout: The job ran longer than its max_runtime and was interrupted."),
        (SystemExit(3), 1, "failed, SystemExit: 3"),
        (KeyboardInterrupt(), 1, "failed, KeyboardInterrupt: "),
        (JobInterrupted(15), 143, "interrupted by signal 15."),
        (CommandFailed("The command exited with status 7.", 7), 7, "The command exited with status 7."),
        (LeaseLost("It was taken over."), 75, "It was taken over."),
        (DatabaseUnreachable("The database does not answer."), 69, "The database does not answer."),
        (unusable(Lack.TABLES), 78, "It lacks something."),
        (unusable(Lack.DATABASE), 78, "It lacks something."),
        (unusable(None), 78, "It lacks something."),
        (unusable(Lack.RIGHTS), 77, "It lacks something."),
        (unusable(Lack.LOGIN), 77, "It lacks something."),
        (unusable(Lack.WRITES), 77, "It lacks something."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_error_has_a_status_and_a_line(error: BaseException, status: int, message: str) -> None:
    found, line = status_and_line(of_error(error))
    assert found == status
    assert line.startswith(f"nightly: {message}")
    assert "\n" not in line


def test_an_interrupted_command_has_its_own_status() -> None:
    report = of_error(JobInterrupted(15))
    assert exit_status_of(report, child_status=3) == 3
    assert message_of(report) == "nightly: interrupted by signal 15."


def test_a_signal_that_comes_with_the_loss_of_the_lease_tells_how_it_ended() -> None:
    for loss in LeaseLost("It was taken over."), DatabaseUnreachable("It is away."), InterfaceError("It is closed."):
        assert exit_status_of(of_error(loss), signum=15) == 143
    for failure in ValueError(), ProgrammingError("It is a mistake."):
        assert exit_status_of(of_error(failure), signum=15) == 1
    assert message_of(of_error(LeaseLost("It was taken over.")), signum=15) == "nightly: It was taken over."
    closed = message_of(of_error(InterfaceError("It is closed.")), signum=15)
    assert closed == "nightly: interrupted by signal 15, InterfaceError: It is closed."


def test_a_failure_says_where_its_traceback_is_unless_it_was_printed() -> None:
    report = of_error(ValueError("no customer"))
    assert message_of(report) == "nightly: failed, ValueError: no customer"
    elsewhere = message_of(report, traceback="in the log")
    assert elsewhere == "nightly: failed, ValueError: no customer (traceback: in the log)"
    assert where_traceback_is(report) == "in the log"
    assert where_traceback_is(replace(report, is_task=True)) == "in the admin under One-off jobs"


@pytest.mark.parametrize("code", [None, 0])
def test_to_exit_well_is_no_error(code: int | None) -> None:
    assert status_and_line(of_error(SystemExit(code))) == (0, "nightly: ran.")


def test_a_jobs_own_mistake_ends_no_pass_over_the_others() -> None:
    mistake = UnsafeTransaction("A lock was asked for inside a transaction.")
    assert status_and_line(of_error(mistake)) == (2, f"nightly: {mistake}")


def test_a_job_that_met_with_it_itself_has_failed() -> None:
    """Its own run did begin; what it called inside did not."""
    status, line = status_and_line(of_error(unusable(Lack.TABLES, "another")))
    assert status == 1
    assert line.startswith("nightly: failed, DatabaseUnusable: It lacks something.")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (unusable(Lack.RIGHTS), 77, "It lacks something."),
        (unusable(Lack.TABLES), 78, "It lacks something."),
        (ImproperlyConfigured("LEASE\nis wrong."), 78, "LEASE is wrong."),
        (ConnectionDoesNotExist("No such alias."), 78, "No such alias."),
        (UnknownJob("There is no job 'x'."), 2, "There is no job 'x'."),
        (SingleJobError("It is used wrongly."), 2, "It is used wrongly."),
        (DatabaseUnreachable("It does not answer."), 69, "It does not answer."),
        (CommandError("It cannot be told.", returncode=5), 5, "It cannot be told."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_keeps_a_command_from_its_work_has_a_status_and_a_line(
    error: Exception, status: int, message: str
) -> None:
    explanation = explanation_of(error)
    assert explanation
    assert (explanation.returncode, str(explanation)) == (status, message)


@pytest.mark.parametrize("mark", ["", ".", "?"])
def test_a_database_that_is_away_is_named_and_what_to_check(mark: str) -> None:
    explanation = explanation_of(InterfaceError(f"It is closed.\n\tReally{mark}"))
    assert explanation
    assert explanation.returncode == 69
    what = "the folder exists and that this user may write to it"
    if connection.vendor != "sqlite":
        what = "the database server is running"
    assert str(explanation).startswith(
        f"The database does not answer: It is closed. Really. Check that {what}, and check DATABASES['default'] ("
    )


def test_others_that_are_in_the_way_are_a_reason_to_try_again() -> None:
    explanation = explanation_of(OperationalError(1213, "Deadlock found"))
    assert explanation
    assert explanation.returncode == 69


def test_to_check_the_settings_takes_no_connection(database_away: Away) -> None:
    """If the database is away, the command tells of which job it could not run."""
    with database_away():
        refuse_settings()
        assert connection.connection is None


@pytest.mark.parametrize("error", [ValueError(), ProgrammingError("a mistake of ours")], ids=repr)
def test_of_our_own_mistakes_the_traceback_is_needed(error: Exception) -> None:
    assert explanation_of(error) is None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def job()", r"SyntaxError: expected ':' \(jobs\.py, line 3\)\. {fix} {or_leave_it_out}"),
        ("import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module'\. {fix} {or_leave_it_out}"),
        (
            "singleton_job(shedule='@daily')(print)",
            r"SingleJobError: singleton_job\(\) has no option 'shedule'\. Did you mean 'schedule'\? {fix}",
        ),
        ("singleton_job('Nightly')(print)", r"InvalidName: 'Nightly' is not a valid name .+ or a digit\. {fix}"),
        ("raise ValueError('a\\nb')", r"ValueError: a b\. {fix} {or_leave_it_out}"),
    ],
    ids=["syntax", "import", "option", "name", "two lines"],
)
@pytest.mark.usefixtures("fresh_process")
def test_an_error_in_a_jobs_module_is_one_line_that_names_its_place(
    code: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = tmp_path / tmp_path.name  # a name of its own: modules are imported once
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "jobs.py").write_text(f"from django_singlejob import singleton_job\n\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app.name]
    discover_jobs()
    [said] = caplog.messages
    fix = rf"Fix the error in {re.escape(str(app / 'jobs.py'))}, line 3\."
    leave_out = r"If its module is not for jobs, leave that name out of SINGLEJOB\['AUTODISCOVER'\]\."
    expected = message.format(fix=fix, or_leave_it_out=leave_out)
    assert re.fullmatch(f"Some jobs cannot be registered: {expected} The other jobs run\\.", said)
