"""The oracle steps through real minutes, one by one. All it knows about clocks comes from ``astimezone``."""

from __future__ import annotations

import os
import sys
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings, strategies as st

from django_singlejob import InvalidSchedule
from django_singlejob.jobs.schedule import (
    EPOCH,
    LONGEST,
    Cron,
    Every,
    Schedule,
    duration_in_words,
    latest_slot,
    next_slot,
    parse,
    slots_between,
)
from django_singlejob.jobs.words import schedule_in_words
from tests.selection import sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

# How many starts the sweep tries for each expression in each zone. For more, set SINGLEJOB_TEST_STARTS=20000.
STARTS = int(os.environ.get("SINGLEJOB_TEST_STARTS", "10"))

MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

ZONES = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})
NOW = datetime(2026, 7, 27, 12, tzinfo=UTC)
# In 2026 its clocks go from 02:00 to 03:00 on 29 March, and from 03:00 to 02:00 on 25 October.
ROME = "Europe/Rome"


def at(text: str, zone: str = "UTC", fold: int = 0) -> datetime:
    """The instant at which the clocks of a zone show this time: the first time (0) or the second (1)."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def slots_of(schedule: Schedule, first_day: str, last_day: str | None = None) -> list[datetime]:
    """All slots of one day or more, by the clocks of the schedule's zone."""
    begin = at(first_day, schedule.time_zone)
    end = at(f"{last_day or first_day}T23:59:59", schedule.time_zone, fold=1)
    return list(slots_between(schedule, begin - MICROSECOND, end))


def shown(expression: str, zone: str, first_day: str, last_day: str | None = None) -> list[str]:
    """The same slots, as the clocks show them."""
    slots = slots_of(parse(expression, zone), first_day, last_day)
    return [f"{slot.astimezone(ZoneInfo(zone)):%H:%M %z}" for slot in slots]


# --- valid and invalid schedules


def test_a_cron_expression_has_five_fields_and_a_zone() -> None:
    schedule = parse("0 8 * * 1-5", ROME)
    assert schedule == Cron("0 8 * * 1-5", ZoneInfo(ROME))
    assert (schedule.text, schedule.time_zone) == ("0 8 * * 1-5", ROME)
    assert parse("0 8 * * 1-5").time_zone == "UTC"


def test_spaces_make_no_difference() -> None:
    assert parse(" 0  8 *\t* 1-5\n") == parse("0 8 * * 1-5")


def test_schedules_of_other_zones_are_others() -> None:
    assert len({parse("@daily", ROME), parse("@daily", "UTC"), parse("@daily", "UTC"), parse(DAY)}) == 3


