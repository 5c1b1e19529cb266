"""`singleton_worker`, called in this process; `processes/` has what cron or systemd would start."""

from __future__ import annotations

import logging
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_singlejob import singleton_job
from django_singlejob.exceptions import DatabaseUnusable, JobInterrupted, Lack
from django_singlejob.jobs import registry
from django_singlejob.locking import acquire
from django_singlejob.locking.request import Reason, Refusal
from django_singlejob.models import JobStatus
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.running import runner
from tests.contract.acts import (
    HOUR,
    MINUTE,
    coming_slot,
    die_running,
    everything,
    fall_behind,
    gate,
    hourly,
    last_run,
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
    from collections.abc import Callable

    from pytest_django import Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])


def called(**options: Any) -> tuple[str, str]:
    """The command's standard output and standard error."""
    said, complained = Terminal(), Terminal()
    call_command("singleton_worker", "--once", stdout=said, stderr=complained, no_color=True, **options)
    return without_seconds(said.getvalue()), complained.getvalue()


def called_and_left(**options: Any) -> tuple[Any, str]:
    """The exit status, which must not be zero, and the command's message."""
    output = Terminal()
    with pytest.raises(SystemExit) as left:
        call_command("singleton_worker", "--once", stdout=output, stderr=output, no_color=True, **options)
    return left.value.code, output.getvalue()


def due(name: str = "nightly", body: Callable[[], object] | None = None, slots: int = 1, **settings: Any) -> Any:
    """A job with `slots` due slots. Without a body, it returns its run."""
    if body is None:
        job = scheduled(name, **settings)
    else:
        job = singleton_job(name, **{"schedule": hourly(ago=30 * MINUTE)} | settings)(body)
    fall_behind(job, slots)
    return job


def fail() -> None:
    raise ZeroDivisionError("five")


def test_each_job_that_is_due_is_run_and_a_line_is_said() -> None:
    job = due()
    due("hourly", slots=0)
    said, complained = called()
    assert said == f"nightly: ran its slot {newest_slot(job):%F %T} UTC in 0.0 s.\n"
    assert complained == ""
    assert slots_run() == [(newest_slot(job), 1, "successful")]
    assert called() == ("", "")


@pytest.mark.parametrize(("mode", "is_told"), [("once", False), ("drain", False), ("max_jobs", True)])
def test_a_pass_writes_nothing_to_cron_unless_something_is_wrong_and_a_worker_has_a_log(
    mode: str, is_told: bool
) -> None:
    due()
    said, complained = StringIO(), StringIO()
    terms: dict[str, Any] = {mode: True if mode != "max_jobs" else 1}
    call_command("singleton_worker", stdout=said, stderr=complained, **terms)
    assert slots_run()
    assert bool(said.getvalue()) is is_told
    assert complained.getvalue() == ""


def test_a_failure_is_one_paragraph_also_without_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    due("broken", fail, misfire_grace=HOUR)
    logging.getLogger().handlers, before = [], logging.getLogger().handlers
    try:
        with pytest.raises(SystemExit):
            call_command("singleton_worker", "--once")
    finally:
        logging.getLogger().handlers = before
    said, complained = capfd.readouterr()
    assert said == ""
    assert complained.splitlines() == [
        "broken: failed, ZeroDivisionError: five (traceback: in the admin under Runs)",
        f'  {__file__}, line {fail.__code__.co_firstlineno + 1}, in fail: raise ZeroDivisionError("five")',
        "  More: manage.py singleton_why broken",
    ]


def test_all_jobs_that_misfired_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    for name in "backup", "mail", "report":
        due(name, slots=3, misfire_grace=HOUR)
    called()
    warnings = [record.getMessage() for record in caplog.records if "misfired" in record.getMessage()]
    assert warnings == ["3 jobs misfired, 6 slots in all: backup (2), mail (2), report (2)."]


def test_if_no_job_is_registered_a_pass_says_so(settings: Settings) -> None:
    settings.TASKS = {}
    assert called() == ("", f"{registry.NO_JOB}\n")
    assert called(verbosity=0) == ("", "")
    settings.TASKS = {"default": {"BACKEND": "django_singlejob.backends.SingleJobBackend"}}
    assert called() == ("", "")


def test_what_others_have_is_no_news_unless_asked() -> None:
    due(lock="shop")
    take("shop")
    assert called() == ("", "")
    said, _ = called(verbosity=2)
    assert said == f"nightly: skipped, held by somebody else ({lock('shop').holder}).\n"


