"""The workers that monitoring lists."""

from __future__ import annotations

from datetime import time, timedelta
from typing import Any

import pytest
from django.db.models import Q

from django_singlejob.conf import ZERO
from django_singlejob.models.jobs import database_now
from django_singlejob.models.locks import locks
from django_singlejob.models.passes import passes
from django_singlejob.monitoring.health import survey
from django_singlejob.monitoring.marks import DISABLED, Mark, marks, record
from django_singlejob.monitoring.workers import REMEMBERED, servers, serves, workers
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process
from tests.contract.acts import HOUR, MINUTE, expire, take

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

FIRST, SECOND = "django_singlejob.worker.1", "django_singlejob.worker.2"


def test_a_lock_that_is_taken_over_has_the_queues_of_its_new_holder() -> None:
    take(FIRST, queues=["mail"])
    expire(FIRST)
    take(FIRST)
    assert [worker.queues for worker in workers()] == [()]


def test_neither_a_worker_nor_a_pass_is_a_job() -> None:
    lease = take(FIRST)
    record(Mark(this_process()))
    assert [(health.name, health.is_job) for health in survey().healths] == [(FIRST, False)]
    assert lease.release()
    assert survey().healths == []


def test_queues_that_somebody_edited_fail_nothing() -> None:
    take(FIRST)
    locks().update(queues=7)
    assert [worker.queues for worker in workers()] == [()]


@pytest.mark.parametrize(("queues", "is_served"), [((), True), (("mail", "media"), True), (("media",), False)])
def test_a_worker_without_queues_serves_all(queues: tuple[str, ...], is_served: bool) -> None:
    take(FIRST, queues=queues)
    (worker,) = workers()
    assert serves(worker, "mail") is is_served


# --- servers

DAY = timedelta(days=1)


def ask(hostname: str, *queues: str, ago: timedelta = ZERO, first: timedelta = 2 * DAY, **facts: Any) -> None:
    """A server asked this long ago, and for the first time ``first`` ago."""
    mine = Mark(this_process()._replace(hostname=hostname), queues, **facts)
    record(mine)
    passes().filter(key=mine.key).update(seen_at=DBNow() - ago, first_seen_at=DBNow() - first)


def silent() -> list[str]:
    return [server.hostname for server in servers(marks(REMEMBERED)) if server.is_silent]


def test_a_server_is_listed_with_its_release_and_its_clock() -> None:
    ask("web-2", "mail", release="2.1")
    ask("web-1", release="2.0", is_once=False)
    first, second = servers(marks(REMEMBERED))
    assert (first.hostname, first.queues, first.release, first.is_once) == ("web-1", (), "2.0", False)
    assert (second.hostname, second.queues, second.release, second.is_once) == ("web-2", ("mail",), "2.1", True)
    assert second.clock_error is not None
    assert first.is_asking
    assert first.age < MINUTE


def test_a_server_that_was_seen_on_two_days_is_missed() -> None:
    ask("web-1", ago=14 * MINUTE)
    ask("web-2", ago=16 * MINUTE)
    ask("pod-1", ago=16 * MINUTE, first=17 * MINUTE)
    if database_now().time() < time(1):
        pytest.skip("What was seen minutes ago may have been seen yesterday.")
    assert silent() == ["web-2"]


def test_a_server_is_forgotten_after_three_days() -> None:
    ask("web-1", ago=3 * DAY - MINUTE, first=9 * DAY)
    assert silent() == ["web-1"]
    ask("web-1", ago=3 * DAY + MINUTE, first=9 * DAY)
    assert servers(marks(REMEMBERED)) == []


def test_one_that_asks_each_night_is_not_missed_in_the_morning() -> None:
    ask("web-1", ago=DAY)
    ask("web-1", ago=8 * HOUR)
    assert silent() == []
    ask("web-2", ago=MINUTE)
    ask("web-2", ago=8 * HOUR)
    assert silent() == ["web-2"]


def test_one_that_asks_from_monday_to_friday_is_not_missed_on_sunday() -> None:
    ask("web-1", ago=DAY, first=9 * DAY)
    ask("web-1", ago=2 * DAY + HOUR, first=9 * DAY)
    assert silent() == []


def test_one_that_was_seen_for_minutes_around_midnight_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    ask("pod-1")
    midnight = database_now().replace(hour=0, minute=0, second=0, microsecond=0)
    passes().update(first_seen_at=midnight - 2 * MINUTE, seen_at=midnight + 2 * MINUTE)
    (row,) = passes().judged(Q()).filter(hostname="pod-1")
    row.now = midnight + 40 * MINUTE
    assert not any(server.is_silent for server in servers([row]))


def test_other_queues_take_the_place_of_those_of_the_same_server() -> None:
    ask("web-1", "mail", ago=HOUR)
    ask("web-1", "mail", "media", first=HOUR)
    assert silent() == []


def test_a_server_that_runs_nothing_is_no_worker() -> None:
    ask("web-1", trouble=DISABLED)
    ask("web-2", trouble="Some jobs cannot be registered.")
    assert [worker.holder.split(",")[0] for worker in workers()] == ["web-2"]


def test_a_new_server_takes_the_place_of_one_of_the_same_queues() -> None:
    for number in range(3):
        ask(f"pod-{number}", ago=HOUR)
    ask("pod-3", first=HOUR)
    ask("pod-4", first=HOUR + 10 * MINUTE)  # before the old one ended
    ask("pod-5", "mail", first=HOUR)
    ask("pod-6", first=3 * HOUR)
    assert len(silent()) == 1
    ask("pod-7", ago=MINUTE, first=HOUR / 2)
    assert silent() == []


def test_each_deploy_replaces_the_containers_of_the_last_one() -> None:
    ask("pod-1", ago=2 * DAY, first=3 * DAY)
    ask("pod-2", ago=DAY, first=2 * DAY)
    ask("pod-3", first=DAY)
    assert silent() == []
    passes().filter(hostname="pod-3").delete()
    assert silent() == ["pod-2"]
