"""What is deleted, and what is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from django_singlejob.conf import ZERO
from django_singlejob.exceptions import SkipRun
from django_singlejob.models.jobs import database_now, gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.worker import pruning
from tests.contract.acts import HOUR, start_run

if TYPE_CHECKING:
    from pytest_django.fixtures import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

DAY = timedelta(days=1)


def has_run(name: str, ago: timedelta, *, is_slot: bool = False) -> None:
    slot = database_now() - ago if is_slot else None
    facts = {"fence": 1, "token": uuid4(), "status": "successful", "trigger": "call", "hostname": "web-1", "pid": 1}
    runs().create(job_name=name, started_at=database_now() - ago, slot=slot, output=str(ago.days), **facts)


def outputs(name: str) -> list[str]:
    return [*runs().filter(job_name=name).order_by("pk").values_list("output", flat=True)]


def is_due() -> bool:
    return any(rows.exists() for rows in pruning.anything_to_prune())


def test_whatever_history_keep_says_the_slots_of_a_weekend_are_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SINGLEJOB = {"HISTORY_KEEP": 1}
    monkeypatch.setattr(pruning, "KEPT_OUTPUTS", 2)
    for ago in 4 * DAY, 2 * DAY, 2 * DAY, DAY, ZERO:
        has_run("mail", ago)
        has_run("nightly", ago, is_slot=True)
    assert pruning.prune() == "5 runs, 2 outputs"
    assert outputs("mail") == ["0"]
    assert outputs("nightly") == ["", "", "1", "0"]


def test_those_that_history_keep_keeps_are_kept_with_their_output(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SINGLEJOB = {"HISTORY_KEEP": 3}
    monkeypatch.setattr(pruning, "KEPT_OUTPUTS", 1)
    for ago in DAY, DAY, HOUR, ZERO:
        has_run("nightly", ago, is_slot=True)
    assert pruning.prune() == "1 outputs"
    assert outputs("nightly") == ["", "1", "0", "0"]


def test_a_run_that_goes_on_is_kept() -> None:
    start_run()
    runs().update(started_at=DBNow() - 99 * DAY)
    assert not is_due()
    assert pruning.prune() == ""


def test_what_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    has_run("nightly", 99 * DAY)
    monkeypatch.setattr(pruning, "LONGEST", -1)
    with pytest.raises(SkipRun, match="1 runs"):
        pruning.prune()


@pytest.mark.parametrize(
    ("ago", "status", "is_due_again"),
    [
        (HOUR, "successful", False),
        (HOUR, "failed", False),
        (HOUR, "abandoned", False),
        (HOUR, "skipped", True),
        (HOUR, "interrupted", True),
        (25 * HOUR, "successful", True),
        (-25 * HOUR, "successful", True),  # the clock was set back
    ],
)
def test_it_is_due_once_a_day_or_at_once_if_it_was_cut_short(ago: timedelta, status: str, is_due_again: bool) -> None:
    has_run("nightly", 2 * DAY)
    assert is_due()
    gates().remember(pruning.PRUNING.name)
    gates().filter(name=pruning.PRUNING.name).update(last_started_at=DBNow() - ago, last_status=status)
    assert is_due() is is_due_again


def test_it_is_not_due_for_what_is_young() -> None:
    has_run("nightly", 23 * HOUR)
    assert not is_due()


@pytest.mark.parametrize(("ago", "is_old"), [(23 * HOUR, False), (25 * HOUR, True)])
def test_it_is_due_for_one_offs_too(ago: timedelta, is_old: bool) -> None:
    one_offs().create(status="done", finished_at=DBNow() - ago, run_after=DBNow(), created_at=DBNow())
    assert is_due() is is_old
