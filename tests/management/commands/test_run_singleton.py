"""`run_singleton`, called in this process; `processes/` covers its signals and exit statuses."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import django
import pytest
from django.core.management import CommandError, call_command
from django.utils import translation
from django.utils.log import AdminEmailHandler

from django_singlejob import command_job, current_run, job_lock, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.locking import acquire
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import utc_now
from django_singlejob.worker.due import follow_code
from tests.contract.acts import (
    HOUR,
    about_hourly,
    coming_slot,
    die_running,
    fall_behind,
    gate,
    hourly,
    is_free,
    last_run,
    let_pass,
    lock,
    newest_slot,
    scheduled,
    slots_run,
    take,
    without_seconds,
)
from tests.terminal import Terminal
from tests.waiting import work_until_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.core.mail import EmailMessage
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)


def mailed(*arguments: str, **options: Any) -> tuple[str, str]:
    """Standard output and standard error, neither of which is a terminal."""
    said, complained = StringIO(), StringIO()
    with suppress(SystemExit):
        call_command("run_singleton", *arguments, stdout=said, stderr=complained, no_color=True, **options)
    return without_seconds(said.getvalue()), without_seconds(complained.getvalue())


def told(*arguments: str, **options: Any) -> str:
    """The command's output."""
    output = Terminal()
    call_command("run_singleton", *arguments, stdout=output, stderr=output, no_color=True, **options)
    return without_seconds(output.getvalue())


@pytest.fixture
def calls() -> list[object]:
    """The arguments with which the job `nightly` was called."""
    calls: list[object] = []

    @singleton_job(lock="sales")
    def nightly(*args: object, **kwargs: object) -> None:
        """Counts the day's sales."""
        calls.append((args, kwargs))

    return calls


# --- what cron mails


def test_cron_mails_nothing_of_a_run_or_a_skipped_run() -> None:
    singleton_job("nightly")(lambda: None)
    assert mailed("nightly") == ("", "")
    assert mailed("nightly") == ("", "")
    assert mailed("nightly", verbosity=2) == ("nightly: skipped, already ran.\n", "")
    assert mailed("nightly", "--now", verbosity=2) == ("nightly: ran in 0.0 s.\n", "")


def test_cron_mails_a_failure_in_one_line() -> None:
    singleton_job("broken")(fail)
    where = "traceback: in the admin under Runs, or with run_singleton --traceback"
    assert mailed("broken") == ("", f"broken: failed, ZeroDivisionError: one\\nERROR two ({where})\n")


@pytest.mark.parametrize("stream", [StringIO, Terminal])
def test_what_is_said_of_a_shell_command_never_goes_where_its_output_goes(stream: type[StringIO]) -> None:
    said, complained = stream(), stream()
    with job_lock("dump"):
        call_command("run_singleton", "dump", "--", "true", stdout=said, stderr=complained)
    call_command("run_singleton", "dump", "--", "true", stdout=said, stderr=complained)
    assert said.getvalue() == ""
    assert bool(complained.getvalue()) is (stream is Terminal)


# --- management commands


def test_a_management_command_is_run_under_the_lock_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert told("-m", "report", "today", "--format", "pdf") == "report: ran in 0.0 s.\n"
    assert capsys.readouterr().out == "today as pdf\n"
    run = runs().get()
    assert (run.job_name, run.status) == ("report", "successful")
    assert told("-m", "report", "tomorrow") == "report: skipped, already ran.\n"


def test_or_under_another_lock_and_its_options_are_not_those_of_the_lock() -> None:
    assert told("nightly", "--now", "-m", "report", "today", "--format=pdf") == "nightly: ran in 0.0 s.\n"
    with job_lock("nightly"):
        assert told("nightly", "--now", "-m", "report", "never").startswith("nightly: skipped, held")


