"""A user with only view permissions sees everything but the buttons. One without permissions is not let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from django_singlejob.models import JobLock, JobRun, OneOffJob
from tests.browser.paths import OVERVIEW, clearing, list_of, page_of
from tests.browser.shop import furnish

if TYPE_CHECKING:
    from tests.browser.conftest import Person
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.on_database("sqlite")]

MODELS = ["jobstatus", "joblock", "jobrun", "oneoffjob"]
DEEDS = [
    "Run now",
    "Pause",
    "Resume",
    "Stop…",
    "Clear…",
    "Clear its stale lock…",
    "Cancel",
    "Run again",
    "Add one-off job",
]


def pages() -> list[str]:
    keys: dict[str, int | str] = {
        "jobstatus": "backup",
        "joblock": JobLock.objects.get(name="backup").pk,
        "jobrun": JobRun.objects.filter(job_name="backup").latest("pk").pk,
        "oneoffjob": OneOffJob.objects.filter(status="waiting").latest("pk").pk,
    }
    return [OVERVIEW, *map(list_of, MODELS), *(page_of(model, keys[model]) for model in MODELS)]


def test_a_viewer_is_offered_nothing_else(stage: Stage, person: Person) -> None:
    furnish()
    page = stage.visit(person("viewer", *(f"view_{model}" for model in MODELS)), "/admin/")
    for path in pages():
        page.goto(path)
        main = page.get_by_role("main")
        expect(main).to_contain_text("invoices" if "oneoff" in path else "backup")
        for deed in DEEDS:
            expect(main.get_by_text(deed, exact=True)).to_have_count(0)
        expect(page.locator("select[name=action]")).to_have_count(0)
        assert set(main.locator("button").all_inner_texts()) <= {"", "Pause refreshing"}
    assert page.request.get(clearing("backup")).status == 403


def test_a_user_without_permissions_is_not_let_in(stage: Stage, person: Person) -> None:
    furnish()
    stranger = person("stranger")
    page = stage.visit(stranger, "/admin/")
    expect(page.get_by_text("Single jobs")).to_have_count(0)
    for path in [*pages(), clearing("backup")]:
        assert page.request.get(path).status == 403, path
    page = stage.visit(stranger, OVERVIEW, status=403)
    expect(page.get_by_text("403 Forbidden").first).to_be_visible()


def test_a_viewer_of_locks_is_not_offered_the_rest(stage: Stage, person: Person) -> None:
    furnish()
    page = stage.visit(person("janitor", "view_joblock"), "/admin/")
    expect(page.locator(".app-django_singlejob.module tbody tr")).to_have_count(1)
    stage.visit(person("auditor", "view_joblock", "view_jobstatus"), OVERVIEW, status=403)