@pytest.mark.parametrize(
    ("nickname", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_a_nickname_is_an_expression(nickname: str, expression: str) -> None:
    assert parse(f" {nickname} ", ROME) == parse(expression, ROME)


@pytest.mark.parametrize(
    ("expression", "slots"),
    [
        ("*/20 * * * *", ["2026-04-01T00:20", "2026-04-01T00:40", "2026-04-01T01:00"]),
        ("5-59/25 1 * * *", ["2026-04-01T01:05", "2026-04-01T01:30", "2026-04-01T01:55"]),
        ("0 8 * JAN,feb Mon-FRI", ["2027-01-01T08:00", "2027-01-04T08:00", "2027-01-05T08:00"]),
        ("50/4 0 * * *", ["2026-04-01T00:50", "2026-04-01T00:54", "2026-04-01T00:58"]),
        # On days that match either field. If one of the fields begins with *, on days that match both.
        ("0 0 13 * 5", ["2026-04-03T00:00", "2026-04-10T00:00", "2026-04-13T00:00"]),
        ("0 0 */7 * 5", ["2026-05-01T00:00", "2026-05-08T00:00", "2026-05-15T00:00"]),
        ("0 0 1-7 * */5", ["2026-04-03T00:00", "2026-04-05T00:00", "2026-05-01T00:00"]),
        ("0 0 * * 7", ["2026-04-05T00:00", "2026-04-12T00:00", "2026-04-19T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00", "2036-02-29T00:00"]),
        ("0 0 L * *", ["2026-04-30T00:00", "2026-05-31T00:00", "2026-06-30T00:00"]),
        ("0 0 * * 1#2", ["2026-04-13T00:00", "2026-05-11T00:00", "2026-06-08T00:00"]),
    ],
)
def test_an_expression_means_what_it_does_to_debians_cron(expression: str, slots: list[str]) -> None:
    coming = slots_between(parse(expression), at("2026-04-01T00:00"), at("2040-01-01T00:00"))
    assert list(islice(coming, 3)) == [at(slot) for slot in slots]


_NICKNAMES = (
    "is not a valid schedule: the names with an @ are @hourly, @daily, @midnight, @weekly, @monthly, @yearly, "
    "@annually."
)
_SECONDS = "Seconds are not supported: use a timedelta, and run singleton_worker, which looks every second."
_NEAREST = "The nearest weekday is not supported: run the job on several days, and check the date in it."
_NEVER = "is never due: there is no such day, or no such time on the clocks of"
_REBOOT = (
    "is not a valid schedule: jobs run at set times, and not when a machine or a worker starts. To start it on every "
    "machine, use systemd or cron; for one copy among them, run_singleton NAME --standby -- COMMAND."
)
_ZONE = "is not a valid schedule: the time zone has a parameter of its own. Write"
_FIVE_FIELDS = (
    "is not a valid schedule: a cron expression has 5 fields (minute, hour, day of month, month, day of week), "
    "but this one"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("60 * * * *", "'60 * * * *' is not a valid schedule: the minute cannot be '60'."),
        (
            "0 0 * * Fri-mon",
            "'0 0 * * Fri-mon' is not a valid schedule: the day of week cannot be 'Fri-mon'. Write 'Fri-sat,sun-mon'.",
        ),
        (
            "0 0 15W * *",
            f"'0 0 15W * *' is not a valid schedule: the day of month cannot be '15W'. {_NEAREST}",
        ),
        (
            "0 0 31 4,6,9,11 *",
            "'0 0 31 4,6,9,11 *' is not a valid schedule: the day of month cannot be '31' in that month.",
        ),
        # No field is wrong, but none of the days 1, 9, 17 and 25 can be the fifth Monday of a month.
        ("0 0 */8 * 1#5", f"'0 0 */8 * 1#5' {_NEVER} UTC."),
        ("0 0 * *", f"'0 0 * *' {_FIVE_FIELDS} has 4."),
        ("0 0 0 * * *", f"'0 0 0 * * *' {_FIVE_FIELDS} has 6. {_SECONDS}"),
        (
            "CRON_TZ=Europe/Rome 0 3 * * *",
            f"'CRON_TZ=Europe/Rome 0 3 * * *' {_ZONE} schedule='0 3 * * *', time_zone='Europe/Rome'.",
        ),
        ("TZ='Asia/Tokyo'  @daily", f"\"TZ='Asia/Tokyo'  @daily\" {_ZONE} schedule='@daily', time_zone='Asia/Tokyo'."),
        ("TZ=UTC", f"'TZ=UTC' {_FIVE_FIELDS} has 1."),
        ("TZ= 0 3 * * *", f"'TZ= 0 3 * * *' {_FIVE_FIELDS} has 6. {_SECONDS}"),
        ("@daily please", f"'@daily please' {_FIVE_FIELDS} has 2."),
        ("@reboot", f"'@reboot' {_REBOOT}"),
        ("@Reboot", f"'@Reboot' {_NICKNAMES}"),
        ("@Daily", f"'@Daily' {_NICKNAMES}"),
        (-MICROSECOND, "An interval of -1 day, 23:59:59.999999 is not a valid schedule: it must be longer than zero."),
        (
            LONGEST + MICROSECOND,
            "An interval of 36525 days, 0:00:00.000001 is not a valid schedule: it must be at most 36525 days.",
        ),
        ("P99999999999D", "'P99999999999D' is not a valid schedule: an interval must be at most 36525 days."),
        (f"PT{'9' * 400}S", f"'PT{'9' * 61}... is not a valid schedule: an interval must be at most 36525 days."),
        (3600, "3600 is not a valid schedule: use a cron expression or a timedelta."),
        (None, "None is not a valid schedule: use a cron expression or a timedelta."),
    ],
)
def test_what_is_no_schedule_is_refused_and_the_field_is_named(text: Any, message: str) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        parse(text)
    assert str(refusal.value) == message


def test_an_expression_has_200_characters_at_most() -> None:
    text = "0" * 189 + "5 23 * * *"
    assert len(text) == 199
    for longest in text, f"0{text}":
        assert parse(longest).text == longest
    with pytest.raises(
        InvalidSchedule, match=r"^'0{63}\.\.\. is too long for a schedule: use at most 200 characters\.$"
    ):
        parse(f"00{text}")


@pytest.mark.parametrize("text", ["*" * 1_000_000, "0 0 * * " + "1," * 500_000, "0 " * 500_000])
def test_an_expression_without_end_makes_no_message_without_end(text: str) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        parse(text)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "zone", ["Europe/Roma", "Europe", "", "../etc/passwd", "/etc/passwd", "\0", "\ud800", 5, None, []]
)
def test_a_time_zone_that_does_not_exist_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        parse("@daily", zone)
    assert str(refusal.value) == f"{zone!r} is not a valid time zone: use an IANA name, such as 'Europe/Rome'."