def test_nor_is_what_is_too_late_to_be_run(caplog: pytest.LogCaptureFixture) -> None:
    job = due(catch_up="none", slots=3)
    assert called() == ("", "")
    assert "3 slots" in caplog.text
    assert gate().next_slot == coming_slot(job)


def test_verbosity_0_is_silent() -> None:
    due()
    due("fails", fail)
    assert called_and_left(verbosity=0) == (1, "")
    assert last_run("nightly").status == "successful"


# --- failures


def test_a_failure_is_status_1_and_stops_no_other() -> None:
    due("fails", fail, schedule=hourly(ago=40 * MINUTE))
    due(schedule=hourly(ago=20 * MINUTE))
    status, said = called_and_left()
    failed, ran = said.splitlines()
    assert status == 1
    assert failed == "fails: failed, ZeroDivisionError: five (traceback: in the admin under Runs)"
    assert ran.startswith("nightly: ran its slot ")


def test_the_first_status_that_is_none_is_the_commands() -> None:
    def lose_the_lock() -> None:
        gates().filter(name="lost").update(token=None)

    due("lost", lose_the_lock, schedule=hourly(ago=50 * MINUTE))
    due("fails", fail, schedule=hourly(ago=40 * MINUTE))
    due(schedule=hourly(ago=20 * MINUTE))
    status, said = called_and_left()
    assert status == 75
    assert [line.partition(":")[0] for line in said.splitlines()] == ["lost", "fails", "nightly"]


@pytest.mark.parametrize(("status", "word"), [(0, "ran"), (None, "ran"), (3, "failed")])
def test_a_job_that_exits_stops_no_other(status: int | None, word: str) -> None:
    due("leaves", lambda: sys.exit(status), schedule=hourly(ago=40 * MINUTE))
    due(schedule=hourly(ago=20 * MINUTE))
    if status:
        code, said = called_and_left()
        assert code == 1
    else:
        said, _ = called()
    assert [line.split()[1].strip(".,") for line in said.splitlines()] == [word, "ran"]


def test_a_job_that_wants_an_exception_when_its_lock_is_held_is_skipped_all_the_same() -> None:
    due(on_held="raise", lock="shop")
    take("shop")
    assert called() == ("", "")


def test_one_that_waits_for_its_lock_makes_no_other_wait() -> None:
    """Its slot stays due: the next pass comes soon enough."""
    due(wait=HOUR, lock="shop", schedule=hourly(ago=40 * MINUTE))
    due("another", schedule=hourly(ago=20 * MINUTE))
    take("shop")
    said, _ = called()
    assert said.startswith("another: ran")


# --- the end


@pytest.mark.usefixtures("as_program")
def test_a_signal_ends_the_job_and_the_pass() -> None:
    def be_told() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        work_until_ended()

    due("told", be_told, schedule=hourly(ago=40 * MINUTE))
    due(schedule=hourly(ago=20 * MINUTE))
    status, said = called_and_left()
    assert (status, said) == (128 + signal.SIGTERM, "told: interrupted by signal 15.\n")
    assert last_run("told").status == "interrupted"
    assert slots_run("nightly") == []