def test_its_exit_status_is_passed_on() -> None:
    output = Terminal()
    with pytest.raises(SystemExit) as left:
        call_command("run_singleton", "-m", "report", "never", stdout=output, stderr=output, no_color=True)
    assert left.value.code == 4
    assert output.getvalue() == "report: failed, CommandError: There is no such day.\n"


def test_if_it_is_a_registered_job_it_is_run_as_that_job() -> None:
    command_job("report", "today", lock="sales")
    told("-m", "report", "today")
    assert gates().filter(name="sales").exists()
    with pytest.raises(
        CommandError, match=r"'report' is a registered job that runs something else: .*'today'\)\. Give"
    ):
        told("-m", "report", "tomorrow")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m"], "There is no command after -m"),
        (["-m", "reprot"], "Did you mean 'report'"),
        (["-m", "report"], "the following arguments are required: day"),
        (["-m", "report", "today", "--now"], "unrecognized arguments: --now"),
        (["--args", "[]", "-m", "report", "today"], "--args is only for jobs"),
        (["--close", "-m", "report", "today"], "--close is only for shell commands"),
        (["Nightly", "-m", "report", "today"], "'Nightly' is not a valid name"),
    ],
)
def test_a_mistake_in_it_is_told(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        told(*arguments)
    assert not runs().exists()


def test_a_management_command_that_is_no_job_is_told_how_it_can_be_run() -> None:
    with pytest.raises(
        CommandError, match=r"no job 'report'\. To run the management command of that name: run_singleton -m report"
    ):
        told("report")


def test_the_list_shows_its_arguments() -> None:
    command_job("report", "today", name="nightly_report")
    assert told("--list").startswith("nightly_report: manage.py report today: Reports the day's sales.\n")


# --- a daemon


@pytest.mark.parametrize("option", ["--wait=5", "--min-interval=5", "--now"])
def test_standby_is_an_option_of_its_own(option: str) -> None:
    with pytest.raises(CommandError, match=rf"{option.partition('=')[0]} has no effect with --standby"):
        told("beat", "--standby", option, "--", "true")


def test_standby_is_not_for_slots() -> None:
    scheduled()
    with pytest.raises(CommandError, match=r"'nightly' has a schedule\. Remove --standby"):
        told("nightly", "--standby")


def test_standby_heeds_no_interval() -> None:
    for _ in range(2):
        assert told("beat", "--standby", "-m", "report", "today").startswith("beat: ran in")


# --- wrong arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a job or a command"),
        (["--"], "There is no command after --"),
        (["--", "true"], "Name a job or a command"),
        (["nightly", "--args", "[1]", "--", "true"], "--args is only for jobs"),
        (["nightly", "--", "true"], "'nightly' is a registered job"),
        (["django_singlejob.worker.1", "--", "true"], "'django_singlejob.worker.1' is reserved"),
        (["django_singlejob.prune", "--now"], "There is no job 'django_singlejob.prune'"),
        (["nightly", "--close"], "--close is only for shell commands"),
        (["nightly", "--inline", "--", "true"], "--inline is only for jobs"),
        (["nightly", "--args", "{"], "'{' is not JSON"),
        # Since Python 3.14, the stack decides how deep is too deep.
        (["nightly", "--args", "[" * 1_000_000], "is nested too deeply"),
        (["nightly", "--args", "5"], "'5' is neither a JSON list nor an object"),
        (["nightly", "--wait", "long"], "'long' is not a number of seconds"),
        (["nightly", "--min-interval", "inf"], "'inf' is more than a century"),
        (["nightly", "--lease", "0"], "--lease: '0' is too short for a lease. Use 0.5 seconds or more."),
        (["backup", "--max-runtime", "0", "--", "true"], "--max-runtime must be longer than 0 seconds"),
        (["--max-runtime", "long", "-m", "check"], "'long' is not a number of seconds"),
        (["nightly", "--max-runtime", "9", "--inline"], "cannot be used: with --inline, nothing can end the job"),
        (["nightly", "weekly"], "unrecognized arguments: weekly"),
        (["nightyl"], r"There is no job 'nightyl'\. Did you mean 'nightly'\?"),
        (["Nightly", "--", "true"], "'Nightly' is not a valid name for a job or a lock"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_arguments_that_make_no_sense_are_usage_errors(calls: list[object], arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refusal:
        told(*arguments)
    assert refusal.value.returncode in (1, 2)  # from the shell, argparse itself exits with 2
    assert not calls
    assert not gates().exists()


def test_a_job_that_has_a_limit_of_its_own_gets_no_other_one() -> None:
    command_job("report", "today", max_runtime=timedelta(minutes=20))
    message = "the job 'report' has a max_runtime of its own, 0:20:00. Remove it"
    for words in ["report"], ["-m", "report", "today"]:
        with pytest.raises(CommandError, match=message) as refusal:
            told("--max-runtime=9", *words)
        assert refusal.value.returncode == 2


def test_a_shell_command_without_dashes_says_what_is_missing(calls: list[object]) -> None:
    with pytest.raises(CommandError, match=r"unrecognized arguments: true -x\. Write -- before a shell command"):
        told("backup", "true", "-x")


@pytest.mark.parametrize("status", ["300", "256", "-1"])
def test_an_exit_status_that_there_is_not_is_one_too(calls: list[object], status: str) -> None:
    with pytest.raises(CommandError):
        told("nightly", f"-E={status}")


# --- jobs


def test_a_job_is_run_and_a_line_is_said(calls: list[object]) -> None:
    assert told("nightly") == "nightly: ran in 0.0 s.\n"
    assert calls == [((), {})]
    assert (last_run().status, last_run().trigger) == ("successful", "command")


@pytest.mark.parametrize(
    ("text", "call"), [('[1, "a"]', ((1, "a"), {})), ('{"a": null}', ((), {"a": None})), ("[]", ((), {}))]
)
def test_its_arguments_are_json(calls: list[object], text: str, call: object) -> None:
    told("nightly", "--args", text)
    assert calls == [call]


@pytest.mark.usefixtures("as_program")
def test_a_job_that_raises_a_keyboard_interrupt_by_itself_has_failed() -> None:
    singleton_job("nightly")(press_ctrl_c)
    with pytest.raises(SystemExit) as ended:
        told("nightly")
    assert (ended.value.code, last_run().status, gate().consecutive_failures) == (1, "failed", 1)


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def test_where_the_signals_are_the_programs_it_was_interrupted() -> None:
    singleton_job("nightly")(press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        told("nightly")
    assert (last_run().status, gate().consecutive_failures) == ("interrupted", 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "missing a required argument: 'day'"),
        (["--args", '["a", "b"]'], "too many positional arguments"),
        (["--args", '{"day": "a", "colour": "red"}'], "got an unexpected keyword argument 'colour'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("schedule", [None, timedelta(hours=1)])
@pytest.mark.parametrize("now", [[], ["--now"]], ids=str)
def test_arguments_that_do_not_fit_are_refused_before_the_lock_is_asked_for(
    arguments: list[str], complaint: str, schedule: timedelta | None, now: list[str]
) -> None:
    @singleton_job(schedule=schedule)
    def report(day: str, *, copies: int = 1) -> None: ...

    with pytest.raises(CommandError) as refusal:
        told("report", *arguments, *now)
    hint = "" if arguments else " Pass them with --args '[...]'."
    assert str(refusal.value) == (
        f"The job 'report' does not accept these arguments: {complaint}. "
        f"Its signature is report(day: 'str', *, copies: 'int' = 1) -> 'None'.{hint}"
    )
    assert refusal.value.returncode == 2
    assert not gates().exists()


def test_not_again_within_the_usual_interval_but_by_hand(calls: list[object]) -> None:
    told("nightly")
    assert told("nightly") == "nightly: skipped, already ran.\n"
    assert len(calls) == 1
    told("nightly", "--now")
    assert len(calls) == 2
    assert last_run().trigger == "manual"
    told("nightly", "--min-interval", "0")
    assert len(calls) == 3


def test_after_a_failure_it_is_said_that_it_failed_and_how_to_run_it_again() -> None:
    @singleton_job
    def nightly() -> None:
        raise ValueError("no customer")

    with pytest.raises(SystemExit):
        told("nightly")
    assert re.fullmatch(
        r"nightly: skipped, already ran, but its last run failed \d+ seconds? ago: run_singleton with --now runs it "
        r"again\.\n",
        told("nightly"),
    )
    with pytest.raises(SystemExit):
        told("nightly", "--now")
    assert gate("nightly").consecutive_failures == 2


def test_a_slot_that_failed_already_ran_too() -> None:
    @singleton_job(schedule=about_hourly(due_in=timedelta(seconds=10)))
    def nightly() -> None:
        raise ValueError("no customer")

    follow_code()
    with pytest.raises(SystemExit):
        told("nightly")
    said = told("nightly")
    assert said.startswith("nightly: skipped, already ran (next: ")
    assert re.search(
        r" UTC\), but its last run failed \d+ seconds? ago: run_singleton with --now runs it again\.$", said
    )


def test_a_jobs_own_interval_goes_before_the_usual_one() -> None:
    calls: list[object] = []
    singleton_job("often", min_interval=timedelta())(lambda: calls.append(1))
    told("often")
    told("often")
    assert len(calls) == 2
    assert "already ran" in told("often", "--min-interval", "60")


def test_a_lock_that_is_held_is_told_and_no_error(calls: list[object]) -> None:
    take("sales")
    assert told("nightly") == f"nightly: skipped, held by somebody else ({lock('sales').holder}).\n"
    assert told("nightly", verbosity=0) == ""
    with pytest.raises(SystemExit) as ended:
        told("nightly", "-E", "75")
    assert ended.value.code == 75
    assert not calls


def test_a_job_that_wants_an_exception_is_skipped_all_the_same() -> None:
    singleton_job("nightly", on_held="raise")(print)
    take()
    assert "skipped, held" in told("nightly")


def test_lease_and_wait_can_be_given() -> None:
    @singleton_job
    def nightly() -> None:
        run = current_run()
        assert run is not None
        seen.append((run.job.lease, run.job.wait))

    seen: list[object] = []
    told("nightly", "--lease", "120", "--wait", "0.5")
    assert seen == [(2 * MINUTE, timedelta(seconds=0.5))]


def fail() -> None:
    raise ZeroDivisionError("one\nERROR two")


@pytest.mark.parametrize("options", [[], ["--traceback"]])
def test_a_job_that_fails_is_status_1_and_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    singleton_job("nightly")(fail)
    output = Terminal()
    with pytest.raises(SystemExit) as ended:
        call_command("run_singleton", "nightly", *options, stderr=output, no_color=True)
    assert ended.value.code == 1
    assert "nightly: failed, ZeroDivisionError: one" in output.getvalue()
    assert ("in fail" in output.getvalue()) is bool(options)
    where = "" if options else " (traceback: in the admin under Runs, or with run_singleton --traceback)"
    assert output.getvalue().splitlines()[-1] == f"nightly: failed, ZeroDivisionError: one\\nERROR two{where}"
    assert gate().last_status == "failed"


def failures(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """What was logged: the level, the text, and the class of the exception."""
    return [
        (record.levelname, record.getMessage(), record.exc_info[0].__name__)
        for record in caplog.records
        if record.name == "django_singlejob" and record.exc_info and record.exc_info[0]
    ]


@pytest.mark.parametrize("schedule", [None, timedelta(hours=1)])
def test_a_failure_is_logged_as_a_workers_is(schedule: timedelta | None, caplog: pytest.LogCaptureFixture) -> None:
    job: Any = singleton_job("nightly", schedule=schedule)(fail)
    if schedule:
        fall_behind(job)
    with pytest.raises(SystemExit):
        told("nightly")
    assert failures(caplog) == [("ERROR", "The job 'nightly' failed.", "ZeroDivisionError")]


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$"])
def test_so_is_that_of_a_shell_command(command: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SystemExit):
        told("backup", "--", "sh", "-c", command)
    assert failures(caplog) == [("ERROR", "The job 'backup' failed.", "CommandFailed")]


def test_what_runs_or_is_skipped_is_no_failure(calls: list[object], caplog: pytest.LogCaptureFixture) -> None:
    told("nightly")
    take("sales")
    told("nightly", "--now")
    assert calls
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def be_told() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    work_until_ended()


@pytest.mark.usefixtures("as_program")
def test_an_interruption_is_a_warning_as_a_workers_is(caplog: pytest.LogCaptureFixture) -> None:
    singleton_job("nightly")(be_told)
    with pytest.raises(SystemExit) as ended:
        told("nightly")
    assert ended.value.code == 128 + signal.SIGTERM
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]
    assert caplog.records[0].getMessage().startswith("The job 'nightly' was interrupted: JobInterrupted")


@pytest.mark.filterwarnings("ignore:Django 2028 will not have a default mailer")
def test_the_admins_get_a_mail(settings: Settings, mailoutbox: list[EmailMessage]) -> None:
    settings.ADMINS = ["ops@example.com" if django.VERSION >= (6, 0) else ("Ops", "ops@example.com")]
    singleton_job("nightly")(fail)
    with handled(AdminEmailHandler()), pytest.raises(SystemExit):
        told("nightly")
    (mail,) = mailoutbox
    assert "The job 'nightly' failed." in mail.subject
    assert "ZeroDivisionError" in mail.body


@contextmanager
def handled(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("django_singlejob")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def test_without_a_handler_standard_error_has_the_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    singleton_job("nightly")(fail)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.raises(SystemExit):
        call_command("run_singleton", "nightly", no_color=True)
    assert capsys.readouterr().err.splitlines() == [
        (
            "nightly: failed, ZeroDivisionError: one\\nERROR two "
            "(traceback: in the admin under Runs, or with run_singleton --traceback)"
        )
    ]


def test_a_job_that_exits_well_ran() -> None:
    singleton_job("nightly")(sys.exit)
    assert told("nightly") == "nightly: ran.\n"


def test_the_jobs_are_listed(calls: list[object]) -> None:
    singleton_job("weekly")(print)
    singleton_job("yearly")(lambda: None)
    listed = told("--list").splitlines()
    assert listed[0] == "nightly (lock sales): Counts the day's sales."
    assert listed[1].startswith("weekly: Prints the values")
    assert listed[2].startswith("yearly: tests.management.commands.test_run_singleton.")


def test_nothing_is_listed_where_there_is_nothing() -> None:
    assert told("--list") == f"{registry.NO_JOB}\n"
    assert not list(registry.all_jobs())


# --- jobs with a schedule


def due(slots: int = 1, **settings: Any) -> Any:
    """A job with `slots` due slots, half an hour late. It returns its run."""
    job = scheduled(**settings)
    fall_behind(job, slots)
    return job


def test_the_slot_that_is_due_is_run() -> None:
    job = due()
    assert told("nightly") == f"nightly: ran its slot {newest_slot(job):%F %T} UTC in 0.0 s.\n"
    assert slots_run() == [(newest_slot(job), 1, "successful")]
    assert last_run().trigger == "schedule"


def test_and_no_other() -> None:
    job = due(slots=0)
    said = f"nightly: skipped, not due (next: {coming_slot(job):%F %T} UTC).\n"
    assert told("nightly") == said
    assert told("nightly") == said
    with pytest.raises(SystemExit) as ended:
        told("nightly", "-E", "75")
    assert ended.value.code == 75
    assert told("nightly", verbosity=0) == ""
    assert slots_run() == []


@pytest.mark.parametrize(("due_in", "is_due"), [(20, True), (40, False)])
def test_a_cron_daemon_may_be_half_a_minute_early(due_in: int, is_due: bool) -> None:
    job = scheduled(schedule=about_hourly(due_in=timedelta(seconds=due_in)))
    follow_code()
    slot = coming_slot(job)
    said = told("nightly")
    assert said.startswith(f"nightly: ran its slot {slot:%F %T} UTC in ") is is_due
    assert ("skipped, not due" in said) is not is_due


def test_or_as_early_as_the_settings_say(settings: Settings) -> None:
    job = scheduled(schedule=about_hourly(due_in=20 * MINUTE))
    follow_code()
    assert "not due" in told("nightly")
    settings.SINGLEJOB = {"SLOT_TOLERANCE": 25 * MINUTE}
    slot = coming_slot(job)
    assert "ran its slot" in told("nightly")
    assert told("nightly").startswith("nightly: skipped, already ran (next: ")
    assert slots_run() == [(slot, 1, "successful")]


def test_a_server_that_is_late_is_told_that_it_already_ran() -> None:
    job = scheduled(schedule=about_hourly(due_in=HOUR - timedelta(seconds=10)))
    assert "ran its slot" in told("nightly")
    said = f"nightly: skipped, already ran (next: {coming_slot(job):%F %T} UTC).\n"
    assert told("nightly") == said
    assert told("nightly") == said


def test_a_job_that_is_asked_for_the_first_time_runs_the_slot_just_gone_by() -> None:
    job = scheduled(schedule=about_hourly(due_in=HOUR - timedelta(seconds=10)))
    assert told("nightly").startswith(f"nightly: ran its slot {newest_slot(job):%F %T} UTC in ")


def test_or_waits_for_the_next() -> None:
    job = scheduled()
    assert told("nightly") == f"nightly: skipped, not due (next: {coming_slot(job):%F %T} UTC).\n"


@pytest.mark.parametrize("slots", [0, 1])
def test_by_hand_it_is_run_whatever_its_schedule_says_and_no_slot_is_consumed(slots: int) -> None:
    job = due(slots, min_interval=HOUR)
    next_slot = gate().next_slot
    for _ in range(2):
        assert told("nightly", "--now") == "nightly: ran in 0.0 s.\n"
    assert slots_run() == [(None, 1, "successful")] * 2
    assert last_run().trigger == "manual"
    assert gate().next_slot == next_slot
    gates().update(last_started_at=None)
    assert ("ran its slot" in told("nightly")) is bool(slots)
    assert gate().next_slot == coming_slot(job)


def test_even_if_nobody_has_known_it_before() -> None:
    scheduled()
    assert told("nightly", "--now") == "nightly: ran in 0.0 s.\n"


def test_but_not_while_it_is_paused() -> None:
    due()
    gates().update(paused=True)
    assert told("nightly") == told("nightly", "--now") == "nightly: skipped, paused.\n"


def test_its_slots_follow_each_other_as_fast_as_they_are_due() -> None:
    """The usual interval is for jobs without a schedule."""
    job = due()
    told("nightly")
    let_pass(job, 1)
    assert "ran its slot" in told("nightly")


@pytest.mark.parametrize("options", [["--min-interval", "3600"], []])
def test_unless_an_interval_is_given(options: list[str]) -> None:
    job = due(min_interval=None if options else HOUR)
    told("nightly")
    let_pass(job, 1)
    assert told("nightly", *options) == "nightly: skipped, already ran.\n"
    assert gate().next_slot == newest_slot(job)
    assert "ran its slot" in told("nightly", "--min-interval", "0")


def test_each_slot_that_is_caught_up_is_a_line() -> None:
    job = due(3, catch_up="all")
    assert told("nightly").splitlines() == [
        f"nightly: ran its slot {newest_slot(job, back=back):%F %T} UTC in 0.0 s." for back in (2, 1, 0)
    ]


def test_with_the_arguments_that_are_given() -> None:
    calls: list[object] = []
    job: Any = singleton_job("nightly", schedule=hourly(ago=MINUTE), catch_up="all")(calls.append)
    fall_behind(job, 2)
    told("nightly", "--args", '["x"]')
    assert calls == ["x", "x"]


def test_a_slot_that_fails_is_status_1_and_the_next_one_is_run() -> None:
    job: Any = singleton_job("nightly", schedule=hourly(ago=MINUTE), catch_up="all")(fail_once())
    fall_behind(job, 3)
    output = Terminal()
    with pytest.raises(SystemExit) as ended:
        call_command("run_singleton", "nightly", stdout=output, stderr=output, no_color=True)
    assert ended.value.code == 1
    assert [line.split()[1].strip(",") for line in output.getvalue().splitlines()] == ["failed", "ran", "ran"]
    assert [status for *_, status in slots_run()] == ["failed", "successful", "successful"]


def fail_once() -> Callable[[], None]:
    calls: list[int] = []

    def job() -> None:
        calls.append(1)
        if len(calls) == 1:
            fail()

    return job


def test_a_slot_whose_lock_is_held_stays_due() -> None:
    job = due(lock="shop", catch_up="all", slots=2, on_held="raise")
    take("shop")
    assert told("nightly") == f"nightly: skipped, held by somebody else ({lock('shop').holder}).\n"
    assert gate().next_slot == newest_slot(job, back=1)


def test_a_dead_run_is_run_again() -> None:
    slot = die_running(due())
    assert told("nightly").startswith(f"nightly: ran its slot {slot:%F %T} UTC in ")
    assert last_run().attempt == 2


def test_slots_that_are_too_late_are_passed_by() -> None:
    job = due(3, catch_up="none")
    assert told("nightly") == f"nightly: skipped, not due (next: {coming_slot(job):%F %T} UTC).\n"
    assert gate().misfire_count == 3


@pytest.mark.parametrize(("error", "is_told"), [(5, False), (-5, False), (3600, True), (-3600, True)])
def test_a_clock_that_is_far_off_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int, is_told: bool
) -> None:
    due(slots=0)
    monkeypatch.setattr(acquire, "utc_now", lambda: utc_now() + timedelta(seconds=error))
    told("nightly", "--now")
    assert not caplog.records
    told("nightly")
    found = re.findall(r"This server's clock is (-?\d+) seconds off the database's", caplog.text)
    assert [abs(int(seconds) - error) < 60 for seconds in found] == [True] * is_told


@pytest.mark.parametrize(("zone", "shown"), [("Europe/Berlin", "Europe/Berlin"), ("Europe", "UTC")])
def test_the_list_tells_in_the_zone_of_the_project_when_each_job_is_due(
    zone: str, shown: str, settings: Settings
) -> None:
    """In UTC if this machine does not know that zone."""
    settings.TIME_ZONE = zone
    scheduled("hourly", schedule="5 * * * *", time_zone="Asia/Tokyo")
    scheduled("often", schedule=90 * MINUTE)
    listed = told("--list").splitlines()
    assert listed[0].startswith("hourly: ")
    for name, line, words in ("hourly", listed[1], "(Asia/Tokyo)"), ("often", listed[3], "Every 1 hour 30 minutes"):
        due = coming_slot(registry.get(name)).astimezone(ZoneInfo(shown))
        assert line.endswith(f"{words}; next: {due:%F %T %Z}")
    assert not gates().exists()


def test_the_list_as_json_has_the_counts_too(calls: list[object]) -> None:
    hourly = scheduled("hourly", schedule="5 * * * *", time_zone="Europe/Rome")
    told("nightly", "--args=[[1]]")
    due, count = coming_slot(hourly), gate().run_count
    jobs = {job["name"]: job for job in json.loads(told("--list", "--format=json"))["jobs"]}
    assert jobs["hourly"]["schedule"].endswith("(Europe/Rome)")
    assert datetime.fromisoformat(jobs["hourly"]["next_slot"]) == due
    assert jobs["hourly"]["run_count"] == 0
    assert jobs["nightly"] == {
        "name": "nightly",
        "lock": "sales",
        "description": "Counts the day's sales.",
        "path": jobs["nightly"]["path"],
        "schedule": "",
        "next_slot": None,
        "run_count": count,
    }


def test_the_list_can_be_quiet() -> None:
    scheduled("hourly", schedule="5 * * * *")
    assert told("--list", "-v0") == told("--list", "-v0", "--format=json") == ""


def test_a_format_is_only_for_the_list() -> None:
    with pytest.raises(CommandError, match="--format are only for --list"):
        told("nightly", "--format=json")


# --- shell commands


def test_a_command_is_run_under_the_lock() -> None:
    assert told("backup", "--", sys.executable, "-c", "pass").startswith("backup: ran in ")
    assert (last_run("backup").status, last_run("backup").trigger) == ("successful", "command")
    assert is_free("backup")


def test_the_lock_may_be_a_jobs_but_not_its_name(calls: list[object]) -> None:
    assert "ran in" in told("sales", "--", "true")
    with pytest.raises(CommandError, match=r"Give the command's lock a name that no job has.*lock=") as refusal:
        told("nightly", "--", "false")
    assert refusal.value.returncode == 2
    assert not gates().filter(name="nightly").exists()


def test_what_is_behind_the_dashes_is_the_commands_own() -> None:
    code = "import sys; sys.exit(sys.argv[1:] != ['--wait', '5', '--', '-v', '0', '--list'])"
    assert "ran in" in told("backup", "--", sys.executable, "-c", code, "--wait", "5", "--", "-v", "0", "--list")


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ([sys.executable, "-c", "exit(7)"], 7, "The command exited with status 7."),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 137, "The command exited with status 137."),
        (["no-such-command"], 127, "The command was not found: "),
        (["/"], 126, "The command cannot be executed: "),
    ],
)
def test_its_status_is_passed_on_as_a_shell_would_say_it(command: list[str], status: int, message: str) -> None:
    output = Terminal()
    with pytest.raises(SystemExit) as ended:
        call_command("run_singleton", "backup", "--", *command, stderr=output, no_color=True)
    assert ended.value.code == status
    assert output.getvalue().startswith(f"backup: {message}")
    assert last_run("backup").status == "failed"
    assert is_free("backup")


# --- languages, zones and ranges


def test_it_speaks_english_whatever_the_language_is(calls: list[object]) -> None:
    scheduled("weekly", schedule="0 8 * * 1", time_zone="Europe/Rome")
    with translation.override("de"):
        take("sales")
        assert told("nightly").startswith("nightly: skipped, held by somebody else (")
        assert "At 08:00 on Monday (Europe/Rome); next: " in told("--list")


def test_a_slot_that_was_run_is_shown_in_the_schedules_zone() -> None:
    slot = scheduled("weekly", schedule="0 8 * * *", time_zone="Asia/Tokyo")
    fall_behind(slot)
    assert re.search(r"weekly: ran its slot \d{4}-\d\d-\d\d 08:00:00 JST in", told("weekly"))


@pytest.mark.parametrize("words", [["nightly"], ["nightly", "--now", "-E", "75"], ["backup", "--", "false"]], ids=str)
def test_where_nothing_is_enabled_it_says_so_and_has_done_its_duty(words: list[str], settings: Settings) -> None:
    singleton_job("nightly")(lambda: pytest.fail("It ran."))
    settings.SINGLEJOB = {"ENABLED": False}
    out = StringIO()
    call_command("run_singleton", *words, verbosity=2, stdout=out, stderr=out)
    assert out.getvalue() == f"{words[0]}: skipped, disabled by SINGLEJOB['ENABLED'].\n"
    assert not gates().exists()