@pytest.mark.parametrize("zone", ["localtime", "posixrules", "Factory", "posix/Europe/Rome", "right/Europe/Rome"])
def test_a_time_zone_that_is_not_the_same_on_every_server_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match=rf"^'{zone}' is not the same on every server: use an IANA name"):
        parse("@daily", zone)


def test_every_time_zone_that_this_machine_has_is_taken() -> None:
    for zone in ZONES:
        assert parse("@daily", zone).time_zone == zone


looking_like_five_fields = st.lists(
    st.text("0123456789*/,-#LW", min_size=1, max_size=6) | st.just("*"), min_size=5, max_size=5
).map(" ".join)
looking_like_an_interval = st.from_regex(r"P[0-9.,DTHMS]*", fullmatch=True)


@pytest.mark.slow
@given(
    st.text(max_size=300) | looking_like_five_fields | looking_like_an_interval | st.timedeltas(),
    st.sampled_from(ZONES) | st.timezone_keys() | st.text(),
)
@settings(deadline=None)
def test_anything_is_a_schedule_with_slots_or_is_refused(text: str | timedelta, zone: str) -> None:
    try:
        schedule = parse(text, zone)
    except InvalidSchedule:
        return
    assert parse(schedule.text, schedule.time_zone) == schedule
    assert latest_slot(schedule, NOW) <= NOW < next_slot(schedule, NOW)
    assert schedule_in_words(schedule)


def test_a_day_that_seldom_comes_is_no_day_that_never_comes() -> None:
    assert next_slot(parse("0 0 * 2 MON#5"), at("2026-01-01T00:00")) == at("2044-02-29T00:00")


# --- intervals


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (MICROSECOND, "P0DT00H00M00.000001S"),
        (90 * MINUTE, "P0DT01H30M00S"),
        (DAY, "P1DT00H00M00S"),
        (10 * DAY + HOUR + SECOND, "P10DT01H00M01S"),
    ],
)
def test_an_interval_has_a_text_and_no_zone(interval: timedelta, text: str) -> None:
    schedule = parse(interval, ROME)
    assert schedule == Every(interval)
    assert (schedule.text, schedule.time_zone) == (text, "UTC")


def test_the_longest_interval_and_the_shortest_are_taken() -> None:
    for interval in MICROSECOND, LONGEST:
        assert parse(interval) == Every(interval)


@pytest.mark.parametrize("text", ["PT90M", "PT1H30M", "P0DT01H30M00S", "PT5400S"])
def test_an_interval_may_be_written(text: str) -> None:
    assert parse(text) == Every(90 * MINUTE)


