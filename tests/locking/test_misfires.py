"""One warning for all jobs that misfired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_singlejob.jobs.slots import MisfireOutcome, Misfires
from django_singlejob.locking.position import MissedSlots, report_misfires

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

TEN, HOUR = datetime(2026, 11, 21, 10, tzinfo=UTC), timedelta(hours=1)
LATE = Misfires(TEN, TEN, 1, MisfireOutcome.LATE)
DROPPED = Misfires(TEN - 3 * HOUR, TEN - HOUR, 3, MisfireOutcome.DROPPED)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_of_a_single_job_it_says_what_happened(caplog: pytest.LogCaptureFixture) -> None:
    with MissedSlots():
        report_misfires("nightly", [DROPPED, LATE])
        assert warnings(caplog) == []
    assert warnings(caplog) == [
        (
            "1 job misfired: nightly (3 slots from 2026-11-21 07:00:00 UTC to 2026-11-21 09:00:00 UTC, not run; the "
            "slot 2026-11-21 10:00:00 UTC, run late)."
        )
    ]


def test_of_many_it_names_some(caplog: pytest.LogCaptureFixture) -> None:
    with MissedSlots():
        for number in range(25):
            report_misfires(f"job{number:02}", [DROPPED])
    (line,) = warnings(caplog)
    assert line.startswith("25 jobs misfired, 75 slots in all: job00 (3), job01 (3), ")
    assert line.endswith(", job09 (3), and 15 more.")


def test_each_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with MissedSlots() as missed:
        report_misfires("nightly", [LATE])
        missed.log()
        missed.log()
        report_misfires("hourly", [LATE])
    report_misfires("after", [LATE])
    assert [line.split("(")[0] for line in warnings(caplog)] == ["1 job misfired: nightly ", "1 job misfired: hourly "]


def test_also_if_the_command_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        with MissedSlots():
            report_misfires("nightly", [LATE])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(warnings(caplog)) == 1
