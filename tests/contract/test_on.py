"""`on`: which servers ask for a job. It grants nothing: the lock alone decides between two that may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import Reason, SingleJobError, singleton_job, status
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.runner import run_due
from tests.contract.acts import HOUR, expire, fall_behind, gate, is_free, start_run, ticked
from tests.databases import APPS

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


@pytest.fixture(autouse=True)
def _on_web1(settings: Settings) -> None:
    call_it(settings, "web1.example.org")


def call_it(settings: Settings, name: str) -> None:
    """This server has this name from now on."""
    settings.SINGLEJOB = {**settings.SINGLEJOB, "HOSTNAME": name}


def job_on(on: Any, name: str = "nightly", **options: Any) -> Any:
    return singleton_job(name, on=on, **options)(lambda: name)


@pytest.mark.parametrize(
    ("on", "is_mine"),
    [
        ("web1", True),
        ("web1.example.org", True),
        ("web*", True),
        ("*.example.org", True),
        (["db1", "web?"], True),
        (("web[12]",), True),
        ("web2", False),
        ("WEB1", False),
        ("example.org", False),
        (["db1", "db2"], False),
        ((), True),
    ],
)
def test_a_name_is_compared_with_the_host_name_and_with_its_first_part(on: Any, is_mine: bool) -> None:
    assert job_on(on).is_for("web1.example.org") is is_mine


@pytest.mark.parametrize("on", ["", " ", [], ["web1", ""], [1], 1, {"web1": 1}])
def test_what_names_no_server_is_refused(on: Any) -> None:
    with pytest.raises(SingleJobError, match=r"Job 'nightly': on is .*, but must be the name of a server"):
        job_on(on)


def test_no_slot_is_asked_for_elsewhere_and_none_is_lost(settings: Settings) -> None:
    job = job_on("web1", schedule=HOUR)
    fall_behind(job)
    slot = gate("nightly").next_slot
    call_it(settings, "web2")
    assert ticked() == []
    with CaptureQueriesContext(connection) as queries:
        [outcome] = run_due(job)
    assert (outcome.reason, len(queries)) == (Reason.NOT_HERE, 0)
    assert gate("nightly").next_slot == slot
    call_it(settings, "web1")
    assert [report.slot for report in ticked()] == [slot]


def test_no_one_off_is_run_elsewhere(settings: Settings) -> None:
    job_on("web2").enqueue()
    singleton_job("hourly")(lambda: None).enqueue()
    assert [report.name for report in ticked()] == ["hourly"]
    assert one_offs().get(job_name="nightly").status == "waiting"
    call_it(settings, "web2")
    assert [report.name for report in ticked()] == ["nightly"]


def test_it_still_clears_the_lock_of_a_dead_holder() -> None:
    job_on("web2")
    start_run("nightly")
    expire("nightly")
    ticked()
    assert is_free("nightly")


def test_a_call_runs_anywhere_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert job_on(["web2", "db*"])() == "nightly"
    assert caplog.messages == ["The job 'nightly' runs on web1.example.org, although it is for web2, db*."]


def test_if_nobody_comes_it_is_overdue_and_says_whose_it_is() -> None:
    fall_behind(job_on("web2", schedule=HOUR))
    gates().update(next_slot=DBNow() - 2 * HOUR)
    [finding] = [each for each in status().findings if each.kind == "overdue"]
    assert finding.remedy == "Check that cron or a worker runs on a server that its on= names: web2."
