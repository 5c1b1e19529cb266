"""``retry_one_offs``: which it retries, and which it leaves alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import singleton_job
from django_singlejob.models.one_offs import one_offs
from django_singlejob.running.enqueue import Order, place
from tests.contract.acts import ticked

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def told(*words: Any, **options: Any) -> str:
    out = StringIO()
    call_command("retry_one_offs", *words, stdout=out, no_color=True, **options)
    return out.getvalue()


def add(status: str = "failed", **columns: Any) -> int:
    return int(place(Order(job_name="nightly"), [], {}, status=status, attempt=1, **columns).pk)


def statuses() -> list[str]:
    return list(one_offs().order_by("pk").values_list("status", flat=True))


def test_a_failed_one_runs_once_more() -> None:
    calls: list[int] = []
    singleton_job("nightly")(lambda: calls.append(1))
    assert told(add()) == "Retried 1 one-off.\n"
    assert (one_offs().get().max_attempts, statuses()) == (2, ["waiting"])
    assert len(ticked()) == len(calls) == 1
    assert statuses() == ["done"]


def test_what_has_not_failed_is_left_alone() -> None:
    for status in "failed", "waiting", "in_progress", "done":
        add(status)
    said = told("--job", "nightly")
    first, second, _ = said.split("\n")
    assert first == "Retried 1 one-off."
    assert second.startswith("Left alone, because they have not failed: ")
    assert {*second.rstrip(".").partition(": ")[2].split(", ")} == {"1 waiting", "1 in progress", "1 done"}
    assert statuses() == ["waiting", "waiting", "in_progress", "done"]


@pytest.mark.parametrize(
    ("words", "count"), [(["--job", "nightly"], 0), (["--job", "nightly", "--cancelled"], 1)], ids=str
)
def test_what_was_cancelled_is_retried_only_if_that_is_wanted(words: list[str], count: int) -> None:
    add("cancelled")
    assert told(*words).startswith(f"Retried {count} one-off")
    assert statuses() == ["waiting" if count else "cancelled"]


def test_or_if_it_is_named() -> None:
    assert told(add("cancelled")) == "Retried 1 one-off.\n"


@pytest.mark.parametrize("since", ["2026-11-21T12:00Z", "2026-11-22T11:00:01+23:00:01", NOON], ids=str)
def test_those_that_failed_since_an_instant_are_retried(since: object) -> None:
    add(finished_at=NOON.replace(hour=11))
    add(finished_at=NOON)
    add("cancelled", finished_at=NOON)
    assert told(failed_since=since).startswith("Retried 1 one-off.\n")
    assert statuses() == ["failed", "waiting", "cancelled"]


def test_cancelled_ones_have_not_failed_since() -> None:
    with pytest.raises(CommandError, match="--failed-since is for failed ones"):
        told("--cancelled", "--failed-since", "2026-11-21")


def test_no_criterion_is_an_error() -> None:
    add()
    for words in [], ["--cancelled"]:
        with pytest.raises(CommandError, match="Choose the one-offs"):
            told(*words)
    assert statuses() == ["failed"]


def test_a_dry_run_only_counts() -> None:
    add()
    assert told("--job", "nightly", "--dry-run") == "Would retry 1 one-off.\n"
    facts = {"retried": 1, "left": {}, "missing": [], "dry_run": True}
    assert json.loads(told("--job", "nightly", dry_run=True, format="json")) == facts
    assert statuses() == ["failed"]
