"""``cancel_one_offs``: which it cancels, what it says, and its exit status."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from django_singlejob.management.exit_status import EX_USAGE
from django_singlejob.models.one_offs import OneOffJobQuerySet, one_offs
from django_singlejob.running.enqueue import Order, place
from tests.contract.acts import expire, is_free, take

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def told(*words: Any, **options: Any) -> tuple[int, str, str]:
    """The exit status, and what is written to standard output and to standard error."""
    out, err = StringIO(), StringIO()
    try:
        call_command("cancel_one_offs", *words, stdout=out, stderr=err, no_color=True, **options)
    except SystemExit as done:
        return int(str(done.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def add(job_name: str = "nightly", status: str = "waiting", **columns: Any) -> int:
    order = Order(job_name=job_name, **{key: columns.pop(key) for key in ("queue_name", "task_path") if key in columns})
    return int(place(order, [], {}, status=status, **columns).pk)


def statuses() -> list[str]:
    return list(one_offs().order_by("pk").values_list("status", flat=True))


def test_those_that_are_named_are_cancelled() -> None:
    first, second, third = add(), add(), add()
    assert told(first, third) == (0, "Cancelled 2 one-offs.\n", "")
    assert statuses() == ["cancelled", "waiting", "cancelled"]
    row = one_offs().get(pk=first)
    assert row.version == 1
    assert row.finished_at is not None
    assert told(str(second))[1] == "Cancelled 1 one-off.\n"


def test_what_has_begun_or_ended_is_left_alone() -> None:
    ids = [add(status=status) for status in ("waiting", "in_progress", "done", "done")]
    said = "Left alone, because only waiting ones can be cancelled: 1 in progress, 2 done."
    assert told(*ids) == (0, f"Cancelled 1 one-off.\n{said}\n", "")
    assert statuses() == ["cancelled", "in_progress", "done", "done"]


def test_a_number_that_is_not_there_is_an_error() -> None:
    known = add()
    status, out, err = told(known, known + 1)
    assert (status, out) == (EX_USAGE, "Cancelled 1 one-off.\n")
    assert err == f"There is no one-off {known + 1}, or it does not meet the other criteria.\n"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--job", "nightly"], ["hourly", "shop.tasks.send"]),
        (["--job", "nightly", "--job", "hourly"], ["shop.tasks.send"]),
        (["--queue", "mail"], ["nightly"]),
        (["--task", "shop.tasks.send"], ["nightly", "hourly"]),
        (["--job", "hourly", "--queue", "mail"], ["nightly", "shop.tasks.send"]),
        (["--job", "nightly", "--queue", "mail"], ["nightly", "hourly", "shop.tasks.send"]),
    ],
    ids=str,
)
def test_those_that_meet_all_criteria_are_cancelled(words: list[str], left: list[str]) -> None:
    add()
    add("hourly", queue_name="mail")
    add("", task_path="shop.tasks.send", queue_name="mail")
    assert told(*words)[1].startswith(f"Cancelled {3 - len(left)} one-off")
    assert [row.name for row in one_offs().waiting().order_by("pk")] == left


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--job", ""], ["--queue="], ["many"]], ids=str)
def test_no_criterion_is_an_error(words: list[str]) -> None:
    add()
    with pytest.raises(CommandError):
        told(*words)
    assert statuses() == ["waiting"]


def test_a_dry_run_only_counts() -> None:
    add()
    add(status="failed")
    status, out, _ = told("--job", "nightly", "--dry-run")
    left = "Left alone, because only waiting ones can be cancelled: 1 failed.\n"
    assert (status, out) == (0, f"Would cancel 1 one-off.\n{left}")
    assert statuses() == ["waiting", "failed"]


def test_json_has_it_all() -> None:
    known = add()
    add(status="done")
    facts = {"cancelled": 1, "left": {"done": 1}, "missing": [], "dry_run": False}
    assert json.loads(told("--job", "nightly", format="json")[1]) == facts
    assert json.loads(told(known + 9, format="json")[1])["missing"] == [known + 9]


def test_it_can_be_quiet() -> None:
    assert told(add(), verbosity=0) == (0, "", "")
    assert told(add(), verbosity=0, format="json") == (0, "", "")
    assert told(10**6, verbosity=0)[1] == ""


def test_many_are_cancelled_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        add()
    batches = OneOffJobQuerySet.batches
    monkeypatch.setattr(OneOffJobQuerySet, "batches", lambda rows: batches(rows, 2))
    assert told("--job", "nightly")[1] == "Cancelled 5 one-offs.\n"


def test_one_that_a_worker_claims_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    add()
    claimed = add()
    cancel = OneOffJobQuerySet.cancel

    def overtaken(rows: OneOffJobQuerySet) -> int:
        one_offs().filter(pk=claimed).update(status="in_progress")
        return cancel(rows)

    monkeypatch.setattr(OneOffJobQuerySet, "cancel", overtaken)
    said = "Left alone, because only waiting ones can be cancelled: 1 changed meanwhile."
    assert told("--job", "nightly")[1] == f"Cancelled 1 one-off.\n{said}\n"
    assert statuses() == ["cancelled", "in_progress"]


def test_a_worker_in_the_way_is_only_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    add()
    cancel, calls = OneOffJobQuerySet.cancel, []

    def deadlocked(rows: OneOffJobQuerySet) -> int:
        calls.append(rows)
        if len(calls) == 1:
            error = {"postgresql": "40P01", "mysql": 1213, "sqlite": "SQLITE_BUSY"}[connection.vendor]
            cause = Exception(error)
            named = {"postgresql": "sqlstate", "sqlite": "sqlite_errorname"}
            if connection.vendor in named:
                setattr(cause, named[connection.vendor], error)
            raise OperationalError(error) from cause
        return cancel(rows)

    monkeypatch.setattr(OneOffJobQuerySet, "cancel", deadlocked)
    assert told("--job", "nightly")[1] == "Cancelled 1 one-off.\n"
    assert len(calls) == 2


def test_if_it_may_have_been_done_it_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would tell that nothing was cancelled."""
    add()
    cancel, calls = OneOffJobQuerySet.cancel, []

    def lose_the_answer(rows: OneOffJobQuerySet) -> int:
        calls.append(cancel(rows))
        raise OperationalError("the answer is lost")

    monkeypatch.setattr(OneOffJobQuerySet, "cancel", lose_the_answer)
    with pytest.raises(CommandError, match="The database does not answer: the answer is lost"):
        told("--job", "nightly")
    assert calls == [1]


