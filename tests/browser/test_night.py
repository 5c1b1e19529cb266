"""A server dies at night, and somebody on call looks at it on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from django_singlejob.models.locks import locks
from tests.browser.paths import OVERVIEW, log_of, page_of
from tests.processes.witness import ends
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from django.contrib.auth.models import User
    from playwright.sync_api import Page

    from tests.browser.conftest import Picture, Server
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("shop")

REFRESHES_EACH = 15_000


def test_the_lock_of_a_dead_server_is_cleared(
    stage: Stage, superuser: User, server: Server, go: Path, picture: Picture
) -> None:
    holder = server("run_singleton", "invoices")
    holder.wait_for("started")
    page = stage.visit(superuser, OVERVIEW, theme="dark", size="phone")
    page.clock.install()
    page.reload()
    says(page, "All is well")
    expect(page.get_by_role("table", name="Running now")).to_contain_text("invoices")

    holder.kill()
    eventually(locks().stale().exists)
    page.clock.fast_forward(REFRESHES_EACH)
    says(page, "Critical: 1 problem needs attention")
    expect(page.get_by_role("table", name="Needs attention")).to_contain_text("has sent no heartbeat for")
    picture(page, "night-1-stale")

    expect(page.get_by_role("table", name="Running now")).to_contain_text("silent for")
    page.get_by_role("table", name="Needs attention").get_by_role("link", name="invoices").click()
    page.get_by_role("link", name="Clear its stale lock").click()
    expect(page.get_by_role("main")).to_contain_text(f"pid {holder.pid}")
    expect(page.get_by_role("main")).to_contain_text("presumed dead")
    picture(page, "night-2-clear")
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("was cleared; its holder was")
    assert not locks().exists()
    assert ends("invoices") == ["abandoned"]

    page.goto(log_of("jobstatus", "invoices"))
    expect(page.get_by_role("main")).to_contain_text("Cleared; its holder was")
    page.goto(reverse("admin:index"))
    expect(page.locator("#recent-actions-module .deletelink")).to_contain_text("invoices")

    go.touch()
    assert server("run_singleton", "invoices").finish() == 0
    page.goto(page_of("jobstatus", "invoices"))
    expect(page.get_by_role("main")).to_contain_text("successful")
    expect(page.get_by_role("main")).to_contain_text("by admin")
    picture(page, "night-4-job")
    page.goto(OVERVIEW)
    says(page, "All is well")
    assert ends("invoices") == ["abandoned", "successful"]


def says(page: Page, headline: str) -> None:
    expect(page.locator("#singlejob-headline")).to_have_text(headline)


def test_the_overview_says_when_it_is_out_of_date(stage: Stage, superuser: User, picture: Picture) -> None:
    page = stage.visit(superuser, OVERVIEW)
    page.clock.install()
    page.reload()
    warning = page.get_by_role("alert")
    expect(page.get_by_text("Updated")).to_be_visible()
    expect(warning).to_be_hidden()

    page.context.set_offline(True)
    page.clock.fast_forward(REFRESHES_EACH)
    expect(warning).to_contain_text("Not refreshed since")
    picture(page, "out-of-date")
    page.context.set_offline(False)
    page.clock.fast_forward(REFRESHES_EACH)
    expect(warning).to_be_hidden()
    stage.forgive("ERR_INTERNET_DISCONNECTED")


def test_the_overview_can_be_kept_as_it_is(stage: Stage, superuser: User, server: Server) -> None:
    page = stage.visit(superuser, OVERVIEW)
    page.clock.install()
    page.reload()
    button = page.get_by_role("button", name="Pause refreshing")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    server("run_singleton", "invoices").wait_for("started")
    page.clock.fast_forward(4 * REFRESHES_EACH)
    running = page.get_by_role("heading", name="Running now").locator("xpath=..")
    expect(running).to_contain_text("Nothing is running.")

    page.keyboard.press("Enter")
    expect(running).to_contain_text("invoices")
    expect(button).to_have_attribute("aria-pressed", "false")
