"""The way from the overview to the day of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.crowd import fill
from tests.browser.paths import OVERVIEW
from tests.browser.test_looks import looks_well

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from tests.browser.conftest import Picture
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.on_database("sqlite")]


def test_from_the_overview_to_the_day_of_a_job(stage: Stage, superuser: User, picture: Picture) -> None:
    fill(40, 12)
    page = stage.visit(superuser, OVERVIEW)
    page.get_by_role("link", name="Winners and lock cost").click()
    expect(page.get_by_role("heading", name="Lock cost", exact=True)).to_be_visible()
    page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link", name="Overview").click()
    page.get_by_role("link", name="The day").click()
    page.get_by_role("link", name="import_rates").click()
    expect(page.get_by_role("table", name="The next 24 hours")).to_contain_text("2 to come")
    looks_well(page, "day-of-job", picture)