def test_the_slots_of_an_interval_are_its_multiples_since_the_epoch() -> None:
    every = parse(90 * MINUTE)
    assert next_slot(every, EPOCH) == EPOCH + 90 * MINUTE
    assert latest_slot(every, EPOCH) == EPOCH
    assert next_slot(every, EPOCH - MICROSECOND) == EPOCH
    assert latest_slot(every, EPOCH - MICROSECOND) == EPOCH - 90 * MINUTE
    # They need not be the same every day: 24 is not a multiple of 7 hours.
    slots = slots_of(parse(7 * HOUR), "2026-07-27")
    assert [f"{slot:%H:%M}" for slot in slots] == ["02:00", "09:00", "16:00", "23:00"]
    assert {(slot - EPOCH) % (7 * HOUR) for slot in slots} == {timedelta()}


intervals = st.timedeltas(min_value=MICROSECOND, max_value=LONGEST)
instants = st.datetimes(datetime(1000, 1, 1), datetime(5000, 1, 1), timezones=st.timezones())  # noqa: DTZ001


@pytest.mark.slow
@given(intervals, instants)
@settings(deadline=None)
def test_an_interval_has_one_slot_in_each_of_its_length(interval: timedelta, instant: datetime) -> None:
    every = parse(interval)
    latest, following = latest_slot(every, instant), next_slot(every, instant)
    assert latest <= instant < following == latest + interval
    assert (latest - EPOCH) % interval == timedelta()
    assert latest.tzinfo is following.tzinfo is UTC
    assert latest_slot(every, latest) == latest == next_slot(every, latest - MICROSECOND)
    assert latest_slot(every, following - MICROSECOND) == latest


@given(intervals)
def test_any_interval_can_be_written_and_read(interval: timedelta) -> None:
    schedule = parse(interval)
    assert parse(schedule.text, schedule.time_zone) == schedule


# --- in words


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(), "0 seconds"),
        (SECOND, "1 second"),
        (59 * SECOND, "59 seconds"),
        (60 * SECOND, "1 minute"),
        (61 * SECOND, "1 minute 1 second"),
        (25 * HOUR, "1 day 1 hour"),
        (400 * DAY, "400 days"),
        (1500 * timedelta(milliseconds=1), "1 second 500 milliseconds"),
        (2001 * MICROSECOND, "2 milliseconds 1 microsecond"),
    ],
)
def test_a_duration_in_words(duration: timedelta, words: str) -> None:
    assert duration_in_words(duration) == words


@given(st.timedeltas(min_value=MICROSECOND))
def test_a_duration_in_words_leaves_nothing_out(duration: timedelta) -> None:
    words = duration_in_words(duration).split()
    counts = {unit.removesuffix("s"): int(count) for count, unit in zip(words[::2], words[1::2], strict=True)}
    assert sum((timedelta(**{f"{unit}s": count}) for unit, count in counts.items()), timedelta()) == duration


# --- the next slot and the latest one


@pytest.mark.parametrize("expression", ["0 * * * *", "0 0-23 * * *", HOUR], ids=["wildcard", "fixed", "interval"])
@pytest.mark.parametrize(
    ("instant", "latest", "following"),
    [
        ("12:00:00", "12:00", "13:00"),
        ("12:00:00.000001", "12:00", "13:00"),
        ("12:59:59.999999", "12:00", "13:00"),
        ("13:00:00", "13:00", "14:00"),
    ],
)
def test_a_slot_is_the_latest_from_its_instant_on(
    expression: str | timedelta, instant: str, latest: str, following: str
) -> None:
    schedule, now = parse(expression, ROME), at(f"2026-07-27T{instant}")
    assert latest_slot(schedule, now) == at(f"2026-07-27T{latest}")
    assert next_slot(schedule, now) == at(f"2026-07-27T{following}")


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["*/10 * * * *", "20 3 * * *", HOUR], ids=["wildcard", "fixed", "interval"])
@pytest.mark.parametrize("zone", [UTC, timezone(5 * HOUR), ZoneInfo("Asia/Tokyo"), ZoneInfo(ROME)], ids=str)
def test_the_zone_in_which_an_instant_is_told_makes_no_difference(expression: str | timedelta, zone: Any) -> None:
    schedule = parse(expression, ROME)
    for change in changes(ROME, 2026):
        for instant in (change + n * 7 * MINUTE for n in range(-20, 20)):
            for asked in (latest_slot, next_slot):
                answer = asked(schedule, instant.astimezone(zone))
                assert (answer, answer.tzinfo) == (asked(schedule, instant), UTC)
            span = instant - 2 * HOUR, instant
            local_span = (end.astimezone(zone) for end in span)
            assert list(slots_between(schedule, *local_span)) == list(slots_between(schedule, *span))


