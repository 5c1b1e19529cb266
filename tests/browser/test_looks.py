"""Every page, in both themes, on a wide screen and on a phone. Also takes the pictures for the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from tests.browser.crowd import fill
from tests.browser.paths import OVERVIEW, clearing, list_of, log_of, page_of, stopping
from tests.browser.shop import furnish
from tests.browser.stage import SIZES, Size, Theme, assert_accessible

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.sync_api import Page

    from tests.browser.conftest import Picture
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
# Pages look the same on every database, and looking at all of them takes minutes.
pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.on_database("sqlite")]


def stopped() -> str:
    """A job that a user has stopped."""
    JobLock.objects.filter(name="stock_sync").update(stopped_by="ada.lovelace@example.com")
    return "stock_sync"


PAGES = {
    "index": lambda: reverse("admin:index"),
    "overview": lambda: OVERVIEW,
    "ledger": lambda: f"{OVERVIEW}ledger/",
    "ledger-of-job": lambda: f"{OVERVIEW}ledger/?job=newsletter",
    "winners": lambda: f"{OVERVIEW}winners/",
    "why": lambda: f"{OVERVIEW}why/?job=thumbnails",
    "jobs": lambda: list_of("jobstatus"),
    "job": lambda: page_of("jobstatus", "sales_report"),
    "job-stale": lambda: page_of("jobstatus", "backup"),
    "job-log": lambda: log_of("jobstatus", "sales_report"),
    "locks": lambda: list_of("joblock"),
    "lock": lambda: page_of("joblock", "backup"),
    "clear": lambda: clearing("backup", "stock_sync", "invoices"),
    "stop": lambda: stopping("sales_report", "stock_sync", "backup"),
    "lock-stopped": lambda: page_of("joblock", stopped()),
    "run-stopped": lambda: page_of("jobrun", JobRun.objects.get(status="running", job_name=stopped()).pk),
    "runs": lambda: f"{list_of('jobrun')}?job_name=newsletter",  # only a few, since axe takes long for each
    "run": lambda: page_of("jobrun", JobRun.objects.filter(status="failed").latest("pk").pk),
    "run-running": lambda: page_of("jobrun", JobRun.objects.get(job_name="sales_report", status="running").pk),
    "one-offs": lambda: list_of("oneoffjob"),
    "one-off": lambda: page_of("oneoffjob", OneOffJob.objects.get(status="failed").pk),
    "one-off-add": lambda: reverse("admin:django_singlejob_oneoffjob_add"),
}
EMPTY = ["overview", "ledger", "winners", "jobs", "locks", "runs", "one-offs"]
# The pictures in the documentation.
DOCUMENTED = {
    "overview-light-desktop": "overview",
    "ledger-light-desktop": "ledger",
    "run-light-desktop": "run",
    "clear-light-desktop": "clear",
}
THEMES: list[Theme] = ["light", "dark"]
#: The panels, and the cells of tables, whose words reach into the next one. Some cells are cut on purpose.
TOO_NARROW = """() => [...document.querySelectorAll(".singlejob-panel, .singlejob-table :is(th, td)")]
    .filter(cell => getComputedStyle(cell.parentElement.parentElement).position !== "absolute")
    .filter(cell => getComputedStyle(cell).textOverflow !== "ellipsis")
    .filter(cell => cell.scrollWidth > cell.clientWidth)
    .map(cell => cell.textContent)"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_well(stage: Stage, superuser: User, picture: Picture, name: str) -> None:
    furnish()
    looks_well(stage.visit(superuser, PAGES[name]()), name, picture)


def test_so_does_the_form_of_a_pause(stage: Stage, superuser: User, picture: Picture) -> None:
    furnish()
    page = stage.visit(superuser, PAGES["job"]())
    page.get_by_role("button", name="Pause…", exact=True).click()
    expect(page.get_by_label("Reason")).to_be_visible()
    looks_well(page, "pause", picture)


