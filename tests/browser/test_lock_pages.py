"""Locks that change hands between page and click, and locks whose holders are alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db.models import F
from playwright.sync_api import expect

from django_singlejob.clock import DBNow
from django_singlejob.querysets.locks import locks
from tests.browser.paths import clearing, list_of, page_of
from tests.contract.acts import MINUTE, expire, is_free, lock, start_run
from tests.processes.witness import ends

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.sync_api import Page

    from tests.browser.conftest import Person, Server
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
