"""``singleton_ledger``: what it prints, and its exit status."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import singleton_job
from django_singlejob.models.jobs import database_now
from tests.contract.acts import HOUR, MINUTE, SECOND, scheduled
from tests.monitoring.test_ledger import NIGHT, all_ran, changed, night, noted, ran

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

THAT_NIGHT = ("--since", "2025-10-20T00:00+00:00", "--until", "2025-10-21T00:00+00:00")


def told(*words: str, **options: Any) -> tuple[int, list[str]]:
    """The exit status, and the lines."""
    out, status = StringIO(), 0
    try:
        call_command("singleton_ledger", *words, stdout=out, **options)
    except SystemExit as done:
        status = int(str(done.code))
    return status, out.getvalue().splitlines()


def test_if_all_is_well_a_job_has_one_line() -> None:
    scheduled(schedule="@hourly")
    all_ran(night())
    assert told(*THAT_NIGHT) == (0, ["nightly: 24 ran once, 0 twice, 0 did not."])


def test_each_slot_that_did_not_run_has_a_reason() -> None:
    scheduled(schedule="*/5 * * * *", time_zone="Europe/Berlin")
    gone = [NIGHT + HOUR + number * 5 * MINUTE for number in range(5)]
    all_ran(night("*/5 * * * *"), *gone)
    noted("paused", gone[0] - 20 * MINUTE, by="admin", reason="supplier\x1b[31m down")
    noted("resumed", gone[-1] + 4 * MINUTE)
    status, (summary, paused) = told("nightly", *THAT_NIGHT)
    assert (status, summary) == (0, "nightly: 283 ran once, 0 twice, 5 did not (5 paused).")
    assert paused == (
        "  2025-10-20 03:00:00 CEST to 2025-10-20 03:20:00 CEST, 5 slots: the job was paused from 2025-10-20 02:40:00 "
        "CEST to 2025-10-20 03:24:00 CEST by admin (supplier\\x1b[31m down)."
    )


def test_a_slot_that_was_missed_is_exit_status_1() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + 3 * HOUR)
    noted("missed", NIGHT + 4 * HOUR, first_slot=NIGHT + 3 * HOUR, last_slot=NIGHT + 3 * HOUR, details="dropped")
    ran(NIGHT + 90 * MINUTE)
    status, (summary, unknown, missed) = told(*THAT_NIGHT)
    assert status == 1
    assert summary == "nightly: 23 ran once, 0 twice, 1 did not (1 missed); the schedule of 1 more is not known."
    assert unknown == "  2025-10-20 01:30:00 UTC: schedule not known."
    assert missed.startswith("  2025-10-20 03:00:00 UTC: was given up at 2025-10-20 04:00:00 UTC")


def test_a_slot_that_ran_twice_is_exit_status_2_whatever_else_was_missed() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + 2 * HOUR, NIGHT + 5 * HOUR)
    ran(NIGHT + 2 * HOUR, status="failed", error="KeyError")
    ran(NIGHT + 4 * HOUR, hostname="web-2")
    status, (summary, failed, twice, _missed) = told(*THAT_NIGHT)
    assert (status, summary) == (2, "nightly: 22 ran once (1 failed), 1 twice, 1 did not (1 missed).")
    assert failed == "  2025-10-20 02:00:00 UTC: was run at 2025-10-20 02:00:01 UTC on web-1: failed. KeyError"
    assert twice.startswith("  2025-10-20 04:00:00 UTC: ran twice. Run ")
    assert "web-2" in twice


def test_what_was_cut_off_for_good_was_missed() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + 2 * HOUR)
    ran(NIGHT + 2 * HOUR, status="abandoned")
    status, (summary, _) = told(*THAT_NIGHT)
    assert (status, summary) == (1, "nightly: 24 ran once (1 cut off), 0 twice, 0 did not.")


def test_it_says_where_the_record_begins() -> None:
    scheduled(schedule="@hourly")
    changed(NIGHT + 6 * HOUR, "", "0 * * * *", first=NIGHT + 7 * HOUR)
    all_ran(night(begin=NIGHT + 7 * HOUR))
    assert told(*THAT_NIGHT) == (
        0,
        ["nightly: 17 ran once, 0 twice, 0 did not.", "  the record begins at 2025-10-20 07:00:00 UTC."],
    )


def test_without_a_record_nothing_was_missed() -> None:
    scheduled(schedule="@hourly")
    assert told() == (0, ["nightly: no slot is recorded yet."])


def test_of_a_job_that_is_due_each_second_the_newest_slots_are_listed() -> None:
    singleton_job("nightly", schedule=SECOND)(print)
    ran(NIGHT)
    status, (summary, cut, missed) = told(*THAT_NIGHT)
    assert (status, summary) == (1, "nightly: 0 ran once, 0 twice, 50,000 did not (50,000 missed).")
    assert cut == "  before 2025-10-20 10:06:40 UTC: there are too many slots. Use a shorter time."
    assert missed.startswith("  2025-10-20 10:06:40 UTC to 2025-10-20 23:59:59 UTC, 50,000 slots: ")


def test_what_is_left_out_is_counted() -> None:
    scheduled(schedule="* * * * *", catch_up="all")
    all_ran(night("*/2 * * * *"))
    _, lines = told(*THAT_NIGHT)
    assert lines[-1] == "  670 more are left out. Use a shorter time."
    assert len(lines) == 1 + 50 + 1


def test_where_no_slot_was_before_the_first_run_nothing_is_missing() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(begin=NIGHT + HOUR))
    since = (NIGHT + MINUTE).isoformat()
    status, (summary,) = told("nightly", "--since", since, *THAT_NIGHT[2:])
    assert (status, summary) == (0, "nightly: 23 ran once, 0 twice, 0 did not.")


def test_as_json() -> None:
    scheduled(schedule="@hourly")
    all_ran(night(), NIGHT + 3 * HOUR)
    status, lines = told("--format", "json", *THAT_NIGHT)
    found = json.loads("\n".join(lines))
    (job,) = found["jobs"]
    (stretch,) = job.pop("stretches")
    counts = {name: count for name, count in job.pop("counts").items() if count}
    assert (status, found["since"], counts) == (1, "2025-10-20T00:00:00+00:00", {"ran": 23, "missed": 1})
    assert job == {
        "name": "nightly",
        "zone": "UTC",
        "since": "2025-10-20T00:00:00+00:00",
        "is_cut": False,
        "left_out": 0,
    }
    assert (stretch["first"], stretch["number"]) == ("2025-10-20T03:00:00+00:00", 1)
    assert (stretch["outcome"], stretch["cause"]) == ("missed", "not_known")


def test_the_default_is_the_last_day_of_all_jobs_with_a_schedule() -> None:
    for name in "hourly", "nightly":
        scheduled(name, schedule="@hourly")
    singleton_job("manual")(print)
    now = database_now()
    for name in "hourly", "nightly":
        all_ran(night(begin=now - 30 * HOUR, until=now), job_name=name)
    each = [f"{name}: 24 ran once, 0 twice, 0 did not." for name in ("hourly", "nightly")]
    assert told() == (0, [*each, "In all: 48 ran once, 0 twice, 0 did not."])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tik"], "There is no job 'tik'"),
        (["--since", "2025-10-20", "--until", "2025-10-20"], "--since must be earlier than --until"),
    ],
)
def test_wrong_usage_is_exit_status_2_and_prints_nothing(words: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as refusal:
        told(*words)
    assert refusal.value.returncode == 2
