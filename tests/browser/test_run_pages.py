"""The page of a run, which is open while it runs and when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from django_singlejob.models import JobLock, JobRun
from tests.browser.paths import page_of
from tests.contract.acts import MINUTE, start_run
from tests.processes.witness import is_over
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from django.contrib.auth.models import User
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Picture, Server
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.on_database("sqlite")]

REFRESHES_EACH = 5_000


def open_page(stage: Stage, superuser: User) -> Page:
    """The page of the run, whose clock goes as the test says."""
    page = stage.visit(superuser, page_of("jobrun", JobRun.objects.latest("pk").pk))
    page.clock.install()
    page.reload()
    # It is lost if the page is loaded once more.
    page.evaluate("window.isTheSame = true")
    return page


def is_the_same(page: Page) -> bool:
    return bool(page.evaluate("window.isTheSame === true"))


def now(page: Page) -> Locator:
    return page.locator("#singlejob-live .singlejob-panel").filter(has=page.get_by_role("heading", name="Now"))


def end() -> None:
    """The run ends in its process."""
    JobLock.objects.all().delete()
    JobRun.objects.update(status="successful", finished_at=timezone.now())


def test_the_page_follows_a_run_to_its_end(
    stage: Stage, superuser: User, server: Server, go: Path, picture: Picture
) -> None:
    holder = server("run_singleton", "invoices")
    holder.wait_for("started")
    page = open_page(stage, superuser)
    eventually(lambda: any(lock.progress for lock in JobLock.objects.all()))
    page.clock.fast_forward(REFRESHES_EACH)
    expect(now(page)).to_contain_text("120 of 500, writing")
    expect(now(page).get_by_role("progressbar", name="120 of 500, writing")).to_be_visible()
    expect(now(page)).to_contain_text(f"pid {holder.pid}")
    expect(now(page)).to_contain_text("Next heartbeat")
    assert is_the_same(page)
    picture(page, "run-live")

    go.touch()
    assert holder.finish() == 0
    assert is_over("invoices", "successful")
    page.clock.fast_forward(REFRESHES_EACH)
    expect(page.get_by_role("table", name="The run")).to_contain_text("successful")
    expect(page.get_by_role("link", name="Run again…")).to_be_visible()
    expect(now(page)).to_have_count(0)
    assert not is_the_same(page)
    expect(page.get_by_role("button", name="Pause refreshing")).to_have_count(0)


def test_it_changes_without_being_loaded_again(stage: Stage, superuser: User) -> None:
    start_run("invoices")
    page = open_page(stage, superuser)
    expect(now(page)).not_to_contain_text("Progress")
    JobLock.objects.update(
        progress={"done": 1, "total": 3, "output": "<b>one</b>"}, acquired_at=timezone.now() - 7 * MINUTE
    )
    page.clock.fast_forward(REFRESHES_EACH)
    expect(now(page)).to_contain_text("1 of 3")
    expect(page.locator("#singlejob-output")).to_contain_text("<b>one</b>")
    expect(now(page)).to_contain_text("7 min")
    JobLock.objects.update(progress={"done": 2, "total": 3})
    page.clock.fast_forward(REFRESHES_EACH)
    expect(now(page)).to_contain_text("2 of 3")
    assert is_the_same(page)


def test_it_waits_for_a_user_who_has_selected_a_text(stage: Stage, superuser: User) -> None:
    start_run("invoices")
    JobLock.objects.update(progress={"output": "the text that somebody wants to copy"})
    page = open_page(stage, superuser)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('singlejob-live'))")
    end()
    page.clock.fast_forward(2 * REFRESHES_EACH)
    expect(page.locator("#singlejob-output")).to_contain_text("the text that somebody wants to copy")
    assert is_the_same(page)
    page.evaluate("getSelection().removeAllRanges()")
    page.clock.fast_forward(REFRESHES_EACH)
    expect(page.get_by_role("table", name="The run")).to_contain_text("successful")
