from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from django_singlejob.jobs import schedule as timetable
from django_singlejob.jobs.schedule import Schedule, latest_slot, next_slot, parse, slots_between
from django_singlejob.jobs.slots import (
    COUNTED,
    CatchUp,
    Claim,
    MisfireOutcome,
    Misfires,
    Policy,
    claim,
    first_slot,
    reach,
    tolerance,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HALF_A_MINUTE = timedelta(seconds=30)

ALL_CATCH_UPS = get_args(CatchUp)
# The same slots, written in three ways.
HOURLY: dict[str, str | timedelta] = {"wildcard": "@hourly", "fixed": "0 0-23 * * *", "interval": HOUR}

every_catch_up = pytest.mark.parametrize("catch_up", ALL_CATCH_UPS)


@pytest.fixture(params=HOURLY)
def hourly(request: pytest.FixtureRequest) -> Schedule:
    return parse(HOURLY[request.param])


def at(time: str) -> datetime:
    """This time on a summer day, in UTC."""
    return datetime.fromisoformat(f"2026-07-27T{time}+00:00")


def misfires(first: str, last: str, count: int, outcome: MisfireOutcome) -> list[Misfires]:
    return [Misfires(at(first), at(last), count, outcome)]


def late(time: str) -> list[Misfires]:
    return misfires(time, time, 1, MisfireOutcome.LATE)


# --- the words


def test_a_policy_without_more_runs_the_latest_slot_and_is_patient_for_five_minutes() -> None:
    policy = Policy(schedule=parse(HOUR))
    assert (policy.catch_up, policy.misfire_grace, policy.max_catch_up) == ("latest", 5 * MINUTE, 100)
    with pytest.raises(AttributeError):
        policy.catch_up = "all"  # type: ignore[misc]


# --- how early a run may be


@pytest.mark.parametrize(
    ("schedule", "most", "expected"),
    [
        ("@hourly", HALF_A_MINUTE, HALF_A_MINUTE),
        ("@hourly", 20 * MINUTE, 20 * MINUTE),
        ("@hourly", HOUR, 30 * MINUTE),
        ("* * * * *", HALF_A_MINUTE, HALF_A_MINUTE),
        ("* * * * *", HALF_A_MINUTE + MICROSECOND, HALF_A_MINUTE),
        (10 * SECOND, HALF_A_MINUTE, 5 * SECOND),
        (MICROSECOND, HALF_A_MINUTE, timedelta()),
        ("@hourly", timedelta(), timedelta()),
        ("@hourly", -SECOND, timedelta()),
    ],
)
def test_a_tolerance_is_never_more_than_half_the_way_between_two_slots(
    schedule: str | timedelta, most: timedelta, expected: timedelta
) -> None:
    for now in "12:00", "12:00:00.000001", "12:15", "12:59:59.999999":
        assert tolerance(parse(schedule), at(now), most) == expected


def test_of_slots_at_uneven_distances_those_on_both_sides_count() -> None:
    schedule = parse("0,10 * * * *")
    assert tolerance(schedule, at("12:03"), HOUR) == 5 * MINUTE
    assert tolerance(schedule, at("12:10"), HOUR) == 25 * MINUTE


# --- where a schedule begins


@pytest.mark.parametrize(
    ("now", "early", "slot"),
    [
        ("12:00:00", timedelta(), "12:00"),
        ("12:00:00.000001", timedelta(), "13:00"),
        ("12:59:59.999999", timedelta(), "13:00"),
        # A cron daemon fired for the slot that has just passed or is about to come.
        ("12:00:30", HALF_A_MINUTE, "12:00"),
        ("12:00:30.000001", HALF_A_MINUTE, "13:00"),
        ("11:59:30", HALF_A_MINUTE, "12:00"),
        ("12:30:00", HOUR, "12:00"),
        ("12:30:01", HOUR, "13:00"),
    ],
)
def test_a_schedule_begins_at_its_next_slot_or_at_the_one_that_was_meant(
    hourly: Schedule, now: str, early: timedelta, slot: str
) -> None:
    assert first_slot(hourly, at(now), early) == at(slot)


# --- claims


@every_catch_up
class TestWhateverIsCaughtUp:
    """If a run is in time, all policies do the same."""

    def test_no_slot_is_due(self, hourly: Schedule, catch_up: CatchUp) -> None:
        policy = Policy(schedule=hourly, catch_up=catch_up)
        assert claim(policy, at("13:00"), at("12:59:59.999999")) is None
        assert claim(policy, at("15:00"), at("12:00")) is None

    @pytest.mark.parametrize("now", ["12:00", "12:00:00.000001", "12:04", "12:05"])
    def test_one_is_due(self, hourly: Schedule, catch_up: CatchUp, now: str) -> None:
        policy = Policy(schedule=hourly, catch_up=catch_up)
        assert claim(policy, at("12:00"), at(now)) == Claim(at("12:00"), at("13:00"), [])

    @pytest.mark.parametrize(
        ("now", "early", "is_due"),
        [
            ("11:59:30", HALF_A_MINUTE, True),
            ("11:59:29.999999", HALF_A_MINUTE, False),
            ("11:59:30", timedelta(), False),
            ("11:59:59.999999", timedelta(), False),
            # Less than a whole hour: if the slot before is nearer, that slot was meant.
            ("11:30", HOUR, True),
            ("11:29:59.999999", HOUR, False),
        ],
    )
    def test_a_run_may_begin_a_little_early(
        self, hourly: Schedule, catch_up: CatchUp, now: str, early: timedelta, is_due: bool
    ) -> None:
        claimed = claim(Policy(schedule=hourly, catch_up=catch_up), at("12:00"), at(now), early)
        assert claimed == (Claim(at("12:00"), at("13:00"), []) if is_due else None)

    def test_a_slot_of_a_former_schedule_is_run_again_too(self, hourly: Schedule, catch_up: CatchUp) -> None:
        policy = Policy(schedule=hourly, catch_up=catch_up)
        assert claim(policy, at("13:00"), at("12:50"), again=at("12:45")) == Claim(at("12:45"), at("13:00"), [])

    def test_a_schedule_that_is_ahead_is_not_set_back(self, hourly: Schedule, catch_up: CatchUp) -> None:
        """For example, after the database's clock was set back."""
        policy = Policy(schedule=hourly, catch_up=catch_up)
        assert claim(policy, at("15:00"), at("12:01"), again=at("12:00")) == Claim(at("12:00"), at("15:00"), [])

    def test_a_slot_that_the_schedule_does_not_have_is_run_once(self, catch_up: CatchUp) -> None:
        """For example, after a new release of the time zone database moved the others."""
        policy = Policy(schedule=parse("0 * * * *"), catch_up=catch_up)
        assert claim(policy, at("12:30"), at("12:31")) == Claim(at("12:30"), at("13:00"), [])

    @pytest.mark.slow
    def test_the_zone_in_which_instants_are_told_makes_no_difference(self, catch_up: CatchUp) -> None:
        rome = ZoneInfo("Europe/Rome")
        policy = Policy(schedule=parse("*/20 * * * *", "Europe/Rome"), catch_up=catch_up, misfire_grace=90 * MINUTE)
        for change in datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC):
            for now in (change + n * 7 * MINUTE for n in range(-20, 20)):
                due = latest_slot(policy.schedule, now - HOUR)
                claimed = claim(policy, due.astimezone(rome), now.astimezone(rome), MINUTE)
                assert claimed == claim(policy, due, now, MINUTE)
                again = claim(policy, due.astimezone(rome), now.astimezone(rome), MINUTE, due.astimezone(rome))
                assert again == claim(policy, due, now, MINUTE, due)


