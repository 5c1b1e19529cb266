"""`run_singleton JOB --slot`: what it says. What it does is in `contract/test_slots_by_hand.py`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import current_run, singleton_job
from django_singlejob.models.jobs import gates
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import instant_in_words
from tests.contract.acts import (
    HOUR,
    fall_behind,
    gate,
    last_run,
    lock,
    newest_slot,
    run_slot,
    scheduled,
    take,
    without_seconds,
)
from tests.terminal import Terminal

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

SPRING, AUTUMN = "2026-03-29", "2026-10-25"


def told(*arguments: str, **options: Any) -> str:
    """The command's output."""
    output = Terminal()
    call_command("run_singleton", *arguments, stdout=output, stderr=output, no_color=True, **options)
    return without_seconds(output.getvalue())


def left(*arguments: str) -> tuple[object, str]:
    """Its exit status, if it is not 0, and its output."""
    output = Terminal()
    with pytest.raises(SystemExit) as ended:
        call_command("run_singleton", *arguments, stdout=output, stderr=output, no_color=True)
    return ended.value.code, output.getvalue()


def complaint(*arguments: str) -> str:
    with pytest.raises(CommandError) as refusal:
        told(*arguments)
    assert refusal.value.returncode in (1, 2)  # from the shell, argparse itself exits with 2
    assert not gates().exists()
    return str(refusal.value)


def have_job(schedule: str | timedelta = "0 3 * * *", **options: Any) -> list[datetime | None]:
    """A job in Berlin. Returns the slots that it will run."""
    seen: list[datetime | None] = []

    def note(*words: str) -> None:
        run = current_run()
        assert run is not None
        seen.append(run.slot)

    zone = None if isinstance(schedule, timedelta) else "Europe/Berlin"
    singleton_job("nightly", schedule=schedule, time_zone=zone, **options)(note)
    return seen


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- the run


@pytest.mark.parametrize(
    "when", ["2026-11-22T03:00", "2026-11-22 03:00", "2026-11-22T02:00Z", "2026-11-21T23:00-03:00"]
)
def test_the_slot_is_run_by_hand(when: str) -> None:
    seen = have_job()
    assert told("nightly", "--slot", when) == "nightly: ran its slot 2026-11-22 03:00:00 CET in 0.0 s.\n"
    assert seen == [utc("2026-11-22T02:00")]
    assert (last_run().slot, last_run().trigger) == (seen[0], "manual")
    assert gate().last_slot is None


def test_in_python_it_is_an_instant() -> None:
    seen = have_job(timedelta(hours=6))
    told("nightly", slot=datetime.fromisoformat("2026-11-22T18:00"))
    told("nightly", slot=utc("2026-11-22T12:00"))
    assert seen == [utc("2026-11-22T18:00"), utc("2026-11-22T12:00")]


def test_it_is_run_however_recently_the_job_ran_and_with_arguments() -> None:
    seen = have_job(min_interval=HOUR)
    for day in 20, 21, 22:
        assert "ran its slot" in told("nightly", f"--slot=2026-11-{day}T03:00", "--args", '["again"]')
    assert len(seen) == 3


def test_a_failure_of_it_is_told_as_any_other() -> None:
    singleton_job("nightly", schedule="@daily", time_zone="UTC")(lambda: 1 / 0)
    status, line = left("nightly", "--slot", "2026-11-22")
    assert (status, line.startswith("nightly: failed, ZeroDivisionError")) == (1, True)
    assert (last_run().slot, last_run().status) == (utc("2026-11-22"), "failed")


# --- what was found under the lock


def test_a_slot_that_was_run_successfully_is_skipped() -> None:
    have_job()
    words = ["nightly", "--slot", "2026-11-22T03:00"]
    told(*words)
    said = "nightly: skipped, the slot 2026-11-22 03:00:00 CET was run successfully. To run the job again, use --now.\n"
    assert told(*words) == said
    assert left(*words, "-E", "9") == (9, said)
    assert runs().count() == 1


def test_a_slot_that_the_schedule_has_not_given_up_is_an_error() -> None:
    job = scheduled()
    fall_behind(job)
    slot = newest_slot(job)
    status, line = left("nightly", "--slot", slot.isoformat(), "-E", "9")
    assert status == 2
    which = f"the slot {instant_in_words(slot)}"
    assert line == f"nightly: skipped, {which} is left to the schedule, which has not given it up. Leave out --slot.\n"
    run_slot(job)
    assert "was run successfully" in told("nightly", "--slot", slot.isoformat())


