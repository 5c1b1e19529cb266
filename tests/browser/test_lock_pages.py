"""The page that clears locks, while it watches their holders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from django_singlejob.models.locks import locks
from tests.browser.paths import clearing
from tests.browser.stage import SIZES, assert_accessible
from tests.contract.acts import HOUR, MINUTE, SECOND, expire, is_free, lock, start_run
from tests.waiting import eventually

if TYPE_CHECKING:
    from datetime import timedelta

    from django.contrib.auth.models import User
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Picture
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("shop")


def clear(page: Page) -> None:
    page.get_by_role("button", name="Clear", exact=True).click()


def has_message(page: Page, words: str) -> None:
    expect(page.locator(".messagelist")).to_contain_text(words)


def fall_silent(name: str, interval: timedelta) -> None:
    """The holder of this lock sent its last heartbeat long ago."""
    start_run(name, heartbeat_interval=interval)
    expire(name)
    locks().filter(name=name).update(sent_at=lock(name).sent_at - MINUTE)


def button_of(page: Page) -> Locator:
    return page.get_by_role("button", name="Clear", exact=True)


def test_the_button_works_when_the_watch_is_over(stage: Stage, superuser: User) -> None:
    fall_silent("invoices", 2 * SECOND)
    page = stage.visit(superuser, clearing("invoices"))
    # However slow the browser is, its clock now stands still until the test has seen everything.
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    page.reload()
    over_at = lock("invoices").now + 4 * SECOND
    watch, announced = page.locator("[data-left]"), page.get_by_role("status")
    expect(button_of(page)).to_be_disabled()
    expect(watch).to_have_text(re.compile(r"You can clear it in [1-4]\ss\."))
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"The button works in [1-4]\ss\."))
    expect(announced).to_be_empty()
    eventually(lambda: lock("invoices").now > over_at)  # the server judges by its own clock
    page.clock.fast_forward(5_000)
    expect(button_of(page)).to_be_enabled()
    expect(watch).to_have_text("The watch is over. You can clear it now.")
    expect(announced).to_have_text("A watch is over. The button works now.")
    expect(page.get_by_text("The button works in")).to_be_hidden()
    assert gap_above(page.locator("form > .singlejob-acts"), page.locator(".singlejob-panel")) == 16
    clear(page)
    has_message(page, "was cleared; its holder was")
    assert is_free("invoices")


def gap_above(lower: Locator, upper: Locator) -> float:
    """In pixels."""
    below, above = lower.bounding_box(), upper.bounding_box()
    assert below
    assert above
    return below["y"] - above["y"] - above["height"]


def test_a_watch_that_is_long_keeps_no_other_lock_waiting(stage: Stage, superuser: User) -> None:
    fall_silent("invoices", 2 * SECOND)
    fall_silent("newsletter", HOUR)
    page = stage.visit(superuser, clearing("invoices", "newsletter"))
    expect(page.locator("[data-left]").nth(1)).to_have_text(re.compile(r"You can clear it in 1\sh 59\smin\."))
    expect(button_of(page)).to_be_enabled()
    clear(page)
    expect(page.locator(".messagelist li")).to_have_count(2)
    expect(button_of(page)).to_be_disabled()
    assert [is_free(name) for name in ("invoices", "newsletter")] == [True, False]


def test_to_force_one_nobody_waits_for_the_watch_of_another(stage: Stage, superuser: User) -> None:
    fall_silent("invoices", HOUR)
    start_run("newsletter")
    page = stage.visit(superuser, clearing("invoices", "newsletter"))
    expect(button_of(page)).to_be_disabled()
    page.get_by_role("checkbox", name="although").check()
    expect(button_of(page)).to_be_enabled()
    page.get_by_role("checkbox", name="although").uncheck()
    expect(button_of(page)).to_be_disabled()


def test_thirty_fit_on_a_phone(stage: Stage, superuser: User, picture: Picture) -> None:
    names = [f"job-{number}" for number in range(30)]
    for number, name in enumerate(names):
        fall_silent(name, (10 + number) * SECOND)
    page = stage.visit(superuser, clearing(*names), size="phone", theme="dark")
    expect(page.locator("[data-left]")).to_have_count(30)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"]["width"]
    picture(page, "clear-thirty-dark-phone")
    page.set_viewport_size(SIZES["desktop"])
    picture(page, "clear-thirty-dark-desktop")
    assert_accessible(page)