def test_so_does_the_preview_of_a_schedule(stage: Stage, superuser: User, picture: Picture) -> None:
    furnish()
    page = stage.visit(superuser, PAGES["job"]())
    page.get_by_role("link", name="Change the schedule…").click()
    page.get_by_label("Schedule").fill("30 2 * * *")
    page.get_by_label("Time zone").fill("Europe/Rome")
    page.get_by_label("Reason").fill("Fewer mails at night")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Clocks change").last).to_be_visible()
    looks_well(page, "schedule", picture)


@pytest.mark.parametrize("name", EMPTY)
def test_so_does_an_empty_one(stage: Stage, superuser: User, picture: Picture, name: str) -> None:
    looks_well(stage.visit(superuser, PAGES[name]()), f"{name}-empty", picture)


def test_words_that_are_long_can_be_read(stage: Stage, superuser: User, picture: Picture) -> None:
    furnish()
    JobStatus.objects.filter(name="backup").update(next_slot=None)
    JobLock.objects.filter(name="backup").delete()
    OneOffJob.objects.filter(status="failed").update(args=["a" * 300], result="b" * 300, traceback="c" * 3000)
    page = stage.visit(superuser, PAGES["one-off"]())
    for size in SIZES:
        page.set_viewport_size(SIZES[size])
        for shown in page.locator(".readonly").all():
            box = shown.bounding_box()
            assert box
            assert box["x"] + box["width"] <= SIZES[size]["width"]
    picture(page, "one-off-long")
    page.goto(PAGES["jobs"]())  # where one has never been requested
    for size in SIZES:
        page.set_viewport_size(SIZES[size])
        fits(page, size)


@pytest.mark.parametrize("language", ["de", "es"])
def test_longer_words_fit(stage: Stage, superuser: User, settings: Any, picture: Picture, language: str) -> None:
    settings.LANGUAGE_CODE = language
    furnish()
    fill(3, 2)
    page = stage.visit(superuser, PAGES["overview"]())
    for name in ["overview", "winners", "jobs", "locks", "runs", "one-offs"]:
        page.goto(PAGES[name]())
        for size in SIZES:
            page.set_viewport_size(SIZES[size])
            fits(page, size)
            assert page.evaluate(TOO_NARROW) == [], f"{name} on a {size}"
            picture(page, f"{name}-{language}-{size}")


def looks_well(page: Page, name: str, picture: Picture) -> None:
    for size in SIZES:
        page.set_viewport_size(SIZES[size])
        fits(page, size)
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            look = f"{name}-{theme}-{size}"
            picture(page, DOCUMENTED.get(look, look), documented=look in DOCUMENTED)
            # It takes seconds. A theme has the same colours in both sizes, a size the same structure in both themes.
            if (theme, size) in [("light", "desktop"), ("dark", "phone")]:
                assert_accessible(page)


def fits(page: Page, size: Size) -> None:
    """Neither the page nor a table in it has to be scrolled sideways."""
    width = SIZES[size]["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for badge in page.locator("#result_list :is(.field-state, .field-result) .singlejob-badge").all():
        box = badge.bounding_box()
        assert box, "A state is not seen."
        assert box["x"] + box["width"] <= width
    for results in page.locator("#changelist .results").all():
        assert results.evaluate("element => element.scrollWidth - element.clientWidth") == 0


def test_the_theme_is_the_one_that_was_chosen(stage: Stage, superuser: User, picture: Picture) -> None:
    """Not only the theme of the system."""
    furnish()
    page = stage.visit(superuser, PAGES["overview"]())
    colours = {}
    for theme in "dark", "light":
        page.locator("#header button.theme-toggle").click()
        while page.locator("html").get_attribute("data-theme") != theme:
            page.locator("#header button.theme-toggle").click()
        colours[theme] = page.locator(".singlejob-badge").first.evaluate("badge => getComputedStyle(badge).color")
        assert_accessible(page)
    assert colours["dark"] != colours["light"]
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
