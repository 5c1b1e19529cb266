"""An operator gives a job another schedule: each due instant belongs to the schedule that was in force then."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_singlejob import Reason
from django_singlejob.control.schedules import Own, give_schedule, parsed
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import next_slot, parse
from django_singlejob.locking.grant import plan
from django_singlejob.locking.position import follow, following
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.worker.due import follow_code
from tests.contract.acts import (
    HOUR,
    MINUTE,
    about_hourly,
    ask_for_slot,
    die_running,
    everything,
    expire,
    fall_behind,
    gate,
    in_thread,
    newest_slot,
    run_slot,
    scheduled,
    slots_run,
    take,
    ticked,
)
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.contract.conftest import Ahead

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

NEW, ZONE = "30 2 1 * *", "Asia/Kathmandu"


def give(job: Any, schedule: str | None = NEW, zone: str = ZONE, **terms: Any) -> bool | None:
    wanted = parsed(job, schedule, zone) if schedule else None
    return give_schedule(job, wanted, **{"instead_of": Own.of(gate(job.name)), "by": "ada", "reason": "trial"} | terms)


def once_a_year() -> tuple[str, datetime]:
    """A schedule, and its slot of this minute. It has no other one, however long the test takes."""
    slot = datetime.now(UTC).replace(second=0, microsecond=0)
    return f"{slot.minute} {slot.hour} {slot.day} {slot.month} *", slot


def just_fired() -> timedelta:
    """A schedule whose newest slot has just been, well within the minute for which a line of cron means it."""
    return about_hourly(due_in=HOUR - timedelta(seconds=10))


def follows(schedule: str = NEW, zone: str = ZONE) -> bool:
    """Whether the row follows the schedule, and continues with its next slot from now."""
    seen = gate()
    due = next_slot(parse(schedule, zone), datetime.now(UTC))
    return (seen.schedule, seen.time_zone, seen.next_slot) == (schedule, zone, due)


def follows_code(job: Any) -> bool:
    schedule = job.policy.schedule
    return follows(schedule.text, schedule.time_zone)


def ahead_of(job: Any) -> None:
    ticked()
    fall_behind(job, 0)


def fall_behind_by_minutes(job: Any, count: int) -> list[datetime]:
    """The slots of a job of each minute that have not been run, the oldest first. Another minute may begin at any
    time, so they are counted from the oldest one."""
    fall_behind(job, count)
    oldest = gate().next_slot
    assert oldest
    return [oldest + number * MINUTE for number in range(count)]


# --- given, and reset


def test_it_goes_on_at_the_next_slot_of_the_new_one() -> None:
    job = scheduled()
    ahead_of(job)
    fence = gate().fence
    assert give(job)
    assert follows()
    assert Own.of(gate()) == (NEW, ZONE)
    assert gate().fence == fence + 1
    assert ticked() == []
    assert run_slot(job).reason == Reason.NOT_DUE


@pytest.mark.parametrize("release", ["same", "other"])
def test_no_process_puts_the_codes_back(release: str) -> None:
    job = scheduled()
    ahead_of(job)
    give(job)
    if release == "other":
        job = scheduled(schedule="17 * * * *")
    before = everything()
    follow_code()
    assert ticked() == []
    assert everything() == before
    assert run_slot(job, early=MINUTE).reason == Reason.NOT_DUE
    assert follows()


@pytest.mark.parametrize("early", [timedelta(), MINUTE])
def test_no_line_of_cron_puts_the_codes_back(early: timedelta) -> None:
    job = scheduled()
    ahead_of(job)
    give(job)
    before = everything()
    assert run_slot(job, early=early).reason == Reason.NOT_DUE
    assert everything() == before


def test_it_is_due_by_the_new_one() -> None:
    job = scheduled(schedule="17 3 1 1 *")
    ticked()
    once, slot = once_a_year()
    give(job, once, "UTC")
    gates().update(next_slot=slot)
    ticked()
    assert slots_run() == [(slot, 1, "successful")]
    assert follows(once, "UTC")


def test_reset_it_follows_the_code_again() -> None:
    job = scheduled()
    ahead_of(job)
    give(job)
    assert give(job, None)
    assert follows_code(job)
    assert Own.of(gate()) == ("", "")
    assert ticked() == []


def test_given_before_any_worker_has_seen_the_job() -> None:
    job = scheduled()
    assert give_schedule(job, parsed(job, NEW, ZONE), instead_of=Own())
    assert follows()
    assert ticked() == []
    assert follows()


# --- while a slot is due


@pytest.mark.parametrize(("catch_up", "expected"), [("all", 3), ("latest", 1)])
def test_what_is_due_runs_first_and_only_then_it_goes_on(catch_up: str, expected: int) -> None:
    job = scheduled(catch_up=catch_up)
    fall_behind(job, 3)
    due = gate().next_slot
    slots = [newest_slot(job, back=number) for number in reversed(range(expected))]
    assert give(job)
    assert gate().next_slot == due
    assert Own.of(gate()) == (NEW, ZONE)
    assert ticked()
    assert ticked() == []
    assert slots_run() == [(slot, 1, "successful") for slot in slots]
    assert follows()


def test_so_does_what_is_due_when_it_is_reset() -> None:
    job = scheduled(schedule="17 3 1 1 *")
    ticked()
    once, slot = once_a_year()
    give(job, once, "UTC")
    gates().update(next_slot=slot)
    assert give(job, None)
    ticked()
    assert slots_run() == [(slot, 1, "successful")]
    assert follows_code(job)


def test_given_twice_while_it_is_due_the_last_one_goes_on() -> None:
    job = scheduled()
    fall_behind(job)
    assert give(job, "* * * * *", "UTC")
    assert give(job)
    ticked()
    assert len(slots_run()) == 1
    assert follows()


def test_a_slot_that_was_cut_off_runs_again_all_the_same() -> None:
    job = scheduled(max_attempts=3)
    fall_behind(job)
    slot = die_running(job)
    assert give(job)
    expire()
    ticked()
    ticked()
    assert slots_run() == [(slot, 1, "abandoned"), (slot, 2, "successful")]
    assert follows()


def test_a_slot_that_cron_has_begun_early_is_not_run_again() -> None:
    job = scheduled(schedule=timedelta(days=9_999))
    ticked()
    soon = datetime.now(UTC).replace(second=0, microsecond=0) + MINUTE
    gates().update(last_slot=soon)
    give(job, "* * * * *", "UTC")
    seen = gate().next_slot
    assert seen
    assert seen > soon


@pytest.mark.parametrize(("catch_up", "first"), [("all", 0), ("latest", 1)])
def test_only_what_was_due_by_then_comes_first(catch_up: str, first: int) -> None:
    """A job that is always behind, or paused for days, gets its new schedule all the same."""
    job = scheduled(schedule=timedelta(minutes=1), catch_up=catch_up)
    slots = fall_behind_by_minutes(job, 3)
    assert give(job)
    gates().update(schedule_until=slots[-2] + timedelta(seconds=30))
    ticked()
    assert slots_run() == [(slot, 1, "successful") for slot in slots[first:-1]]
    assert follows()
    assert gate().schedule_until is None


def test_what_the_new_one_had_due_meanwhile_is_run_too() -> None:
    job = scheduled(schedule="17 3 1 1 *", catch_up="all")
    ticked()
    due, now = newest_slot(job), datetime.now(UTC).replace(second=0, microsecond=0)
    gates().update(next_slot=due)
    # It has slots in these minutes, and no other one soon, however long the test takes.
    slots = [now - number * MINUTE for number in (2, 1, 0)]
    schedule = f"{','.join(str(slot.minute) for slot in slots)} * * * *"
    assert give(job, schedule, "UTC")
    gates().update(schedule_until=slots[0] - timedelta(seconds=30))
    ticked()
    assert slots_run() == [(slot, 1, "successful") for slot in (due, *slots)]
    assert follows(schedule, "UTC")


def test_the_mark_is_gone_once_the_former_one_holds_again() -> None:
    job = scheduled()
    fall_behind(job)
    assert give(job)
    assert gate().schedule_until
    assert give(job, None)
    assert gate().schedule_until is None
    assert len(ticked()) == 1
    assert follows_code(job)


def test_a_mark_from_before_what_is_due_holds_up_nothing() -> None:
    """A server with an older release has claimed slots since, and has left it."""
    job = scheduled()
    fall_behind(job, 2)
    give(job)
    gates().update(schedule_until=newest_slot(job) - timedelta(days=1))
    ticked()
    ticked()
    assert len(slots_run()) == 1
    assert follows()


def test_a_deploy_while_it_is_paused_runs_no_more_than_was_due() -> None:
    job = scheduled(catch_up="all")
    fall_behind(job, 2)
    gates().update(paused=True)
    changed = scheduled(schedule=NEW, time_zone=ZONE, catch_up="all")
    follow_code()
    assert gate().schedule_until
    gates().update(paused=False, schedule_until=newest_slot(job) - MINUTE)
    ticked()
    assert slots_run() == [(newest_slot(job, back=1), 1, "successful")]
    assert follows_code(changed)


def test_a_line_of_cron_runs_the_first_slot_of_a_release() -> None:
    """The line fires at the slot, and is the first to know the new schedule."""
    ahead_of(scheduled(schedule="17 3 1 1 *"))
    job = scheduled(schedule=just_fired())
    assert run_slot(job, early=MINUTE).slot == newest_slot(job)


def test_a_second_change_while_it_waits_keeps_the_first_end() -> None:
    job = scheduled(schedule=timedelta(minutes=1), catch_up="all")
    first, second, *_ = fall_behind_by_minutes(job, 4)
    assert give(job, "@yearly", "UTC")
    until = second + timedelta(seconds=30)
    gates().update(schedule_until=until)
    assert give(job)
    assert gate().schedule_until == until
    ticked()
    assert [slot for slot, _, _ in slots_run()] == [first, second]
    assert follows()


def test_a_line_of_cron_runs_the_first_slot_after_what_was_too_late() -> None:
    former = scheduled(catch_up="none", misfire_grace=timedelta(seconds=1))
    fall_behind(former)
    job = scheduled(schedule=just_fired(), catch_up="none")
    assert run_slot(job, early=MINUTE).slot == newest_slot(job)


# --- others at the gate


@pytest.mark.slow
def test_given_in_the_moment_of_a_claim_one_of_them_comes_first(ahead: Ahead) -> None:
    """The slot is run by a server that has seen the former schedule."""
    job = scheduled(catch_up="all")
    fall_behind(job, 3)
    second = newest_slot(job, back=1)
    claiming = ahead(lambda: gates().update(next_slot=second))
    assert give(job, patience=PATIENCE)
    claiming.result(PATIENCE)
    assert gate().next_slot == second
    ticked()
    assert [slot for slot, _, _ in slots_run()] == [second, newest_slot(job)]
    assert follows()


def test_a_slot_that_becomes_due_in_that_moment_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    job = scheduled()
    ahead_of(job)
    due = newest_slot(job)

    def meanwhile(seen: Any, schedule: Any) -> dict[str, Any]:
        gates().update(next_slot=due)
        seen.next_slot = due
        return following(seen, schedule)

    monkeypatch.setattr("django_singlejob.control.schedules.following", meanwhile)
    assert give(job, patience=PATIENCE)
    assert gate().next_slot == due
    ticked()
    assert slots_run() == [(due, 1, "successful")]
    assert follows()


def test_nor_is_it_when_the_code_changes() -> None:
    job = scheduled()
    ahead_of(job)
    seen = gates().look_up({"nightly"}, timedelta())["nightly"]
    seen.next_slot = newest_slot(job)
    gates().update(next_slot=seen.next_slot)
    before = everything()
    follow(seen, parse(NEW, ZONE))
    assert everything() == before


def test_a_claim_by_the_row_as_it_was_before_an_edit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has seen that the new schedule goes on after this slot. Before it claims it, the job is reset."""
    job = scheduled()
    fall_behind(job)
    give(job)
    acts = [lambda: give(job, None)]

    def planned_too_early(*arguments: Any) -> Any:
        planned = plan(*arguments)
        if acts:
            assert in_thread(acts.pop())
        return planned

    monkeypatch.setattr("django_singlejob.locking.acquire.plan", planned_too_early)
    assert run_slot(job).slot == newest_slot(job)
    assert not acts
    assert follows_code(job)