def test_slots_between_are_later_than_the_first_and_not_later_than_the_last() -> None:
    hourly = parse("@hourly")
    begin, end = at("2026-07-27T12:00"), at("2026-07-27T14:00")
    assert list(slots_between(hourly, begin, end)) == [begin + HOUR, end]
    assert list(slots_between(hourly, begin, end - MICROSECOND)) == [begin + HOUR]
    assert list(slots_between(hourly, begin - MICROSECOND, begin)) == [begin]
    assert not list(slots_between(hourly, begin, begin + 59 * MINUTE))
    assert not list(slots_between(hourly, end, begin))


# --- when clocks change


class TestClockChanges:
    """Debian's rules. If a rule is surprising, the test's name says so."""

    def test_a_fixed_time_that_is_left_out_comes_when_the_hour_is_over(self) -> None:
        assert shown("30 2 * * *", ROME, "2026-03-29") == ["03:00 +0200"]
        assert next_slot(parse("30 2 * * *", ROME), at("2026-03-29T01:59:59", ROME)) == at("2026-03-29T01:00")

    def test_a_fixed_time_that_comes_twice_counts_the_first_time(self) -> None:
        assert shown("30 2 * * *", ROME, "2026-10-25") == ["02:30 +0200"]
        half_past_two = parse("30 2 * * *", ROME)
        for fold in 0, 1:
            now = at("2026-10-25T02:30", ROME, fold)
            assert next_slot(half_past_two, now) == at("2026-10-26T02:30", ROME)
            assert latest_slot(half_past_two, now) == at("2026-10-25T02:30", ROME)

    def test_a_wildcard_follows_the_wall_not_in_the_hour_that_is_left_out(self) -> None:
        assert shown("*/30 2 * * *", ROME, "2026-03-29") == []
        assert next_slot(parse("*/30 2 * * *", ROME), at("2026-03-29T01:00", ROME)) == at("2026-03-30T02:00", ROME)
        assert shown("5 */2 * * *", ROME, "2026-03-29")[:3] == ["00:05 +0100", "04:05 +0200", "06:05 +0200"]

    def test_a_wildcard_follows_the_wall_twice_in_the_hour_that_comes_twice(self) -> None:
        assert shown("*/30 2 * * *", ROME, "2026-10-25") == ["02:00 +0200", "02:30 +0200", "02:00 +0100", "02:30 +0100"]
        assert shown("5 */2 * * *", ROME, "2026-10-25")[:4] == [
            "00:05 +0200",
            "02:05 +0200",
            "02:05 +0100",
            "04:05 +0100",
        ]

    def test_a_wildcard_that_is_in_the_hour_left_out_only_may_wait_for_a_year(self) -> None:
        schedule = parse("*/30 2 29 3 *", ROME)
        assert next_slot(schedule, at("2026-01-01T00:00")) == at("2027-03-29T02:00", ROME)
        assert latest_slot(schedule, at("2027-01-01T00:00")) == at("2025-03-29T02:30", ROME)

    @pytest.mark.parametrize(
        ("expression", "zone"),
        [
            ("*/10 2 * 3 7L", ROME),
            ("* 2 25-31 3 */7", ROME),  # it was due in 1970
            ("*/10 2 * 3 0#2", "America/New_York"),
            ("*/60 2 * 10 0#1", "Australia/Lord_Howe"),
        ],
    )
    def test_a_wildcard_that_is_always_in_the_hour_left_out_is_refused(self, expression: str, zone: str) -> None:
        with pytest.raises(InvalidSchedule) as refusal:
            parse(expression, zone)
        assert str(refusal.value) == f"'{expression}' {_NEVER} {zone}."

    @pytest.mark.parametrize(
        ("expression", "zone"),
        [
            ("*/10 2 * 3 7L", "UTC"),
            ("30 2 * 3 7L", ROME),
            ("*/10 2,3 * 3 7L", ROME),
            ("*/10 2 * 3,4 7L", ROME),
            ("*/30 2 * 10 0#1", "Australia/Lord_Howe"),
        ],
    )
    def test_one_that_is_also_elsewhere_is_not(self, expression: str, zone: str) -> None:
        assert next_slot(parse(expression, zone), at("2040-01-01T00:00")) < at("2041-01-01T00:00")

    def test_nobody_looks_for_it_until_the_end_of_time(self) -> None:
        """The clock changes may differ from those at registration."""
        for asked in next_slot, latest_slot:
            with pytest.raises(InvalidSchedule, match="is never due"):
                asked(Cron("*/10 2 * 3 7L", ZoneInfo(ROME)), at("2090-01-01T00:00"))


