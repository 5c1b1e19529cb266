"""`singleton_schedule`: what it shows, what it changes, and what it refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import singleton_job
from django_singlejob.control.schedules import Own
from django_singlejob.jobs.schedule import parse
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.monitoring.verdict import judge
from django_singlejob.to_come import next_clock_change, preview
from tests.contract.acts import everything, fall_behind, gate, scheduled, ticked

pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.on_database("sqlite"),  # tests/contract/test_own_schedule.py is on each of them
]
pytest_plugins = "tests.fixtures"


def called(*arguments: str, status: int = 0) -> str:
    said = StringIO()
    if status:
        with pytest.raises(SystemExit) as left:
            call_command("singleton_schedule", *arguments, stdout=said, stderr=said)
        assert left.value.code == status
    else:
        call_command("singleton_schedule", *arguments, stdout=said, stderr=said)
    return said.getvalue()


def refused(*arguments: str) -> str:
    before = everything()
    with pytest.raises(CommandError) as error:
        call_command("singleton_schedule", *arguments, stdout=StringIO(), stderr=StringIO())
    assert everything() == before
    assert error.value.returncode in (1, 2)  # 1: of Django's parser
    return str(error.value)


def job_at(schedule: str = "30 2 1 1 *", **terms: Any) -> Any:
    job = scheduled(schedule=schedule, **terms)
    ticked()
    return job


def test_it_gives_the_job_another_schedule_and_says_so() -> None:
    job_at(time_zone="Europe/Rome")
    said = called("nightly", "0 4 * * *", "--because", "the supplier is late")
    assert said.startswith("nightly: from At 02:30 on January 1 (Europe/Rome) to At 04:00 every day (Europe/Rome)\n")
    assert said.endswith("Changed.\n")
    assert Own.of(gate()) == ("0 4 * * *", "Europe/Rome")
    note = notes().get(kind=NoteKind.SCHEDULE_EDITED)
    assert note.reason == "the supplier is late"
    assert note.by
    assert called("nightly", "0 4 * * *", "--because", "again").endswith("Nothing to change.\n")


def test_reset_it_follows_the_code() -> None:
    job_at()
    called("nightly", "@daily", "--because", "trial")
    assert called("nightly", "--reset", "--because", "over").endswith("Reset.\n")
    assert Own.of(gate()) == ("", "")
    assert gate().schedule == "30 2 1 1 *"


def test_now_stands_beside_then_across_a_change_of_clocks() -> None:
    job_at("15 4 * * *", time_zone="Europe/Rome")
    said = called("nightly", "45 2 * * *", "--dry-run")
    rows = [line.split("  ") for line in said.splitlines() if line.startswith("  ")]
    assert len(rows) > 12
    assert (rows[0][1], rows[0][-1].strip()) == ("Now", "Then")
    assert rows[1][1].endswith(("04:15:00 CET", "04:15:00 CEST"))
    assert "(clocks change)" in said
    assert Own.of(gate()) == ("", "")


def test_without_a_schedule_it_shows_the_one_in_force() -> None:
    job_at()
    assert called("nightly").startswith("nightly: At 02:30 on January 1 (UTC).\n")
    called("nightly", "PT15M", "--because", "trial")
    assert called("nightly").startswith("nightly: Every 15 minutes. In the code: At 02:30 on January 1 (UTC).\n")


def test_an_h_stands_for_the_jobs_own_minute() -> None:
    job_at()
    called("nightly", "H * * * *", "--because", "spread")
    minute, *rest = gate().own_schedule.split()
    assert rest == ["*"] * 4
    assert minute.isdecimal()


def test_what_is_due_is_run_first_and_that_is_said() -> None:
    fall_behind(job_at("* * * * *"))
    assert "A slot is due. It is run first.\n" in called("nightly", "@yearly", "--because", "trial")
    assert "Nothing to change. It is changed already, and follows" in called("nightly", "@yearly", "--because", "again")


def test_programs_read_all_of_it() -> None:
    job_at(time_zone="Europe/Rome")
    found = json.loads(called("nightly", "0 4 * * *", "--because", "trial", "--format", "json"))
    assert found["own"] == {"schedule": "0 4 * * *", "time_zone": "Europe/Rome"}
    assert found["code"] == {"schedule": "30 2 1 1 *", "time_zone": "Europe/Rome"}
    assert found["changed"] is True
    assert len(found["slots"]) > 10
    assert all(datetime.fromisoformat(slot).tzinfo for slot in found["slots"] + found["slots_before"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nightly", "61 * * * *", "--because", "x"], "the minute cannot be '61'"),
        (["nightly", "0 4 * * *", "--time-zone", "Mars/Olympus", "--because", "x"], "is not a valid time zone"),
        (["nightly", "0 4 * * *", "--reset", "--because", "x"], "--reset"),
        (["nightly", "--time-zone", "UTC"], "goes with a SCHEDULE"),
        (["nightly", "--because", "x"], "go with a SCHEDULE"),
        (["nihgtly", "0 4 * * *", "--because", "x"], "Did you mean 'nightly'?"),
        (["plain", "0 4 * * *", "--because", "x"], "has no schedule in the code"),
        (["fixed", "0 4 * * *", "--because", "x"], "editable=False"),
    ],
)
def test_it_refuses_what_makes_no_sense(words: list[str], complaint: str) -> None:
    job_at()
    scheduled("fixed", editable=False)
    singleton_job("plain")(print)
    gates().remember("plain", "fixed")
    assert complaint in refused(*words)


def test_what_is_left_of_it_can_be_reset_once_the_code_has_no_schedule() -> None:
    singleton_job("plain")(print)
    assert called("plain", "--reset") == "Nothing to change.\n"
    gates().filter(name="plain").update(own_schedule="0 4 * * *", own_time_zone="UTC")
    assert judge().findings == []
    assert called("plain", "--reset") == "Reset.\n"
    assert Own.of(gate("plain")) == ("", "")


def test_somebody_else_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    job_at()
    monkeypatch.setattr("django_singlejob.management.commands.singleton_schedule.give_schedule", lambda *_, **__: False)
    assert "somebody else has just changed it. Try again." in called("nightly", "@daily", "--because", "x", status=75)


def test_the_list_shows_it() -> None:
    job_at()
    called("nightly", "0 4 * * *", "--because", "trial")
    said = StringIO()
    call_command("run_singleton", "--list", stdout=said)
    words = "At 04:00 every day (UTC) (given by singleton_schedule; in the code: At 02:30 on January 1 (UTC)); next: "
    assert words in said.getvalue()
    said = StringIO()
    call_command("run_singleton", "--list", "--days", "2", stdout=said)
    assert "04:00:00 UTC: nightly" in said.getvalue()


def test_a_code_that_changes_meanwhile_is_a_finding() -> None:
    job_at()
    called("nightly", "0 4 * * *", "--because", "trial")
    assert judge().findings == []
    scheduled(schedule="30 2 2 2 *")
    ticked()
    (found,) = judge().findings
    assert found.kind == "code_changed"
    assert "from 30 2 1 1 * UTC to 30 2 2 2 * UTC" in str(found.what_happened)
    assert "singleton_schedule nightly --reset" in str(found.what_to_do)
    called("nightly", "--reset", "--because", "over")
    assert judge().findings == []


def test_a_preview_tells_of_the_change_of_clocks() -> None:
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
    schedule = parse("30 2 * * *", "Europe/Rome")
    change = next_clock_change(schedule.zone, noon)
    assert change == datetime(2027, 3, 28, 1, tzinfo=UTC)
    found = preview(schedule, noon)
    assert len(found.slots) == 10
    assert [f"{slot.astimezone(schedule.zone):%m-%d %H:%M}" for slot in found.around] == [
        "03-27 02:30",
        "03-28 03:00",
        "03-29 02:30",
        "03-30 02:30",
    ]
    assert preview(parse("* * * * *"), noon).clocks_change_at is None
    assert preview(schedule, change - (found.slots[1] - found.slots[0])).around == []