@pytest.mark.usefixtures("as_program")
def test_a_signal_between_two_jobs_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    due("first", schedule=hourly(ago=40 * MINUTE))
    second = due("second", schedule=hourly(ago=20 * MINUTE))
    real = acquire.acquire

    def told_meanwhile(request: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(request)

    monkeypatch.setattr("django_singlejob.running.runner.acquire", told_meanwhile)
    status, said = called_and_left()
    assert (status, said) == (128 + signal.SIGTERM, "first: interrupted by signal 15.\n")
    assert slots_run("second") == []
    assert gate("second").next_slot == newest_slot(second)


@pytest.mark.usefixtures("as_program")
def test_a_signal_does_not_hide_that_a_job_has_failed_before() -> None:
    due("fails", fail, schedule=hourly(ago=40 * MINUTE))
    due("last", end_it, schedule=hourly(ago=20 * MINUTE))
    status, said = called_and_left()
    assert status == 1
    assert said.endswith("last: interrupted by signal 15.\n")


def test_one_that_cannot_be_decided_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal(Reason.UNDECIDED, detail="others were in the way")
    monkeypatch.setattr(runner, "acquire", lambda request: refusal)
    due()
    assert called_and_left() == (69, "nightly: undecided, others were in the way\n")


@committed
@pytest.mark.usefixtures("breakable_connection")
def test_without_a_database_it_says_so(database_away: Away) -> None:
    due()
    with database_away(), pytest.raises(CommandError, match="The database does not answer") as refusal:
        called()
    assert refusal.value.returncode == 69


@committed
def test_another_error_of_the_database_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_singlejob.models.JobStatus._meta.db_table", "no_such_table")
    with pytest.raises(Exception, match="no_such_table"):
        called()
    for field in JobStatus._meta.fields:
        vars(field).pop("cached_col", None)  # Django may have kept the table's name


def test_settings_that_cannot_work_have_a_status_of_their_own(settings: Settings) -> None:
    due(catch_up="all")
    before = everything()
    settings.SINGLEJOB = {"HISTORY_DAYS": -1}
    with pytest.raises(CommandError, match="HISTORY_DAYS") as refusal:
        called()
    assert refusal.value.returncode == 78
    settings.SINGLEJOB = {}
    assert everything() == before


# --- one-offs


def test_a_line_is_said_of_each_one_off() -> None:
    singleton_job("mail")(len).enqueue("hello")
    said, complained = called()
    assert said == "mail: ran in 0.0 s.\n"
    assert complained == ""
    assert (one_offs().get().status, one_offs().get().result) == ("done", 5)


def test_those_of_other_queues_are_left_to_other_workers() -> None:
    job = singleton_job("mail")(len)
    for name in "slow", "fast", "default":
        job.using(queue_name=name).enqueue("hello")
    said, _ = called(queues=["fast", "slow"])
    assert said.count("mail: ran") == 2
    assert one_offs().waiting().get().queue_name == "default"


# --- the loop


def worked(**options: Any) -> tuple[str, str]:
    """What the command prints about its runs until it exits with status 0, and its standard error."""
    said, complained = Terminal(), Terminal()
    looking = {"interval": timedelta(seconds=0.01)} | options
    call_command("singleton_worker", stdout=said, stderr=complained, no_color=True, **looking)
    return without_seconds(behind_the_first_line(said)), complained.getvalue()


def behind_the_first_line(said: Terminal) -> str:
    first, _, rest = said.getvalue().partition("\n")
    assert first.startswith("django-singlejob ")
    return rest


def end_it() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("as_program")
def test_without_once_it_goes_on_until_it_is_told_to_end_which_is_no_failure() -> None:
    def enqueue_the_last() -> None:
        last.enqueue()

    due(body=enqueue_the_last)
    last = singleton_job("last")(end_it)
    said, complained = worked()
    assert said.startswith("nightly: ran its slot ")
    assert complained == "last: interrupted by signal 15.\n"
    assert slots_run()[0][1:] == (1, "successful")
    assert (one_offs().get().status, one_offs().get().attempt) == ("waiting", 0)


@pytest.mark.usefixtures("as_program")
def test_a_failure_does_not_end_it() -> None:
    due("broken", fail, schedule=hourly(ago=40 * MINUTE))
    due("last", end_it, schedule=hourly(ago=20 * MINUTE))
    _, complained = worked()
    assert complained.splitlines()[0].startswith("broken: failed, ZeroDivisionError: five")


@pytest.mark.parametrize("interval", [timedelta(seconds=0.01), timedelta(microseconds=1)], ids=["often", "always"])
def test_it_ends_after_so_many_runs(interval: timedelta) -> None:
    job = singleton_job("mail")(len)
    for _ in range(3):
        job.enqueue("hello")
    said, _ = worked(max_jobs=2, interval=interval)
    assert said.count("mail: ran") == 2
    assert one_offs().waiting().count() == 1


def test_what_was_skipped_is_no_run() -> None:
    singleton_job("mail")(len).using(priority=1).enqueue("hello")
    singleton_job("other")(len).enqueue("hello")
    take("mail")
    said, _ = worked(max_jobs=1)
    assert said == "other: ran in 0.0 s.\n"


@pytest.mark.parametrize(
    ("modes", "is_lasting"), [(["--once"], False), (["--drain"], False), ([], True)], ids=["once", "drain", "endless"]
)
def test_a_database_that_does_not_permit_it_is_the_status(
    monkeypatch: pytest.MonkeyPatch, modes: list[str], is_lasting: bool
) -> None:
    def refuse(request: Any) -> Any:
        raise DatabaseUnusable("It is read-only.", job_name="mail", lack=Lack.WRITES, is_lasting=is_lasting)

    monkeypatch.setattr(runner, "acquire", refuse)
    singleton_job("mail")(len).enqueue("hello")
    with pytest.raises(SystemExit) as left:
        call_command("singleton_worker", *modes, stdout=Terminal(), stderr=Terminal())
    assert left.value.code == 77


# --- new code


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> list[str]:
    """What happened before each restart. The code changes while the job ``deploy`` runs."""
    settings.DEBUG = True
    happened: list[str] = []
    singleton_job("deploy")(lambda: happened.append("deployed")).enqueue()
    monkeypatch.setattr("django_singlejob.process.code.Code.has_changed_lately", lambda _: bool(happened))
    monkeypatch.setattr(
        "django_singlejob.management.commands.singleton_worker.start_anew", lambda: happened.append("restarted")
    )
    return happened


def test_it_restarts_when_the_code_has_changed(restarts: list[str]) -> None:
    said, _ = worked()
    assert said.endswith("The code has changed. The worker restarts.\n")
    assert restarts == ["deployed", "restarted"]


@pytest.mark.parametrize("mode", ["once", "drain"])
def test_one_that_ends_by_itself_does_not(restarts: list[str], mode: str) -> None:
    call_command("singleton_worker", f"--{mode}", stdout=Terminal())
    assert restarts == ["deployed"]


@pytest.mark.usefixtures("as_program")
def test_nor_does_one_that_is_told_to_end(restarts: list[str]) -> None:
    singleton_job("last")(end_it).using(priority=1).enqueue()
    worked()
    assert restarts == []


@pytest.mark.parametrize(("is_debug", "no_reload"), [(False, False), (True, True)])
def test_nor_where_debug_is_off_or_if_it_is_not_wanted(
    restarts: list[str], settings: Settings, is_debug: bool, no_reload: bool
) -> None:
    settings.DEBUG = is_debug
    worked(max_jobs=1, no_reload=no_reload)
    assert restarts == ["deployed"]


@pytest.mark.parametrize("option", ["--interval=-1", "--interval=often", "--max-jobs=-1", "--max-jobs=many"])
def test_what_is_no_number_is_refused(option: str) -> None:
    with pytest.raises(CommandError, match="is no"):
        call_command("singleton_worker", option)


@pytest.mark.parametrize(
    ("mode", "option"),
    [
        *[
            ("once", option)
            for option in ("drain", "processes=8", "threads=8", "grace=5", "interval=5", "max-jobs=5", "no-reload")
        ],
        *[("drain", option) for option in ("interval=5", "no-reload")],
    ],
)
def test_what_a_mode_would_ignore_is_refused(mode: str, option: str) -> None:
    name, _, value = option.partition("=")
    refusal = f"--{name} has no effect with --{mode}. Remove one of them."
    with pytest.raises(CommandError, match=refusal):
        call_command("singleton_worker", f"--{mode}", f"--{option}")
    with pytest.raises(CommandError, match=refusal):
        call_command("singleton_worker", **{mode: True, name.replace("-", "_"): int(value) if value else True})


@pytest.mark.parametrize("mode", ["once", "drain"])
def test_none_is_an_option_that_is_not_given(mode: str) -> None:
    options: dict[str, Any] = dict.fromkeys(["processes", "threads", "grace", "interval", "max_jobs"])
    said = Terminal()
    call_command("singleton_worker", **{mode: True}, no_reload=False, stdout=said, **options)
    assert (behind_the_first_line(said) if mode == "drain" else said.getvalue()) == ""


# --- until nothing is due


def drained(**options: Any) -> tuple[str, str]:
    """What the command prints about its runs until it exits with status 0, and its standard error."""
    said, complained = Terminal(), Terminal()
    call_command("singleton_worker", "--drain", stdout=said, stderr=complained, no_color=True, **options)
    return without_seconds(behind_the_first_line(said)), complained.getvalue()


def first_line(**options: Any) -> str:
    said = Terminal()
    call_command("singleton_worker", "--drain", stdout=said, **options)
    return said.getvalue()


def test_its_first_line_says_what_it_works_with(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled()
    name, vendor = connection.settings_dict["NAME"], connection.vendor
    monkeypatch.setattr("django_singlejob.management.commands.singleton_worker.version", lambda name: "1.2")
    assert first_line() == (
        "django-singlejob 1.2: this process, all queues, 1 job (1 with a schedule), "
        f"database 'default' ({vendor}, {name}).\n"
    )
    singleton_job("on_demand")(print)
    assert "queues 'mail', 'media', 2 jobs (1 with a schedule), " in first_line(queues=["mail", "media"])


def test_it_can_be_kept_quiet() -> None:
    assert first_line(verbosity=0) == ""


def test_the_first_line_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "NAME", "postgres://shop:secret@db/shop")
    assert "(" + connection.vendor + ", postgres://***@db/shop)." in first_line()


def test_a_package_that_is_copied_into_a_project_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("django_singlejob.management.commands.singleton_worker.version", fail)
    assert first_line().startswith("django-singlejob (unknown version): this process")


def test_nobody_has_to_read_the_first_line() -> None:
    closed = Terminal()
    closed.close()
    call_command("singleton_worker", "--drain", stdout=closed)
    assert closed.closed


def test_nothing_to_drain() -> None:
    assert drained() == ("", "")
    assert not locks().exists()
    assert not runs().exists()


@pytest.mark.slow
def test_it_ends_when_nothing_is_due_and_what_comes_due_meanwhile_is_run_too() -> None:
    def enqueue_second() -> None:
        second.enqueue("hello")

    def enqueue_first() -> None:
        first.enqueue()

    first = singleton_job("first")(enqueue_second)
    second = singleton_job("second")(len)
    due(body=enqueue_first)
    due("three", catch_up="all", slots=3)
    for _ in range(3):
        first.enqueue()
    later = second.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue("later")
    said, complained = drained()
    words = [line.split(":")[0] for line in (said + complained).splitlines()]
    assert {name: words.count(name) for name in set(words)} == {"nightly": 1, "three": 3, "first": 4, "second": 4}
    assert one_offs().waiting().get() == later


def test_a_failure_is_no_status_of_a_drain() -> None:
    due("fails", fail, schedule=hourly(ago=40 * MINUTE))
    singleton_job("mail")(len).enqueue("hello")
    said, complained = drained()
    assert said == "mail: ran in 0.0 s.\n"
    assert complained.startswith("fails: failed, ZeroDivisionError: five")


def test_one_that_cannot_tell_whether_a_lock_is_free_has_not_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal(Reason.UNDECIDED, detail="others were in the way")
    monkeypatch.setattr(runner, "acquire", lambda request: refusal)
    singleton_job("mail")(len).enqueue("hello")
    with pytest.raises(SystemExit) as left:
        drained()
    assert left.value.code == 69


def test_a_job_that_interrupts_itself_is_no_status_of_a_drain() -> None:
    def interrupt_itself() -> None:
        raise JobInterrupted

    due("leaves", interrupt_itself)
    assert drained()[1].startswith("leaves: interrupted")


def test_what_others_hold_or_is_paused_does_not_keep_it() -> None:
    for name in "held", "paused", "free":
        singleton_job(name)(len).enqueue("hello")
    due("night", lock="held")
    take("held")
    gates().remember("paused")
    gates().filter(name="paused").update(paused=True)
    said, complained = drained()
    assert (said, complained) == ("free: ran in 0.0 s.\n", "")
    assert one_offs().waiting().count() == 2


def test_a_job_that_is_always_due_does_not_keep_it() -> None:
    always: Any = singleton_job("always", schedule=hourly(ago=30 * MINUTE))(lambda: fall_behind(always))
    fall_behind(always)
    said, _ = drained()
    assert said.count("always: ran") == 1


def test_a_drain_ends_after_so_many_runs_if_that_is_wanted() -> None:
    job = singleton_job("mail")(len)
    for _ in range(3):
        job.enqueue("hello")
    said, _ = drained(max_jobs=2)
    assert said.count("mail: ran") == 2


def test_the_lock_of_a_dead_holder_is_waited_for() -> None:
    slot = die_running(due())
    said, _ = drained()
    assert said.startswith(f"nightly: ran its slot {slot:%F %T} UTC in ")


@pytest.mark.usefixtures("as_program")
def test_a_drain_that_was_told_to_end_has_not_drained() -> None:
    last = singleton_job("last")(end_it)
    for _ in range(2):
        last.enqueue()
    with pytest.raises(SystemExit) as left:
        drained()
    assert left.value.code == 128 + signal.SIGTERM
    assert one_offs().waiting().count() == 2


@committed
@pytest.mark.usefixtures("breakable_connection")
def test_a_drain_without_a_database_says_so(database_away: Away) -> None:
    due()
    with database_away(), pytest.raises(CommandError, match="The database does not answer") as refusal:
        drained()
    assert refusal.value.returncode == 69


@pytest.mark.parametrize("mode", ["once", "drain"])
def test_where_nothing_is_enabled_a_pass_says_so_but_not_to_cron(mode: str, settings: Settings) -> None:
    settings.SINGLEJOB = {"ENABLED": False}
    said = []
    for verbosity in 1, 2:
        out = StringIO()
        call_command("singleton_worker", **{mode: True}, verbosity=verbosity, stdout=out)
        said.append("SINGLEJOB['ENABLED'] is False: this worker runs nothing.\n" in out.getvalue())
    assert said == [False, True]
