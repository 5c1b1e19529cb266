"""The high part of a fence, which lets the fence grow even if a failover has lost the last grants."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.db import ProgrammingError, connection

from django_singlejob.database import timeline
from django_singlejob.models.jobs import gates
from tests.contract.acts import BEAT, gate, last_run, nth_fence, start_run, stop_the_clock, take
from tests.databases import named

if TYPE_CHECKING:
    from django_singlejob.models import JobStatus

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("fresh_process"),
]
on_postgresql = pytest.mark.on_database("postgresql")


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a process that has just started."""
    monkeypatch.setattr(timeline, "_known_since", {})
    monkeypatch.setattr(timeline, "_silent", set())


def promote(monkeypatch: pytest.MonkeyPatch, number: int = 7) -> None:
    """From now on, another server is the database."""
    monkeypatch.setattr(timeline, "SQL", str(number))


def seen(name: str = "nightly") -> JobStatus:
    gates().remember(name)
    return gates().look_up({name}, timedelta())[name]


@on_postgresql
def test_it_is_the_servers() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT timeline_id FROM pg_control_checkpoint()")
        (number,) = cursor.fetchone()
    assert seen().timeline == number
    assert take().fence == (number << timeline.GRANT_BITS) + 1


@pytest.mark.on_database("sqlite", "mysql")
def test_other_databases_have_none_and_count_from_one() -> None:
    assert seen().timeline == 0
    assert take().fence == 1


@on_postgresql
def test_after_a_promotion_fences_go_on_far_above_those_that_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [take(), *[start_run(name) for name in ("hourly", "daily")]]
    gates().filter(name="nightly").update(fence=nth_fence(1) + 90)
    take("weekly")
    promote(monkeypatch)
    lost[0].release()
    lease = take()
    assert (lease.fence, gate().fence) == ((7 << timeline.GRANT_BITS) + 1,) * 2
    lease.release()
    assert start_run().fence == last_run().fence == (7 << timeline.GRANT_BITS) + 2


@on_postgresql
def test_fences_never_go_back_in_a_dump_that_was_restored_into_a_new_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_clock(monkeypatch)
    restored = (9 << timeline.GRANT_BITS) + 41
    gates().create(name="nightly", fence=restored, token=uuid4())
    assert take(heartbeat_interval=BEAT).fence == restored + 1


@on_postgresql
def test_a_server_that_was_promoted_since_the_look_grants_nothing_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = seen()
    promote(monkeypatch)
    assert not gates().pass_through(before, uuid4())
    assert not gates().grantable(before).start(timedelta(), {})
    assert gates().pass_through(seen(), uuid4())
    assert gate().fence == (7 << timeline.GRANT_BITS) + 1


# --- databases that do not report it


@on_postgresql
def test_a_database_that_refuses_is_warned_of_once_and_counts_from_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timeline, "SQL", "no_such_function()")
    assert [take(name).fence for name in ("nightly", "hourly")] == [1, 1]
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "The database 'default' does not report its timeline, so a failover may repeat fences"
    ]


@on_postgresql
@pytest.mark.django_db
def test_it_may_refuse_inside_a_test_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "SQL", "no_such_function()")
    assert take().fence == 1
    assert gates().exists()


@on_postgresql
def test_an_ordinary_role_may_ask_for_it_and_what_it_may_not_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    role = named("role")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}")
        try:
            cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
            cursor.execute(f"SET ROLE {role}")
            assert seen().timeline > 0
            monkeypatch.setattr(timeline, "SQL", "(SELECT count(*) FROM pg_ls_waldir())")
            assert seen().timeline == 0
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")


@on_postgresql
def test_another_error_is_nobodys_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "SQL", "no_such_column")
    with pytest.raises(ProgrammingError, match="no_such_column"):
        seen()
    assert not timeline._silent