def test_of_two_operators_the_second_has_seen_something_else() -> None:
    job = scheduled()
    ahead_of(job)
    assert give(job, instead_of=Own())
    before = everything()
    assert give(job, "* * * * *", "UTC", instead_of=Own()) is False
    assert everything() == before


def test_a_run_under_way_goes_on() -> None:
    job = scheduled()
    fall_behind(job)
    lease: Any = ask_for_slot(job)
    assert give(job)
    assert lease.release()
    assert follows()
    assert run_slot(job).reason == Reason.NOT_DUE


def test_a_lock_that_others_hold_keeps_nobody_from_giving_it() -> None:
    job = scheduled(lock="shop")
    fall_behind(job)
    lease = take("shop")
    assert give(job)
    assert lease.release()
    ticked()
    assert slots_run() == [(newest_slot(job), 1, "successful")]
    assert follows()


# --- refused, or not understood


def test_one_that_is_not_to_be_changed_can_be_reset_only() -> None:
    job = scheduled(editable=False)
    ahead_of(job)
    with pytest.raises(SingleJobError, match="editable=False"):
        give(job)
    gates().update(own_schedule=NEW, own_time_zone=ZONE)
    assert give(job, None)
    assert follows_code(job)


def test_a_server_that_cannot_parse_it_leaves_the_job_out() -> None:
    job = scheduled()
    fall_behind(job)
    gates().update(own_schedule="0 4 * * *", own_time_zone="Mars/Olympus")
    before = everything()
    assert ticked() == []
    assert everything() == before
    assert "Mars/Olympus" in str(registry.left_out["nightly"])
    refused = run_slot(job)
    assert refused.reason == Reason.NOT_HERE
    assert "Mars/Olympus" in refused.detail
    gates().update(own_schedule="", own_time_zone="")
    ticked()
    assert slots_run() == [(newest_slot(job), 1, "successful")]
    assert not registry.left_out


