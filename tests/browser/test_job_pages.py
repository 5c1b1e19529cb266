"""Jobs are run now, paused and resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from django_singlejob.models.one_offs import one_offs
from tests.browser.paths import log_of, page_of
from tests.processes.witness import ends

if TYPE_CHECKING:
    from pathlib import Path

    from django.contrib.auth.models import User
    from playwright.sync_api import Page

    from tests.browser.conftest import Server
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("shop")


@pytest.fixture
def page(stage: Stage, superuser: User) -> Page:
    """The page of the job `invoices`."""
    return stage.visit(superuser, page_of("jobstatus", "invoices"))


def has_message(page: Page, words: str) -> None:
    expect(page.locator(".messagelist")).to_contain_text(words)


def test_run_now_is_done_by_the_next_worker(page: Page, server: Server, go: Path) -> None:
    page.get_by_role("button", name="Run now").click()
    has_message(page, "The job invoices waits for a worker")
    one_off = one_offs().get()
    expect(page.get_by_role("link", name=f"#{one_off.pk}")).to_be_visible()
    page.get_by_role("button", name="Run now").click()
    has_message(page, "is already waiting for a free worker")
    assert ends("invoices") == []

    go.touch()
    worker = server("singleton_worker", "--once")
    assert worker.finish() == 0, worker.output
    assert one_offs().get().status == "done"
    assert ends("invoices") == ["successful"]
    page.reload()
    expect(page.get_by_role("main")).to_contain_text("None is waiting.")
    expect(page.get_by_role("main")).to_contain_text("successful")
    page.goto(log_of("jobstatus", "invoices"))
    expect(page.get_by_role("main")).to_contain_text(f"Requested a run now: one-off {one_off.pk}.")


def test_a_keyboard_is_enough(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to main content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == "Run now":
            break
    expect(page.get_by_role("button", name="Run now")).to_be_focused()
    page.keyboard.press("Enter")
    has_message(page, "The job invoices waits for a worker")