def test_all_that_wait_are_cancelled() -> None:
    for status in ("waiting", "waiting", "in_progress", "done", "failed"):
        add(status=status)
    add(job_name="", task_path="shop.tasks.mail", queue_name="slow")
    assert told(all=True, dry_run=True)[1].startswith("Would cancel 3 one-offs.")
    said = "Left alone, because only waiting ones can be cancelled: 1 in progress."
    assert told("--all") == (0, f"Cancelled 3 one-offs.\n{said}\n", "")
    assert statuses() == ["cancelled", "cancelled", "in_progress", "done", "failed", "cancelled"]


@pytest.mark.parametrize("words", [["--all", "7"], ["--all", "--queue", "slow"], []], ids=str)
def test_all_leaves_nothing_to_choose(words: list[str]) -> None:
    with pytest.raises(CommandError, match="or all that wait: --all"):
        told(*words)


def test_a_copy_of_production_is_cleaned_although_nothing_runs_there(settings: Settings) -> None:
    place(Order(job_name="nightly"), [], {})
    begun = place(Order(job_name="nightly", max_attempts=3), [], {})
    take(job_name="nightly", trigger="one_off", one_off=begun)
    expire()
    settings.SINGLEJOB = {"ENABLED": False}
    call_command("clear_stale_locks", stdout=StringIO())
    assert is_free()
    assert statuses() == ["waiting", "waiting"]
    assert told("--all") == (0, "Cancelled 2 one-offs.\n", "")