# --- noted


def test_it_is_noted_by_whom_and_why_and_since_when() -> None:
    job = scheduled()
    ahead_of(job)
    give(job)
    edit = notes().get(kind=NoteKind.SCHEDULE_EDITED)
    assert (edit.job_name, edit.by, edit.reason) == ("nightly", "ada", "trial")
    details = json.loads(edit.details)
    code = job.policy.schedule
    assert details == {"before": ["", ""], "after": [NEW, ZONE], "code": [code.text, code.time_zone]}
    change = notes().filter(kind=NoteKind.SCHEDULE_CHANGED).latest("pk")
    assert change.first_slot == gate().next_slot
    assert datetime.fromisoformat(json.loads(change.details)["since"]) <= change.at


def test_the_change_is_noted_when_it_comes_into_force() -> None:
    job = scheduled()
    fall_behind(job)
    changes = notes().filter(kind=NoteKind.SCHEDULE_CHANGED)
    count = changes.count()
    give(job)
    assert changes.count() == count
    ticked()
    assert json.loads(changes.latest("pk").details)["after"] == [NEW, ZONE]
    assert changes.count() == count + 1


def test_who_gave_it_is_not_forgotten() -> None:
    job = scheduled()
    ahead_of(job)
    give(job)
    notes().update(at=datetime(2020, 1, 1, tzinfo=UTC))
    assert not notes().surplus(MINUTE).filter(kind=NoteKind.SCHEDULE_EDITED).exists()
