"""Locks that change hands between page and click, and locks whose holders are alive."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from django.db.models import F
from playwright.sync_api import expect

from django_singlejob.models.locks import locks
from django_singlejob.process.clock import DBNow
from tests.browser.paths import clearing, list_of, page_of
from tests.browser.stage import SIZES, assert_accessible
from tests.contract.acts import HOUR, MINUTE, SECOND, expire, is_free, lock, start_run
from tests.processes.witness import ends
from tests.waiting import eventually

if TYPE_CHECKING:
    from datetime import timedelta

    from django.contrib.auth.models import User
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Person, Picture, Server
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("shop")


@pytest.fixture
def stale_page(stage: Stage, superuser: User) -> Page:
    """The page that asks whether to clear the stale lock of `invoices`."""
    start_run("invoices")
    expire("invoices")
    page = stage.visit(superuser, page_of("joblock", "invoices"))
    page.get_by_role("link", name="Clear…").click()
    expect(page.get_by_role("heading", name="Clear locks")).to_be_visible()
    return page


def clear(page: Page) -> None:
    page.get_by_role("button", name="Clear", exact=True).click()


def has_message(page: Page, words: str) -> None:
    expect(page.locator(".messagelist")).to_contain_text(words)


# --- the watch


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
    watch, announced = page.locator("[data-left]"), page.get_by_role("status")
    expect(button_of(page)).to_be_disabled()
    expect(watch).to_have_text(re.compile(r"You can clear it in [1-4]\ss\."))
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"The button works in [1-4]\ss\."))
    expect(announced).to_be_empty()
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


def test_without_scripts_the_page_says_from_when_on_it_works(stage: Stage, superuser: User) -> None:
    fall_silent("invoices", 2 * SECOND)
    page = stage.visit(superuser, clearing("invoices"), scripts=False)
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"The button works from \d{4}-\d\d-\d\d \d\d:\d\d"))
    clear(page)
    has_message(page, "was not cleared, because its watch is not over yet")
    assert not is_free("invoices")
    eventually(lambda: has_cleared(page, "invoices"))
    has_message(page, "was cleared; its holder was")


def has_cleared(page: Page, name: str) -> bool:
    with page.expect_navigation():
        clear(page)
    return is_free(name)


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


# --- what happens between page and click


def test_a_lock_that_changed_hands_meanwhile_is_left_alone(stale_page: Page) -> None:
    successor = start_run("invoices")
    clear(stale_page)
    has_message(stale_page, "was not cleared, because it has a new holder")
    assert lock("invoices").token == successor.token
    assert ends("invoices") == ["abandoned", "running"]


def test_one_whose_holder_gave_a_sign_of_life_is_left_alone(stale_page: Page) -> None:
    beat = {"heartbeats": F("heartbeats") + 1, "heartbeat_at": DBNow(), "expires_at": DBNow() + MINUTE}
    locks().filter(name="invoices").update(**beat)
    clear(stale_page)
    has_message(stale_page, "is alive")
    assert not is_free("invoices")


def test_one_that_is_free_by_now_has_a_message(stale_page: Page) -> None:
    locks().all().delete()
    clear(stale_page)
    has_message(stale_page, "is already free")


def test_several_are_cleared_from_the_list(stage: Stage, superuser: User) -> None:
    for name in "invoices", "newsletter", "backup":
        start_run(name)
        expire(name)
    page = stage.visit(superuser, list_of("joblock"))
    for name in "invoices", "newsletter":
        page.get_by_role("row", name=name).get_by_role("checkbox").check()
    page.locator("select[name=action]").select_option(label="Clear stale locks")
    page.locator("button[name=index]").click()
    clear(page)
    expect(page.locator(".messagelist li").filter(has_text="was cleared; its holder was")).to_have_count(2)
    assert list(locks().values_list("name", flat=True)) == ["backup"]


def test_a_live_holder_finds_out_that_its_lock_was_cleared_by_force(
    stage: Stage, superuser: User, server: Server
) -> None:
    holder = server("run_singleton", "invoices")
    holder.wait_for("started")
    page = stage.visit(superuser, clearing("invoices"))
    expect(page.get_by_role("main")).to_contain_text("Its holder is alive")
    clear(page)
    has_message(page, "was not cleared")
    assert not is_free("invoices")

    page.go_back()
    page.get_by_role("checkbox", name="although").check()
    clear(page)
    has_message(page, "was cleared by force")
    assert holder.finish() == 75
    assert ends("invoices") == ["abandoned"]


def test_the_page_explains_why_a_live_holder_is_left_alone(stage: Stage, person: Person) -> None:
    start_run("invoices")
    operator = person("operator", "view_joblock", "clear_joblock")
    page = stage.visit(operator, clearing("invoices"))
    expect(page.get_by_role("main")).to_contain_text("Its holder is alive, so you cannot clear it.")
    expect(page.get_by_role("button", name="Clear", exact=True)).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.get_by_role("link", name="No, take me back").click()
    expect(page.locator("#result_list")).to_contain_text("invoices")
