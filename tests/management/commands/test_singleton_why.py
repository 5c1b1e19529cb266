"""What `singleton_why` prints."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_singlejob import singleton_job
from django_singlejob.control.pausing import pause
from django_singlejob.models.runs import runs
from tests.contract.acts import fall_behind, scheduled, ticked

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def told(*arguments: str) -> str:
    output = StringIO()
    call_command("singleton_why", *arguments, stdout=output)
    return output.getvalue()


def test_a_sentence_what_proves_it_and_what_to_do() -> None:
    scheduled()
    pause("nightly", reason="supplier\x1b[31m down", by="anna")
    sentence, proof, remedy = told("nightly").splitlines()
    assert "anna (supplier" in sentence
    assert "\x1b" not in sentence
    assert proof.startswith("  Note of ")
    assert remedy.startswith("Resume it")


def test_as_json() -> None:
    job = scheduled()
    fall_behind(job)
    ticked()
    slot = ticked_slot()
    (found,) = json.loads(told("nightly", "--at", slot, "--format", "json"))["answers"]
    assert (found["name"], found["cause"], found["remedy"]) == ("nightly", "ran", "")
    assert found["slot"].startswith(slot[:16])
    assert len(found["evidence"]) == 1


def ticked_slot() -> str:
    slot = runs().get().slot
    assert slot
    return slot.isoformat()


def test_an_hour_that_is_repeated_has_two_answers() -> None:
    singleton_job("nightly", schedule="30 * * * *", time_zone="Europe/Berlin")(print)
    first, second = told("nightly", "--at", "2027-10-31 02:30").splitlines()
    assert "CEST" in first
    assert "CET" in second


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "There is no job 'nonsense'"),
        (["nightly", "--at", "yesterday"], "'yesterday' is not an instant"),
        (["nightly", "--at", "9999-12-31T23:59"], "too far away"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], words: str) -> None:
    singleton_job("nightly")(print)
    with pytest.raises(CommandError, match=words) as refused:
        told(*arguments)
    assert refused.value.returncode in (1, 2)


def test_nothing_is_written() -> None:
    fall_behind(scheduled())
    with CaptureQueriesContext(connection) as queries:
        told("nightly")
    assert all(query["sql"].startswith("SELECT") for query in queries)