class TestLate:
    """Within its grace, a slot is in time. After that, it is a misfire."""

    @pytest.mark.parametrize(
        ("catch_up", "expected"),
        [
            ("none", Claim(None, at("13:00"), misfires("12:00", "12:00", 1, MisfireOutcome.DROPPED))),
            ("latest", Claim(at("12:00"), at("13:00"), late("12:00"))),
            ("all", Claim(at("12:00"), at("13:00"), late("12:00"))),
        ],
    )
    def test_one_slot(self, hourly: Schedule, catch_up: CatchUp, expected: Claim) -> None:
        policy = Policy(schedule=hourly, catch_up=catch_up)
        assert claim(policy, at("12:00"), at("12:05:00.000001")) == expected
        assert claim(policy, at("12:00"), at("12:59")) == expected

    @every_catch_up
    def test_a_grace_may_be_longer_than_there_are_years(self, hourly: Schedule, catch_up: CatchUp) -> None:
        policy = Policy(schedule=hourly, catch_up=catch_up, misfire_grace=timedelta.max)
        assert claim(policy, at("12:00"), at("12:59")) == Claim(at("12:00"), at("13:00"), [])


class TestSeveral:
    """More than one slot is due."""

    @pytest.mark.parametrize(
        ("now", "late_if_it_is"), [("12:00", False), ("12:05", False), ("12:05:01", True), ("12:59:59", True)]
    )
    def test_the_latest_is_run_for_all(self, hourly: Schedule, now: str, late_if_it_is: bool) -> None:
        claimed = claim(Policy(schedule=hourly, catch_up="latest"), at("09:00"), at(now))
        missed = misfires("09:00", "11:00", 3, MisfireOutcome.COALESCED)
        assert claimed == Claim(at("12:00"), at("13:00"), missed + (late("12:00") if late_if_it_is else []))

    def test_with_none_only_a_slot_in_time_is_run(self, hourly: Schedule) -> None:
        policy = Policy(schedule=hourly, catch_up="none")
        missed = misfires("09:00", "11:00", 3, MisfireOutcome.COALESCED)
        assert claim(policy, at("09:00"), at("12:05")) == Claim(at("12:00"), at("13:00"), missed)
        missed = misfires("09:00", "12:00", 4, MisfireOutcome.DROPPED)
        assert claim(policy, at("09:00"), at("12:05:01")) == Claim(None, at("13:00"), missed)

    @pytest.mark.parametrize(
        ("catch_up", "claimed"),
        [
            ("none", Claim(at("12:00"), at("13:00"), misfires("10:00", "11:00", 2, MisfireOutcome.COALESCED))),
            ("latest", Claim(at("12:00"), at("13:00"), misfires("10:00", "11:00", 2, MisfireOutcome.COALESCED))),
            ("all", Claim(at("10:00"), at("11:00"), late("10:00"))),
        ],
    )
    def test_a_due_instant_that_is_not_a_slot_is_not_counted(
        self, hourly: Schedule, catch_up: CatchUp, claimed: Claim
    ) -> None:
        assert claim(Policy(schedule=hourly, catch_up=catch_up), at("09:30"), at("12:04")) == claimed

    def test_neither_is_it_among_those_that_are_dropped(self, hourly: Schedule) -> None:
        policy = Policy(schedule=hourly, catch_up="none")
        dropped = misfires("10:00", "12:00", 3, MisfireOutcome.DROPPED)
        assert claim(policy, at("09:30"), at("12:10")) == Claim(None, at("13:00"), dropped)
        policy = Policy(schedule=hourly, catch_up="all", max_catch_up=1)
        dropped = misfires("10:00", "11:00", 2, MisfireOutcome.DROPPED)
        assert claim(policy, at("09:30"), at("12:04")) == Claim(at("12:00"), at("13:00"), dropped)

    def test_neither_is_it_among_those_in_whose_place_another_runs(self, hourly: Schedule) -> None:
        policy = Policy(schedule=hourly, misfire_grace=DAY)
        assert claim(policy, at("09:30"), at("12:10")) == Claim(at("12:00"), at("13:00"), [], coalesced=2)

    @every_catch_up
    def test_it_may_be_as_early_as_an_instant_can_be(self, hourly: Schedule, catch_up: CatchUp) -> None:
        due = datetime.min.replace(tzinfo=UTC)
        policy = Policy(schedule=hourly, catch_up=catch_up, max_catch_up=1, misfire_grace=DAY)
        claimed = claim(policy, due, at("12:10"))
        assert claimed is not None
        assert claimed.slot == at("12:00")
        assert claimed.misfires[0].first <= due + HOUR


