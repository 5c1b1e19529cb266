"""The judge of the chaos, with histories made by hand: it finds each kind of violation, and raises no false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.judge import Count, Evidence, Write, verdict

if TYPE_CHECKING:
    from tests.chaos.history import Event


def event(kind: str, at: float, fence: int = 1, **facts: Any) -> Event:
    known: Any = {"event": kind, "at": at, "lock": "beach", "fence": fence, "token": f"token {fence}", "trusted": True}
    known |= facts
    found: Event = known
    return found


def start(at: float, fence: int = 1, **facts: Any) -> Event:
    return event("start", at, fence, **facts)


def trust(at: float, fence: int = 1, **facts: Any) -> Event:
    return event("trust", at, fence, **facts)


def taken(at: float, fence: int = 2, former: int = 1, **facts: Any) -> Event:
    return event("taken", at, fence, token=f"token {former}", **facts)


def done(at: float, fence: int = 1, **facts: Any) -> Event:
    return event("finished", at, fence, **({"status": "successful", "kept": True} | facts))


SEEN = (event("trust", 0, 0, lock="other"), event("alive", 0, 0, lock="other"))


def promises(*events: Event, **others: Any) -> list[str]:
    """The promises that are broken. The gates have counted, unless a test says otherwise."""
    evidence = Evidence(events=(*SEEN, *events), **({"gates": {"beach": 100, "pool": 100}} | others))
    return [violation.promise for violation in verdict(evidence)]


OVERLAP = "two holders that trust themselves never overlap (I1)"
ROBBED = "nobody takes the lock of a holder that trusts itself (I5)"
LATE = "nothing from lease.atomic() commits after a later grant (I4)"


def test_if_nothing_ran_nothing_is_proven() -> None:
    assert [each.promise for each in verdict(Evidence())] == ["there is something to judge"] * 2


def test_one_after_the_other_is_fine() -> None:
    assert promises(start(1), trust(1.1), done(1.2), start(1.3, 2), trust(1.4, 2), done(1.5, 2)) == []


def test_a_holder_that_trusts_itself_beside_another_is_found() -> None:
    assert promises(start(1), trust(1.1), start(2, 2), trust(2.1), trust(2.2), trust(2.3, 2)) == [OVERLAP]


def test_a_sample_that_was_begun_before_the_other_proves_nothing() -> None:
    assert promises(start(1), trust(1.9), start(2, 2), trust(2.0)) == []


def test_a_holder_that_has_distrusted_itself_may_go_on() -> None:
    assert promises(start(1), event("lost", 1.9), start(2, 2), event("lost", 2.5)) == []


def test_a_body_that_begins_too_late_is_fine_if_it_does_not_trust_itself() -> None:
    assert promises(start(2, 2), start(2.1, 1, trusted=False)) == []
    assert promises(start(2, 2), start(2.1, 1)) == [OVERLAP]


def test_an_overlap_of_grants_that_are_not_neighbours_is_found() -> None:
    assert promises(start(1), start(2, 2), start(3, 3), start(4, 4), trust(5, 4), trust(5, 2)) == [OVERLAP]


def test_two_locks_have_nothing_to_do_with_each_other() -> None:
    assert promises(start(1, 1), start(2, 2, lock="pool"), trust(3, 1)) == []


def test_an_overlap_is_reported_with_its_time_and_its_samples() -> None:
    history = [start(1, server=3), start(2, 2), trust(2.5, server=3), trust(2.75, server=3)]
    (violation,) = verdict(Evidence(events=[*SEEN, *history], gates={"beach": 2}))
    assert (violation.at, violation.lock) == (2.5, "beach")
    assert "fence 1 (server 3" in violation.what
    assert "from 2.500 to 2.750, 2 samples, after fence 2" in violation.what


def test_a_holder_that_is_cleared_or_taken_over_and_trusts_itself_is_found() -> None:
    assert promises(start(1), taken(2), trust(2.1)) == [OVERLAP, ROBBED]
    assert promises(start(1), event("taken", 2, 0), trust(2.1), start(3, 2)) == []  # from another lease's token
    assert promises(start(1), taken(2, 0), trust(2.1)) == [ROBBED]
    assert promises(start(1), trust(1.9), taken(2, 0), event("lost", 2.1)) == []


ALIVE = "a supervised body is over before another begins (I6)"


def alive(at: float, fence: int = 1, **facts: Any) -> Event:
    return event("alive", at, fence, server=2, **facts)


@pytest.mark.parametrize("loss", [start(2, 2), taken(2, 0)], ids=["begun", "cleared"])
def test_a_supervised_body_that_is_alive_behind_a_loss_is_found_whatever_its_lease_says(loss: Event) -> None:
    assert promises(start(1), event("lost", 1.5), alive(1.9), loss) == []
    assert promises(start(1), event("lost", 1.5), alive(1.9), loss, alive(2.1), alive(2.2)) == [ALIVE]


def test_a_body_that_a_command_runs_itself_is_found() -> None:
    worker, caller = event("up", 0, pid=5, name="singleton_worker"), event("up", 0, pid=6, name="calls")
    assert promises(worker, caller, start(1, pid=6), start(2, 2, pid=7)) == []
    assert promises(worker, start(1, pid=5)) == ["the body of a command has an executor"]


@pytest.mark.parametrize("loss", [start(2, 2), taken(2, 0)], ids=["begun", "cleared"])
def test_a_block_that_commits_behind_a_loss_is_found(loss: Event) -> None:
    assert promises(start(1), loss, event("fenced", 2.1)) == [LATE]
    assert promises(start(1), event("fenced", 1.9), loss) == []


def test_fenced_writes_in_the_wrong_order_are_found() -> None:
    back = "a fenced write never follows a newer one (I4)"
    assert promises(writes=[Write(1, "beach", 1), Write(3, "beach", 1), Write(2, "beach", 2)]) == [back]
    assert (
        promises(writes=[Write(1, "beach", 1), Write(2, "pool", 7), Write(3, "beach", 1), Write(4, "beach", 2)]) == []
    )


def test_a_fence_that_is_granted_twice_is_found() -> None:
    assert promises(start(1), start(2, token="another")) == ["each grant has a fence of its own (I3)"]
    assert promises(start(1), start(1, lock="pool", token="another")) == []


def test_a_gate_that_did_not_count_is_found() -> None:
    assert promises(start(1, 7), gates={"beach": 6}) == ["the gate counts every grant (I3)"]
    assert promises(start(1, 7), gates={}) == ["the gate counts every grant (I3)"]
    assert promises(start(1, 7), gates={"beach": 8}) == []


def counted(fence: int, seen: int) -> Event:
    return event("counted", 1, fence, number=seen)


DISTURBED = "between two checks that pass, no other body runs (I1)"


def test_two_that_count_at_the_same_time_are_found() -> None:
    lines = {"beach": [Count(1, 0), Count(2, 1), Count(1, 1)]}
    assert promises(counted(1, 0), counted(2, 1), counted(1, 1), counts=lines) == [DISTURBED]


def test_one_that_counts_after_it_was_stopped_is_fine_if_it_checks() -> None:
    lines = {"beach": [Count(1, 0), Count(2, 1), Count(1, 1), Count(2, 2), Count(2, 4)]}
    assert promises(counted(1, 0), counted(2, 1), counted(2, 2), counted(2, 4), counts=lines) == []


def test_a_successor_that_counts_in_the_middle_is_found_even_if_it_dies_before_its_check() -> None:
    assert promises(counted(1, 0), counts={"beach": [Count(2, 0), Count(1, 0)]}) == [DISTURBED]


def ordered(at: float, number: int = 7) -> Event:
    return event("ordered", at, number=number)


LOST = "no one-off is lost"
TWICE = "no one-off runs to its end twice"


def test_a_one_off_that_is_done_is_fine() -> None:
    history = [ordered(1), start(2, number=7), event("end", 3, number=7), done(4)]
    assert promises(*history, one_offs={7: "done"}) == []


@pytest.mark.parametrize("statuses", [{7: "failed"}, {7: "waiting"}, {8: "done"}])
def test_a_one_off_that_is_not_done_at_the_end_is_found(statuses: dict[int, str]) -> None:
    assert promises(ordered(1), event("end", 3, number=7), one_offs=statuses) == [LOST]


def test_a_one_off_that_is_done_without_a_body_is_found() -> None:
    assert promises(ordered(1), start(2, number=7), one_offs={7: "done"}) == [LOST]


def test_a_one_off_that_is_not_known_to_be_enqueued_may_be_gone() -> None:
    assert promises(start(2, number=7), one_offs={}) == []


def test_a_one_off_may_be_run_again_as_long_as_nobody_knows_that_it_is_done() -> None:
    dead, unrecorded = start(1, number=7), done(2, kept=False)
    failed = done(2.5, status="failed")
    assert promises(dead, unrecorded, failed, start(3, 2, number=7), done(4, 2)) == []


def test_a_one_off_that_is_begun_again_after_it_was_done_is_found() -> None:
    assert promises(start(1, number=7), done(2), start(3, 2, number=7)) == [TWICE]
    assert promises(start(1, number=7), start(1.5, 2, number=7), done(2), done(3, 2)) == [TWICE]


def slot(at: float, fence: int, slot: str = "10:00") -> Event:
    return start(at, fence, name="hourly", slot=slot)


def test_a_slot_that_is_run_twice_is_found() -> None:
    assert promises(slot(1, 1), done(2, 1), slot(3, 2), done(4, 2)) == ["a slot runs once (I8)"]
    assert promises(slot(1, 1), slot(3, 2), done(4, 2), slot(5, 3, "11:00"), done(6, 3)) == []


def test_rows_that_are_left_are_found() -> None:
    assert promises(left={"locks": 0, "running runs": 2}) == ["nothing is left in the end (I11, I15)"]
