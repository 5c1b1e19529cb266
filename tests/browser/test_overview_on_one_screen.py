"""The overview on one screen, with few jobs and with many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.crowd import fill
from tests.browser.paths import OVERVIEW
from tests.browser.stage import SIZES, assert_accessible
from tests.browser.test_ledger_on_one_screen import SCREEN
from tests.browser.test_looks import THEMES

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.sync_api import Page, ViewportSize

    from tests.browser.conftest import Picture
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.on_database("sqlite")]

LAPTOP: ViewportSize = {"width": 1400, "height": 900}
SCREENS = {"screen": SCREEN, "laptop": LAPTOP, "phone": SIZES["phone"]}
# In a line, only a name and a story may end early.
TOO_WIDE = """() => [...document.querySelectorAll(
    ".singlejob-panel, .singlejob-dense :is(th, td), .singlejob-lines td:nth-child(n+3)")]
    .filter(cell => cell.offsetParent && getComputedStyle(cell.parentElement.parentElement).position !== "absolute")
    .filter(cell => cell.scrollWidth > cell.clientWidth)
    .map(cell => cell.textContent)"""
# The verdict, what needs attention, what runs now, and the jobs.
NIGHT = "#singlejob-headline, .singlejob-states, .singlejob-night"


@pytest.mark.parametrize(("jobs", "servers"), [(3, 1), (30, 4), (300, 12)])
def test_the_overview_fits_one_screen(stage: Stage, superuser: User, picture: Picture, jobs: int, servers: int) -> None:
    fill(jobs, servers)
    page = stage.visit(superuser, OVERVIEW)
    for name, size in SCREENS.items():
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(TOO_WIDE) == [], name
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            picture(page, f"overview-{jobs}-jobs-{theme}-{name}")
        assert_accessible(page)
    page.set_viewport_size(SCREEN)
    assert bottom_of(page, NIGHT) <= SCREEN["height"]
    assert page.locator(".singlejob-lines tbody tr").count() == min(jobs, 30)
    if jobs > 30:
        page.get_by_role("link", name=f"And {jobs - 30} more jobs").click()
        expect(page.locator("#result_list tbody tr")).to_have_count(50)


def bottom_of(page: Page, selector: str) -> float:
    return max(box["y"] + box["height"] for each in page.locator(selector).all() if (box := each.bounding_box()))


def test_jobs_are_found_without_scripts(stage: Stage, superuser: User) -> None:
    fill(30, 4)
    page = stage.visit(superuser, OVERVIEW, scripts=False)
    page.get_by_label("Find jobs").fill("CARTS")
    page.get_by_role("button", name="Search", exact=True).click()
    lines = page.get_by_role("table", name="Jobs").locator("tbody tr")
    expect(lines).to_have_count(4)
    page.get_by_role("list", name="Jobs by state").get_by_role("link", name="failing").click()
    expect(lines).to_have_count(0)
    expect(page.get_by_label("Find jobs")).to_have_value("CARTS")
    expect(page.get_by_role("main")).to_contain_text("No job matches.")
    page.get_by_role("link", name="Show all").click()
    expect(lines).to_have_count(30)