class TestAgain:
    """The holder of the last run died, and more slots have become due since."""

    def test_where_the_schedule_has_gone_on_what_came_before_is_none_of_the_misfires(self, hourly: Schedule) -> None:
        """13:00 was already dropped, or belongs to an earlier schedule."""
        policy = Policy(schedule=hourly, catch_up="latest")
        claimed = claim(policy, at("14:00"), at("15:01"), again=at("12:00"))
        assert claimed == Claim(at("15:00"), at("16:00"), misfires("14:00", "14:00", 1, MisfireOutcome.COALESCED))


# --- after a long time without a run


class TestAfterALongTime:
    """A late decision takes no longer: it looks at no more slots than it counts."""

    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
        """Every instant from which the next slot was searched."""
        looks: list[datetime] = []

        def look(schedule: Schedule, after: datetime) -> datetime:
            looks.append(after)
            return next_slot(schedule, after)

        monkeypatch.setattr(timetable, "next_slot", look)
        return looks

    @pytest.mark.slow
    @every_catch_up
    @pytest.mark.parametrize("is_in_time", [True, False], ids=["in time", "late"])
    def test_of_an_expression_so_many_are_counted(
        self, looks: list[datetime], catch_up: CatchUp, is_in_time: bool
    ) -> None:
        policy = Policy(schedule=parse("* * * * *", "Europe/Rome"), catch_up=catch_up, misfire_grace=30 * SECOND)
        due, now = at("12:00") - 100_000 * MINUTE, at("12:00") + (timedelta() if is_in_time else 59 * SECOND)
        claimed = claim(policy, due, now)
        assert claimed is not None
        assert claimed.misfires[0].number == COUNTED == 10_000
        assert claimed.misfires[0].first == due
        assert len(looks) < COUNTED + 1000

    def test_an_interval_is_reckoned(self, looks: list[datetime]) -> None:
        for catch_up, count in {"none": 10**9, "latest": 10**9, "all": 10**9 - 99}.items():
            policy = Policy(schedule=parse(SECOND / 10), catch_up=catch_up, misfire_grace=timedelta())  # type: ignore[arg-type]
            now = at("12:00")
            claimed = claim(policy, now - 10**8 * SECOND, now)
            assert claimed is not None
            assert claimed.misfires[0].number == count
        assert not looks

    @pytest.mark.slow
    @every_catch_up
    def test_of_10000_all_are_counted(self, catch_up: CatchUp) -> None:
        policy = Policy(schedule=parse("*/5 * * * *"), catch_up=catch_up, misfire_grace=timedelta(), max_catch_up=1)
        for count in COUNTED - 1, COUNTED, COUNTED + 1:
            claimed = claim(policy, at("12:00") - count * 5 * MINUTE, at("12:00"))
            assert claimed is not None
            assert [missed.number for missed in claimed.misfires] == [min(count, COUNTED)]
            assert claimed.misfires[0].last == at("11:55")

    def test_to_find_the_newest_hundred_no_more_are_looked_at_than_a_few_hundred(self, looks: list[datetime]) -> None:
        policy = Policy(schedule=parse("30 8 * * 1-5", "Europe/Rome"), catch_up="all", max_catch_up=100)
        due = next_slot(policy.schedule, at("12:00") - 180 * DAY)
        claimed = claim(policy, due, at("12:00"))
        assert claimed is not None
        assert claimed.slot is not None
        assert len(list(slots_between(policy.schedule, claimed.slot - MICROSECOND, at("12:00")))) == 100
        assert len(looks) < 1000

    @pytest.mark.parametrize("most", [10**6, 10**9])
    @pytest.mark.parametrize("schedule", ["@daily", DAY], ids=["expression", "interval"])
    def test_so_many_may_be_caught_up_that_they_reach_back_before_the_year_1(
        self, schedule: str | timedelta, most: int
    ) -> None:
        policy = Policy(schedule=parse(schedule), catch_up="all", max_catch_up=most)
        due = at("00:00") - 3 * DAY
        assert claim(policy, due, at("00:00")) == Claim(due, due + DAY, [Misfires(due, due, 1, MisfireOutcome.LATE)])


