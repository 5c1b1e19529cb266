"""Jobs are run now, paused and resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from tests.browser.paths import list_of, log_of, page_of
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


def test_a_paused_job_is_not_run_until_it_is_resumed(page: Page, server: Server, go: Path) -> None:
    go.touch()
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("the printer is broken")
    page.get_by_role("button", name="Pause").click()
    has_message(page, "is paused")
    expect(page.get_by_role("main")).to_contain_text("the printer is broken")
    page.get_by_role("button", name="Run now").click()
    has_message(page, "Resume it first")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Change the pause")).to_be_visible()
    refused = server("run_singleton", "-v", "2", "invoices")
    assert refused.finish() == 0
    assert "paused" in refused.output
    assert ends("invoices") == []

    page.get_by_role("button", name="Resume").click()
    has_message(page, "no longer paused")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    assert server("run_singleton", "invoices").finish() == 0
    assert ends("invoices") == ["successful"]
    page.goto(log_of("jobstatus", "invoices"))
    expect(page.get_by_role("main")).to_contain_text("Paused.")
    expect(page.get_by_role("main")).to_contain_text("Resumed.")


def test_several_are_paused_in_the_list(stage: Stage, superuser: User) -> None:
    page = stage.visit(superuser, list_of("jobstatus"))
    for name in "newsletter", "thumbnails":
        page.get_by_role("row", name=name).get_by_role("checkbox").check()
    page.locator("select[name=action]").select_option(label="Pause")
    page.locator("button[name=index]").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".messagelist li").filter(has_text="is paused")).to_have_count(2)
    assert set(gates().filter(paused=True).values_list("name", flat=True)) == {"newsletter", "thumbnails"}
    page.get_by_role("link", name="paused").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)


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