def test_a_paused_job_and_a_held_lock_are_told_as_with_now() -> None:
    have_job()
    lease = take()
    held = f"nightly: skipped, held by somebody else ({lock().holder}).\n"
    assert told("nightly", "--slot=2026-11-22T03:00") == held == told("nightly", "--now")
    lease.release()
    gates().update(paused=True)
    assert told("nightly", "--slot=2026-11-22T03:00") == "nightly: skipped, paused.\n" == told("nightly", "--now")


# --- what is not a past slot

AROUND = "The slots around it are 2026-11-22T03:00:00+01:00 and 2026-11-23T03:00:00+01:00."


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("2026-11-22T03:01", f"2026-11-22T03:01:00 is not a slot of the job 'nightly'. {AROUND}"),
        ("2026-11-22T03:00Z", f"2026-11-22T03:00:00+00:00 is not a slot of the job 'nightly'. {AROUND}"),
        ("2126-11-22T03:00", "2126-11-22T03:00:00 is to come. Use a past slot or, to run 'nightly' at once, --now."),
        ("9998-12-31", "9998-12-31T00:00:00 is to come. Use a past slot or, to run 'nightly' at once, --now."),
        ("9999-12-31", "argument --slot: '9999-12-31' is too far away."),
        ("tonight", "argument --slot: 'tonight' is not an instant, such as 2026-11-22T03:00."),
        ("03:00", "argument --slot: '03:00' is not an instant, such as 2026-11-22T03:00."),
    ],
)
def test_what_is_not_a_past_slot_is_a_usage_error(when: str, message: str) -> None:
    seen = have_job()
    assert complaint("nightly", "--slot", when).removeprefix("Error: ") == message
    assert not seen


def test_a_slot_of_the_year_1000_is_found() -> None:
    seen = have_job(timedelta(days=1))
    told("nightly", "--slot", "1000-01-02")
    assert seen == [utc("1000-01-02")]


def test_a_job_without_a_schedule_has_no_slots() -> None:
    singleton_job("nightly")(print)
    message = "The job 'nightly' has no schedule, so it has no slots. To run it, use --now."
    assert complaint("nightly", "--slot", "2026-11-22T03:00") == message


# --- clocks change


def test_an_hour_that_is_left_out_has_no_slots() -> None:
    seen = have_job("30 2 * * *")
    assert "03:00:00+02:00 and" in complaint("nightly", "--slot", f"{SPRING}T02:30")
    told("nightly", "--slot", f"{SPRING}T03:00")
    assert seen == [utc(f"{SPRING}T01:00")]


def test_of_an_hour_that_comes_twice_a_slot_is_named_by_its_offset() -> None:
    seen = have_job("*/30 * * * *")
    assert complaint("nightly", "--slot", f"{AUTUMN}T02:30") == (
        f"{AUTUMN}T02:30:00 comes twice, because clocks are set back then. "
        f"Use {AUTUMN}T02:30:00+02:00 or {AUTUMN}T02:30:00+01:00."
    )
    for offset in "+01:00", "+02:00":
        told("nightly", "--slot", f"{AUTUMN}T02:30{offset}")
    assert seen == [utc(f"{AUTUMN}T01:30"), utc(f"{AUTUMN}T00:30")]


def test_unless_the_job_runs_only_the_first_time() -> None:
    seen = have_job("30 2 * * *")
    told("nightly", "--slot", f"{AUTUMN}T02:30")
    assert seen == [utc(f"{AUTUMN}T00:30")]


# --- other options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nightly", "--now"], "--now has no effect with --slot. Remove one of them."),
        (["nightly", "--standby"], "--standby has no effect with --slot. Remove one of them."),
        (["nightly", "--min-interval=0"], "--min-interval has no effect with --slot. Remove one of them."),
        (["--list"], "--slot is only for jobs that have a schedule: JOB --slot 2026-11-22T03:00"),
        (["backup", "--", "true"], "--slot is only for jobs that have a schedule: JOB --slot 2026-11-22T03:00"),
        (["-m", "report", "today"], "--slot is only for jobs that have a schedule: JOB --slot 2026-11-22T03:00"),
    ],
)
def test_it_excludes_them(words: list[str], message: str) -> None:
    seen = have_job()
    assert complaint("--slot=2026-11-22T03:00", *words).removeprefix("Error: ") == message
    assert not seen