# --- whatever happens


schedules = (
    st.sampled_from(["* * * * *", "*/10 * * * *", "@hourly", "7,9,40 * * * *", "30 2 * * *", "0,30 1-3 * * *"]).map(
        lambda text: parse(text, "Europe/Rome")
    )
    | st.sampled_from(["0 8,20 * * 1-5", "45 */2 * * *"]).map(lambda text: parse(text, "Australia/Lord_Howe"))
    | st.timedeltas(MINUTE, DAY).map(parse)
)
# Also around clock changes.
nows = st.sampled_from(
    ["2026-03-29T01", "2026-04-04T15", "2026-07-27T12", "2026-10-03T15:30", "2026-10-25T01"]
).flatmap(
    lambda text: st.timedeltas(-12 * HOUR, 12 * HOUR).map(lambda away: datetime.fromisoformat(f"{text}+00:00") + away)
)
earlies = st.just(timedelta()) | st.timedeltas(timedelta(), HOUR)


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[Policy, datetime, datetime, timedelta]:
    """A policy, the due slot, the instant at which a server looks, and how early a run may be."""
    schedule, now = draw(schedules), draw(nows)
    policy = Policy(
        schedule=schedule,
        catch_up=draw(st.sampled_from(ALL_CATCH_UPS)),
        misfire_grace=draw(st.timedeltas(timedelta(), 3 * HOUR)),
        max_catch_up=draw(st.integers(1, 12)),
    )
    due = latest_slot(schedule, now) if draw(st.booleans()) else next_slot(schedule, now)
    for _ in range(draw(st.integers(0, 25))):
        due = latest_slot(schedule, due - MICROSECOND)
    return policy, due, now, draw(earlies)