# --- the oracle


@cache
def changes(zone: str, year: int) -> list[datetime]:
    """The clock changes of a year: the first whole minute of each new offset."""
    begin = datetime(year, 1, 1, tzinfo=UTC)
    return [
        _change(zone, day, day + DAY)
        for day in (begin + n * DAY for n in range(366))
        if _offset(zone, day) != _offset(zone, day + DAY)
    ]


def _change(zone: str, before: datetime, after: datetime) -> datetime:
    while after - before > MINUTE:
        middle = before + (after - before) / 2 // MINUTE * MINUTE
        if _offset(zone, middle) == _offset(zone, before):
            before = middle
        else:
            after = middle
    return after


def _offset(zone: str, instant: datetime) -> timedelta | None:
    return instant.astimezone(ZoneInfo(zone)).utcoffset()


def is_change(zone: str, instant: datetime) -> bool:
    return _offset(zone, instant) != _offset(zone, instant - MINUTE)


def minutes(begin: datetime, end: datetime) -> Iterator[datetime]:
    while begin <= end:
        yield begin
        begin += MINUTE


class Oracle:
    """Debian's cron, waking up every minute."""

    def __init__(self, expression: str, zone: str) -> None:
        self.zone = ZoneInfo(zone)
        minute, hour, day, month, weekday = expression.split()
        self.is_fixed = not (minute.startswith("*") or hour.startswith("*"))
        self.both = day.startswith("*") or weekday.startswith("*")
        self.minutes, self.hours = _numbers(minute, 0, 59), _numbers(hour, 0, 23)
        self.days, self.months = _numbers(day, 1, 31), _numbers(month, 1, 12)
        self.weekdays = {number % 7 for number in _numbers(weekday, 0, 7)}

    def slots(self, begin: datetime, end: datetime) -> list[datetime]:
        """The slots from ``begin`` to ``end``. ``begin`` must not be in a repeated hour."""
        slots, seen = [], self.wall(begin) - MINUTE
        for instant in minutes(begin, end):
            wall = self.wall(instant)
            if any(map(self.is_due, minutes(seen + MINUTE, wall))) if self.is_fixed else self.is_due(wall):
                slots.append(instant)
            seen = max(seen, wall)
        return slots

    def wall(self, instant: datetime) -> datetime:
        return instant.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def is_due(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.month not in self.months:
            return False
        day, weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.both else (day or weekday)


def _numbers(field: str, least: int, most: int) -> set[int]:
    numbers: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        numbers |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return numbers


EXPRESSIONS = [
    "* * * * *",
    "*/10 * * * *",
    "0 * * * *",
    "*/30 0-3 * * *",
    "*/7 2 * * *",
    "0 */2 * * *",
    "15 */3 * * *",
    "30 2 * * *",
    "0,30 1-2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "5-55/10 0-4 * * *",
    "0-59 0-23 * * *",
    "30 1 * * 0",
    "17 2,3 1-7 * 1-5",
    "*/20 0,1 */2 * *",
]
# Changes by half an hour, one, two and three hours, and a day; at midnight and a minute past it; twice a year, four
# times a year, and once and for all.
CHANGING = [
    ("Europe/Rome", 2026),
    ("America/New_York", 2026),
    ("America/St_Johns", 2010),
    ("America/Santiago", 2026),
    ("America/Havana", 2026),
    ("America/Caracas", 2016),
    ("America/Scoresbysund", 2024),
    ("Africa/Cairo", 2014),
    ("Africa/Casablanca", 2012),
    ("Antarctica/Casey", 2020),
    ("Antarctica/Troll", 2026),
    ("Asia/Beirut", 2026),
    ("Asia/Colombo", 2006),
    ("Asia/Pyongyang", 2018),
    ("Asia/Tehran", 2020),
    ("Australia/Lord_Howe", 2026),
    ("Europe/Dublin", 2026),
    ("Pacific/Apia", 2011),
    ("Pacific/Chatham", 2026),
    ("Pacific/Norfolk", 2015),
]


def agrees(expression: str, zone: str, change: datetime, starts: list[timedelta]) -> bool:
    """Whether the slots around a change are those of the oracle, whatever instant the search starts from."""
    schedule, begin, end = parse(expression, zone), change - 13 * HOUR, change + 13 * HOUR
    slots = Oracle(expression, zone).slots(begin, end)
    assert list(slots_between(schedule, begin - MICROSECOND, end)) == slots
    for start in (change + start for start in starts):
        latest, following = [slot for slot in slots if slot <= start], [slot for slot in slots if slot > start]
        assert not latest or latest_slot(schedule, start) == latest[-1]
        assert not following or next_slot(schedule, start) == following[0]
    return True


class TestAgainstEveryMinute:
    @pytest.mark.slow
    @pytest.mark.parametrize(("zone", "year"), sampled(CHANGING), ids=str)
    def test_around_each_change(self, zone: str, year: int) -> None:
        random = Random(f"{zone} {year}")
        assert changes(zone, year), "Nothing changes there: is the time zone database old?"
        for change in changes(zone, year):
            for expression in EXPRESSIONS:
                starts = [timedelta(), -MICROSECOND, *(random.uniform(-4, 4) * HOUR for _ in range(6))]
                assert agrees(expression, zone, change, starts)

    @pytest.mark.slow
    @given(st.data())
    @settings(deadline=None)
    def test_any_expression_around_any_change(self, data: st.DataObject) -> None:
        zone, year = data.draw(st.sampled_from(CHANGING))
        change = data.draw(st.sampled_from(changes(zone, year)))
        starts = data.draw(st.lists(st.timedeltas(-5 * HOUR, 5 * HOUR), max_size=5))
        assert agrees(data.draw(expressions), zone, change, starts)

    @pytest.mark.slow
    @given(st.data())
    @settings(deadline=None)
    def test_who_looks_later_finds_nothing_earlier(self, data: st.DataObject) -> None:
        zone, year = data.draw(st.sampled_from(CHANGING))
        change = data.draw(st.sampled_from(changes(zone, year)))
        schedule = parse(data.draw(expressions), zone)
        distance = st.timedeltas(-5 * HOUR, 5 * HOUR) | st.timedeltas(-400 * DAY, 400 * DAY)
        early, late = sorted(change + data.draw(distance) for _ in range(2))
        assert latest_slot(schedule, early) <= latest_slot(schedule, late)
        assert next_slot(schedule, early) <= next_slot(schedule, late)

    @pytest.mark.slow
    @given(st.data())
    def test_any_schedule_can_be_written_and_read(self, data: st.DataObject) -> None:
        schedule = parse(data.draw(expressions), data.draw(st.sampled_from(ZONES)))
        assert parse(schedule.text, schedule.time_zone) == schedule


@st.composite
def fields(draw: st.DrawFn, least: int, most: int) -> str:
    kind = draw(st.sampled_from(["*", "*/n", "a", "a-b", "a-b/n", "a,b-c"]))
    first, middle, last = sorted(draw(st.lists(st.integers(least, most), min_size=3, max_size=3, unique=True)))
    step = draw(st.integers(1, most))
    texts = {
        "*": "*",
        "*/n": f"*/{step}",
        "a": f"{first}",
        "a-b": f"{first}-{last}",
        "a-b/n": f"{first}-{last}/{step}",
        "a,b-c": f"{first},{middle}-{last}",
    }
    return texts[kind]


# Mostly hours and minutes, because these are what clock changes affect.
expressions = st.tuples(
    fields(0, 59), fields(0, 23) | fields(0, 3), st.just("*") | fields(1, 28), st.just("*"), st.just("*") | fields(0, 7)
).map(" ".join)


# --- the sweep

SWEPT_ZONES = [
    *sorted({zone for zone, _ in CHANGING}),
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Europe/London",
    "Europe/Volgograd",
    "Pacific/Easter",
    "UTC",
]
SWEPT_EXPRESSIONS = [
    "* * * * *",
    "*/10 * * * *",
    "0 * * * *",
    "*/30 0-3 * * *",
    "*/20 2 * * *",
    "45 */2 * * *",
    "30 2 * * *",
    "0,30 1-2 * * *",
    "0 0 * * *",
    "59 23 * * 1-5",
    "0-59 0-23 * * *",
    "30 1 * * 0",
    "0 3 13 * 5",
    "0 0 31 * *",
    "0 0 1 1 *",
]


def starts_of(zone: str, expression: str) -> Iterator[datetime]:
    """Starts anywhere in 38 years, and as many close to a clock change. Some of each are at a whole minute."""
    random = Random(f"{zone} {expression}")
    near = [change for year in range(2000, 2038) for change in changes(zone, year)]
    begin, end = datetime(2000, 1, 1, tzinfo=UTC), datetime(2038, 1, 1, tzinfo=UTC)
    for number in range(STARTS):
        start = begin + random.random() * (end - begin)
        if near and number % 2:
            start = random.choice(near) + random.uniform(-3, 3) * HOUR
        yield start.replace(second=0, microsecond=0) if random.random() < 0.3 else start


@pytest.mark.slow
@pytest.mark.timeout(120 + STARTS)
@pytest.mark.parametrize("zone", SWEPT_ZONES)
def test_wherever_one_starts_the_latest_slot_is_past_and_the_next_one_is_not(zone: str) -> None:
    for expression in SWEPT_EXPRESSIONS:
        schedule, oracle = parse(expression, zone), Oracle(expression, zone)
        for start in starts_of(zone, expression):
            latest, following = latest_slot(schedule, start), next_slot(schedule, start)
            assert latest <= start < following, (expression, start)
            assert next_slot(schedule, latest - MICROSECOND) == latest, (expression, start)
            assert next_slot(schedule, latest) == following, (expression, start)
            for slot in latest, following:
                assert (slot.tzinfo, slot.second, slot.microsecond) == (UTC, 0, 0)
                assert oracle.is_due(oracle.wall(slot)) or (oracle.is_fixed and is_change(zone, slot)), (
                    expression,
                    slot,
                )


@pytest.fixture
def no_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    usual = zoneinfo.TZPATH
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath([])
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(usual)


@pytest.mark.usefixtures("no_time_zones")
def test_without_zone_data_it_is_said_what_to_install() -> None:
    with pytest.raises(InvalidSchedule, match="has no time zone data: install the package tzdata"):
        parse("@daily", "Europe/Nowhere")


@pytest.mark.parametrize(
    ("expression", "is_either"),
    [("0 8 13 * 5", True), ("0 8 13 * *", False), ("0 8 */2 * 5", False), ("0 8 1-7 * */5", False)],
)
def test_two_kinds_of_days_are_said_to_be_alternatives(expression: str, is_either: bool) -> None:
    cron = parse(expression)
    assert isinstance(cron, Cron)
    assert cron.is_on_either_day is is_either
    words = schedule_in_words(cron)
    assert (" or on " in words) is is_either
    assert not is_either or " and on " not in words
