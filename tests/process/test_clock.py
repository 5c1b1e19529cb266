from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_singlejob.models.jobs import gates
from django_singlejob.process import clock
from django_singlejob.process.clock import DBNow, backoff, instant_in_words, local_now, since
from tests.waiting import seconds_of, work_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)

# Seconds since the epoch, whatever the session's time zone.
SERVER_SECONDS = {
    "sqlite": "SELECT strftime('%s', 'now') || substr(strftime('%f', 'now'), 3)",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT UNIX_TIMESTAMP(SYSDATE(6))",
}
SET_ZONE = {"postgresql": "SET TIME ZONE %s", "mysql": "SET time_zone = %s"}
USUAL_ZONE = {"postgresql": "UTC", "mysql": "SYSTEM"}


@pytest.fixture(params=[None, "+05:00", "-11:30"])
def zone(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The session's time zone, if the database has one: each test runs in UTC and far away."""
    if request.param and connection.vendor not in SET_ZONE:
        pytest.skip("there are no sessions with time zones")
    if request.param:
        set_zone(request.param)
    yield request.param
    if request.param:
        set_zone(USUAL_ZONE[connection.vendor])


def set_zone(zone: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SET_ZONE[connection.vendor], [zone])


def server_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute(SERVER_SECONDS[connection.vendor])
        (seconds,) = cursor.fetchone()
    return datetime.fromtimestamp(float(seconds), UTC)


def test_it_is_the_servers_clock_in_utc(zone: str | None) -> None:
    gates().create(name="nightly")
    before = server_now()
    row = gates().annotate(at=DBNow(), soon=DBNow() + 90 * SECOND).values().get()
    assert row["at"].utcoffset() is not None
    assert before <= row["at"] <= server_now()
    assert row["soon"] - row["at"] == 90 * SECOND


def test_what_is_written_is_read_as_the_same_instant(zone: str | None) -> None:
    before = server_now()
    gates().create(name="nightly", last_started_at=DBNow())
    gates().update(last_finished_at=DBNow() - 90 * SECOND)
    gate = gates().get(name="nightly")
    assert gate.last_started_at
    assert gate.last_finished_at
    assert before <= gate.last_started_at <= gate.last_finished_at + 90 * SECOND <= server_now()


def test_it_is_compared_with_what_it_wrote(zone: str | None) -> None:
    gates().create(name="nightly", last_started_at=DBNow())
    assert names_started_after(-SECOND) == ["nightly"]
    assert names_started_after(SECOND) == []


def test_it_is_compared_with_what_python_wrote(zone: str | None) -> None:
    now = server_now()
    gates().create(name="earlier", last_started_at=now - 2 * SECOND)
    gates().create(name="later", last_started_at=(now + 60 * SECOND).replace(microsecond=0))
    assert names_started_after(-60 * SECOND) == ["earlier", "later"]
    assert names_started_after(SECOND * 0) == ["later"]
    assert names_started_after(120 * SECOND) == []


def names_started_after(offset: timedelta) -> list[str]:
    return list(gates().filter(last_started_at__gt=DBNow() + offset).values_list("name", flat=True).order_by("name"))


@pytest.mark.parametrize("has_boot_clock", [True, False])
def test_the_local_clock_measures_spans(monkeypatch: pytest.MonkeyPatch, has_boot_clock: bool) -> None:
    if not has_boot_clock:
        monkeypatch.setattr(clock, "_CLOCK", None)
    spans = list[timedelta]()

    def measure() -> None:
        begun_at = local_now()
        work_for(0.1)
        spans.extend([since(begun_at), since(begun_at - 90) - 90 * SECOND])

    longest = timedelta(seconds=seconds_of(measure))
    assert SECOND / 10 <= spans[0] <= spans[1] <= longest


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux alone has this clock")
def test_the_local_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as suspended:
        suspended.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 5000.0}.get)
        now = local_now()
    assert now == 5000.0


def test_pauses_grow_up_to_a_bound_and_are_never_the_same() -> None:
    first, second = list(islice(backoff(), 30)), list(islice(backoff(), 30))
    assert first[0] == second[0] == 0
    assert first[1:] != second[1:]
    assert all(0.025 <= pause <= 1.5 for pause in first[1:])
    assert sum(first[1:5]) < sum(first[-4:])


def test_people_are_told_utc() -> None:
    noon = datetime(2026, 11, 21, 12, 0, 0, 999, tzinfo=timezone(timedelta(hours=5)))
    assert instant_in_words(noon) == "2026-11-21 07:00:00 UTC"


def test_the_time_of_day_goes_through_the_module_time_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation replaces only that module."""
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=lambda: 86_400.5))
    assert clock.utc_now() == datetime(1970, 1, 2, 0, 0, 0, 500_000, UTC)