def claims(
    policy: Policy, due: datetime, now: datetime, early: timedelta, again: datetime | None = None
) -> Iterator[Claim]:
    """The claims, one after the other, until no slot is due."""
    while claimed := claim(policy, due, now, early, again):
        yield claimed
        due, again = claimed.next_slot, None


@pytest.mark.slow
@given(backlogs(), st.booleans())
@settings(deadline=None, max_examples=300)
def test_every_slot_that_is_due_is_run_or_is_one_of_the_misfires_once(backlog: Any, is_dead: bool) -> None:
    policy, due, now, early = backlog
    schedule, until = policy.schedule, reach(policy.schedule, now, early)
    again = latest_slot(schedule, due - MICROSECOND) if is_dead else None
    all_due = list(slots_between(schedule, due - MICROSECOND, until))
    if again and again <= until:
        all_due.insert(0, again)
    ran: list[datetime] = []
    passed: list[datetime] = []
    coalesced = 0
    for claimed in islice(claims(policy, due, now, early, again), 100):
        assert claimed.slot is not None or claimed.misfires
        assert claimed.next_slot > max(due, claimed.slot or due) or (claimed.slot == again and claimed.next_slot == due)
        assert claimed.next_slot == next_slot(schedule, claimed.next_slot - MICROSECOND)
        if claimed.slot:
            assert (again or due) <= claimed.slot <= until
            ran.append(claimed.slot)
        for missed in claimed.misfires:
            slots = list(slots_between(schedule, missed.first - MICROSECOND, missed.last))
            assert (slots[0], slots[-1], len(slots)) == (missed.first, missed.last, missed.number)
            if missed.outcome == MisfireOutcome.LATE:
                assert slots == [claimed.slot] != [again]
                assert now - missed.last > policy.misfire_grace
            else:
                passed += slots
        coalesced += claimed.coalesced
        due = claimed.next_slot
    assert due > until
    left_out = [slot for slot in all_due if slot not in ran]
    # A later slot replaced it while both were in time, or it was started in time.
    no_misfires = [slot for slot in left_out if slot == again or now - slot <= policy.misfire_grace]
    assert sorted(passed) == [slot for slot in left_out if policy.catch_up == "all" or slot not in no_misfires]
    assert coalesced == (0 if policy.catch_up == "all" else sum(slot != again for slot in no_misfires))
    assert ran == expected_runs(policy, all_due, now, again)


