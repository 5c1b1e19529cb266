"""The overview on two screens, with few jobs and servers and with many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.crowd import fill
from tests.browser.paths import OVERVIEW
from tests.browser.stage import SIZES, assert_accessible
from tests.browser.test_looks import THEMES, fits

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from tests.browser.conftest import Picture
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.on_database("sqlite")]

TWO_SCREENS = 2 * SIZES["desktop"]["height"]


@pytest.mark.parametrize(("jobs", "servers"), [(3, 1), (40, 12)])
def test_the_overview_fits_two_screens(
    stage: Stage, superuser: User, picture: Picture, jobs: int, servers: int
) -> None:
    fill(jobs, servers)
    page = stage.visit(superuser, OVERVIEW)
    for size in SIZES:
        page.set_viewport_size(SIZES[size])
        fits(page, size)
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            picture(page, f"overview-{jobs}-jobs-{servers}-servers-{theme}-{size}")
        assert_accessible(page)
    page.set_viewport_size(SIZES["desktop"])
    assert page.evaluate("document.documentElement.scrollHeight") <= TWO_SCREENS
