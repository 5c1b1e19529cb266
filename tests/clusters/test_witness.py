"""The witness, with histories made by hand: it finds each kind of fault, and raises no false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.clusters.report import table
from tests.clusters.scenario import NOTHING_LOST, Scenario
from tests.clusters.witness import figures

if TYPE_CHECKING:
    from tests.chaos.history import Event

OLD, NEW = 5001, 5002


def event(kind: str, at: float, token: str = "a", **facts: Any) -> Event:
    known: Any = {"event": kind, "at": at, "lock": "beach", "token": token, "node": OLD}
    found: Event = known | facts
    return found


def start(at: float, token: str = "a", fence: int = 1, **facts: Any) -> Event:
    return event("start", at, token, fence=fence, trusted=True, until=at + 3, **facts)


def trust(at: float, token: str = "a", **facts: Any) -> Event:
    return event("trust", at, token, **({"until": at + 3} | facts))


def finished(at: float, token: str, **facts: Any) -> Event:
    return event("finished", at, token, **({"status": "successful", "kept": True} | facts))


def survivor(node: int = NEW) -> Event:
    return event("survivor", 0, node=node)


def test_one_after_the_other_is_fine() -> None:
    seen = figures([start(1), trust(1.5), finished(1.6, "a"), start(2, "b", 2), trust(2.5, "b")])
    assert (seen.at_once, seen.overlap, seen.fences_repeated, seen.fences_back) == (1, 0, 0, 0)


def test_two_holders_that_trust_themselves_are_seen_with_the_duration() -> None:
    seen = figures([start(1), start(2, "b", 2), trust(2.5), trust(2.75), trust(3, "b")])
    assert (seen.at_once, seen.overlap) == (2, 0.75)


def test_of_two_locks_both_may_be_held() -> None:
    assert figures([start(1), start(1, "b", lock="pool"), trust(2), trust(2, "b", lock="pool")]).at_once == 1


def test_a_lease_that_was_lost_meanwhile_was_not_trusted() -> None:
    events = [start(1), trust(1.5), event("lost", 1.6), start(2, "b", 2), trust(2.5, "b"), event("lost", 3, "b")]
    assert figures([*events, trust(3.5)]).at_once == 1


def test_a_holder_that_slept_past_its_deadline_may_have_lost_its_lease() -> None:
    assert figures([start(1), trust(1.5), start(6, "b", 2), trust(6.5, "b"), trust(7)]).at_once == 1


def test_a_holder_that_slept_within_its_lease_trusted_itself_all_the_time() -> None:
    assert figures([start(1), trust(1.5), start(2, "b", 2), trust(3, "b"), trust(4)]).at_once == 2


def test_a_repeated_fence_is_seen() -> None:
    seen = figures([start(1, "a", 7), start(2, "b", 7)])
    assert (seen.fences_repeated, seen.fences_back) == (1, 1)


def test_a_fence_of_an_abandoned_server_may_be_smaller() -> None:
    split = [survivor(), start(1, "a", 1), start(2, "b", 100, node=NEW), start(3, "c", 2), start(4, "d", 101, node=NEW)]
    assert figures(split).fences_back == 0
    assert figures([*split, start(5, "e", 50, node=NEW)]).fences_back == 1


def test_a_commit_behind_a_successor_is_seen() -> None:
    events = [start(1), event("fenced", 1.9), start(2, "b", 2)]
    assert figures(events).fenced_behind == 0
    assert figures([*events, event("fenced", 2.1)]).fenced_behind == 1


def test_a_commit_on_an_abandoned_server_is_counted_separately() -> None:
    seen = figures([survivor(), start(1), start(2, "b", 2, node=NEW), event("fenced", 2.1)])
    assert (seen.fenced_behind, seen.fenced_apart) == (0, 1)


def test_a_grant_on_an_abandoned_server_supersedes_nothing_elsewhere() -> None:
    seen = figures([survivor(), start(1, "a", node=NEW), start(2, "b"), event("fenced", 3, "a", node=NEW)])
    assert (seen.fenced_behind, seen.fenced_apart) == (0, 0)


def test_one_offs_that_are_lost_and_done_twice_are_counted() -> None:
    def ordered(number: int) -> Event:
        return event("ordered", 1, number=number)

    runs = [start(2, "a", 1, number=1), start(3, "b", 2, number=2), start(4, "c", 3, number=2)]
    ends = [event("end", 5, "b", number=2), event("end", 5, "c", number=2), finished(6, "b"), finished(6, "c")]
    seen = figures([ordered(1), ordered(2), *runs, *ends])
    assert (seen.one_offs, seen.one_offs_lost, seen.one_offs_twice) == (2, 1, 1)


def test_one_offs_that_are_still_waiting_at_the_end_are_not_lost() -> None:
    seen = figures([*(event("ordered", number, number=number) for number in range(3)), event("left", 9, number=2)])
    assert (seen.one_offs_lost, seen.one_offs_left) == (1, 2)


def test_a_run_whose_end_could_not_be_recorded_may_be_repeated() -> None:
    events = [event("ordered", 1, number=1), start(2, "a", 1, number=1), finished(3, "a", kept=False)]
    assert figures([*events, start(4, "b", 2, number=1), finished(5, "b")]).one_offs_twice == 0


def test_slots_that_are_missing_and_run_twice_are_counted() -> None:
    def slot(second: int, token: str, fence: int) -> list[Event]:
        name = f"2030-01-01 00:00:{second:02}+00:00"
        return [start(fence, token, fence, slot=name), event("end", fence, token, slot=name), finished(fence, token)]

    seen = figures([*slot(1, "a", 1), *slot(2, "b", 2), *slot(2, "c", 3), *slot(5, "d", 4)])
    assert (seen.slots, seen.slots_missing, seen.slots_twice) == (3, 2, 1)


def test_it_goes_on_when_the_last_of_the_locks_is_written_under_by_a_survivor() -> None:
    events = [survivor(), event("fenced", 1), event("fenced", 1, lock="pool"), event("whole", 10)]
    events += [event("fenced", 11), event("fenced", 12, node=NEW), event("fenced", 20, node=NEW)]
    assert figures(events).goes_on == float("inf")
    assert figures([*events, event("fenced", 15, lock="pool", node=NEW)]).goes_on == 5


def test_crontab_lines_are_counted_by_their_status() -> None:
    seen = figures([event("line", at, to=at + at, number=status) for at, status in [(1, 0), (2, 69), (3, 0), (4, 1)]])
    assert (seen.lines, seen.lines_odd, seen.longest_line) == ({0: 2, 1: 1, 69: 1}, 1, 4)


@pytest.mark.parametrize("kind", ["died", "stuck"])
def test_processes_that_died_or_are_stuck_are_counted(kind: str) -> None:
    assert getattr(figures([event(kind, 1)]), kind) == 1


def test_a_figure_that_is_greater_than_promised_is_broken_and_marked_in_the_table() -> None:
    scenario = Scenario("flood", lambda *_: None, NOTHING_LOST)
    seen = figures([start(1, "a", 7), start(2, "b", 7)])
    broken = scenario.broken(seen)
    assert broken == {"fences_repeated": 1, "fences_back": 1}
    titles, row = table({"flood": (seen, broken)})
    assert titles.index("fences again") == row.index("1!")
