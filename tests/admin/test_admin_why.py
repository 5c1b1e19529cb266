"""The page that says why a job runs, or not."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from django_singlejob.control.pausing import pause
from django_singlejob.models.runs import runs
from tests.admin.pages import page_of, shown
from tests.contract.acts import fall_behind, scheduled, ticked

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

URL = "/admin/django_singlejob/overview/why/"
HOSTILE = "<script>alert('it is ours')</script>\"'&"


def said(client: Client, **query: str) -> str:
    main = shown(client, f"{URL}?{urlencode(query)}").partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", f"<{main}")).split())


def test_it_says_why_and_what_proves_it(viewer: Client) -> None:
    scheduled()
    pause("nightly", reason=HOSTILE, by="anna")
    page = said(viewer, job="nightly")
    for told in ("It has been paused since", "by anna", "Note of ", "Resume it by"):
        assert told in page
    assert "<script>alert" not in shown(viewer, f"{URL}?job=nightly")


def test_it_says_why_of_a_slot(viewer: Client) -> None:
    fall_behind(scheduled())
    ticked()
    slot = runs().get().slot
    assert slot
    assert "was successful" in said(viewer, job="nightly", at=slot.isoformat())


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"job": "nonsense"}, "There is no job of this name."),
        ({"job": "x" * 201}, "Ensure this value has at most 200 characters"),
        ({"job": "nightly", "at": "yesterday"}, "Enter an instant"),
        ({"job": "nightly", "at": "9999-12-31T23:59"}, "Enter an instant"),
        ({"job": "\0"}, "Null characters are not allowed."),
        ({"at": "2026-11-22 03:00"}, "This field is required."),
    ],
)
def test_bad_input_is_told(viewer: Client, query: dict[str, str], words: str) -> None:
    scheduled()
    assert words in said(viewer, **query)


def test_the_page_of_a_job_leads_there(viewer: Client) -> None:
    fall_behind(scheduled())
    assert f'href="{URL}?job=nightly"' in shown(viewer, page_of("jobstatus", "nightly"))


def test_the_overview_leads_there_from_a_job_that_is_overdue(viewer: Client) -> None:
    job = scheduled()
    fall_behind(job)
    assert f'href="{URL}?job=nightly"' in shown(viewer, "/admin/django_singlejob/overview/")