def expected_runs(policy: Policy, all_due: list[datetime], now: datetime, again: datetime | None) -> list[datetime]:
    if policy.catch_up == "all":
        first, others = (all_due[:1], all_due[1:]) if again and all_due[:1] == [again] else ([], all_due)
        return first + others[-policy.max_catch_up :]
    newest = all_due[-1:]
    if policy.catch_up == "none" and newest and now - newest[0] > policy.misfire_grace:
        return all_due[:1] if again and all_due[0] == again else []
    return newest


@pytest.mark.slow
@given(backlogs())
@settings(deadline=None)
def test_a_slot_that_is_run_in_time_is_never_a_misfire(backlog: Any) -> None:
    policy, due, now, early = backlog
    for claimed in islice(claims(policy, due, now, early), 100):
        if claimed.slot and now - claimed.slot <= policy.misfire_grace:
            assert all(missed.last < claimed.slot for missed in claimed.misfires)
            assert all(missed.outcome != MisfireOutcome.LATE for missed in claimed.misfires)


@pytest.mark.slow
@given(schedules, nows, earlies)
@settings(deadline=None)
def test_a_schedule_begins_where_a_claim_is_due_if_one_was_meant(
    schedule: Schedule, now: datetime, early: timedelta
) -> None:
    slot, most = first_slot(schedule, now, early), tolerance(schedule, now, early)
    assert slot == next_slot(schedule, slot - MICROSECOND)
    assert slot >= now - most
    assert latest_slot(schedule, slot - MICROSECOND) < now - most
    claimed = claim(Policy(schedule=schedule, misfire_grace=early), slot, now, early)
    # Halfway between two slots, either may have been meant, and the later one is run.
    assert (claimed is not None) == (abs(slot - now) <= most)


@given(schedules, nows, earlies)
@settings(deadline=None)
def test_a_tolerance_reaches_no_further_than_half_way(schedule: Schedule, now: datetime, early: timedelta) -> None:
    most, distance = tolerance(schedule, now, early), next_slot(schedule, now) - latest_slot(schedule, now)
    assert timedelta() <= most <= early
    assert most == early or abs(most - distance / 2) <= MICROSECOND


def test_of_uneven_slots_none_is_due_before_the_coming_one() -> None:
    """The tolerance before 12:00 is longer than the minute from 12:00 to 12:01."""
    schedule, now = parse("0,1 */2 * * *"), at("11:50")
    assert reach(schedule, now, 20 * MINUTE) == at("12:00")
    assert claim(Policy(schedule=schedule), at("12:00"), now, 20 * MINUTE) == Claim(at("12:00"), at("12:01"), [])
    assert claim(Policy(schedule=schedule), at("12:01"), now, 20 * MINUTE) is None
