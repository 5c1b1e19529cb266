"""An alarm: a job has failed. Somebody on call finds out why, and runs it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from django_singlejob.models import OneOffJob
from tests.browser.paths import OVERVIEW
from tests.browser.shop import SMTP_ERROR, furnish
from tests.browser.stage import SIZES, assert_accessible

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Picture
    from tests.browser.stage import Size, Stage, Theme

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.on_database("sqlite")]

MOST_CLICKS = 3


class Clicks:
    """Clicks on what the user sees, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, target: Locator) -> None:
        self.count += 1
        target.click()


@pytest.mark.parametrize(("size", "theme"), [("desktop", "light"), ("phone", "dark")])
def test_from_the_alarm_to_the_cause_to_the_retry(
    stage: Stage, superuser: User, picture: Picture, size: Size, theme: Theme
) -> None:
    furnish()
    click = Clicks()
    page = stage.visit(superuser, OVERVIEW, theme=theme, size=size)
    trouble = page.get_by_role("table", name="Needs attention").get_by_role("row").filter(has_text="newsletter")
    expect(trouble).to_contain_text("SMTPServerDisconnected")
    click(trouble.get_by_role("link", name="SMTPServerDisconnected"))

    picture(page, f"alarm-1-run-{size}")
    for cause in SMTP_ERROR, "In your code: newsletter, line 23 of", "/srv/shop/newsletter/jobs.py", "Run again":
        assert is_on_the_first_screen(page, cause, size), cause
    assert_accessible(page)

    click(page.get_by_role("link", name="Run again"))
    click(page.get_by_role("button", name="Save", exact=True))
    expect(page.get_by_role("main")).to_contain_text("was added successfully")
    picture(page, f"alarm-2-again-{size}")
    assert OneOffJob.objects.get(job_name="newsletter").requested_by == "admin"
    assert click.count <= MOST_CLICKS


def is_on_the_first_screen(page: Page, text: str, size: Size) -> bool:
    box = page.get_by_role("main").get_by_text(text).first.bounding_box()
    return bool(box and box["y"] + box["height"] <= SIZES[size]["height"])


def test_the_phone_keeps_the_duration_and_the_error(stage: Stage, superuser: User) -> None:
    furnish()
    for model, texts in {
        "jobrun/?job_name=newsletter": ["min", "SMTPServerDisconnected"],
        "oneoffjob/": ["2 min 0 s", "SMTPServerDisconnected"],
        "jobstatus/": ["min", "SMTPServerDisconnected"],
    }.items():
        page = stage.visit(superuser, f"/admin/django_singlejob/{model}", size="phone")
        row = page.locator("#result_list tbody tr").filter(has_text="SMTPServerDisconnected").first
        for text in texts:
            expect(row.get_by_text(text).locator("visible=true").first).to_be_visible()


def test_no_word_is_broken_within_its_parts(stage: Stage, superuser: User) -> None:
    """On a wide screen, every part of an error is on one line."""
    furnish()
    OneOffJob.objects.filter(status="failed").update(job_name="import_catalogue")
    page = stage.visit(superuser, "/admin/django_singlejob/oneoffjob/")
    for part in "catalogue", "Disconnected", "unexpectedly":
        assert lines_of(page, part) == 1, part


def test_nor_is_a_command_in_the_list_of_locks(stage: Stage, superuser: User) -> None:
    furnish()
    page = stage.visit(superuser, "/admin/django_singlejob/joblock/")
    for part in "manage.", "singleton_", "worker":
        assert lines_of(page, part) == 1, part


LINES = """part => {
    const words = document.createTreeWalker(document.querySelector('#result_list tbody'), NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
        const at = words.currentNode.data.indexOf(part), range = document.createRange();
        if (at < 0 || !words.currentNode.parentElement.checkVisibility()) continue;
        range.setStart(words.currentNode, at);
        range.setEnd(words.currentNode, at + part.length);
        return range.getClientRects().length;
    }
}"""


def lines_of(page: Page, part: str) -> int:
    """On how many lines the list shows this part of a word."""
    found: int = page.evaluate(LINES, part)
    return found
