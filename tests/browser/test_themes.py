"""The pages under the themes that many projects give their admin: what can be done there is seen and can be clicked."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING, get_args

import django
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from django_singlejob.models import JobStatus, OneOffJob
from tests.browser.paths import clearing, list_of, page_of
from tests.browser.shop import furnish
from tests.browser.stage import SIZES, Stage, Theme, settle
from tests.browser.test_lock_pages import fall_silent
from tests.browser.test_looks import PAGES
from tests.contract.acts import SECOND, is_free
from tests.ports import quiet_port
from tests.selection import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.contrib.auth.models import User
    from playwright.sync_api import Browser, Locator, Page

    from tests.browser.conftest import Picture
    from tests.children import Spawn

    Address = Callable[[], str]

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("shop"), pytest.mark.on_database("sqlite")]

#: The packages of the themes, by app.
PACKAGES = {"unfold": "django-unfold", "jazzmin": "django-jazzmin", "grappelli": "django-grappelli"}
SCHEMES = get_args(Theme)


@pytest.fixture(params=sampled(["django", *PACKAGES]))
def theme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in PACKAGES and (obstacle := why_not(PACKAGES[name])):
        pytest.skip(obstacle)
    return name


def why_not(package: str) -> str | None:
    """Why there is no theme to test. Its authors tell which Djangos it supports."""
    try:
        classifiers = metadata(package).get_all("Classifier", [])
    except PackageNotFoundError:
        return f"{package} is not installed"
    series = ".".join(map(str, django.VERSION[:2]))
    return None if f"Framework :: Django :: {series}" in classifiers else f"{package} is not for Django {series}"


@pytest.fixture
def themed(theme: str, browser: Browser, spawn: Spawn) -> Iterator[Stage]:
    """The stage, with the theme. What is not ours, a theme's own script for example, may have problems."""
    address = f"127.0.0.1:{quiet_port()}"
    server = spawn.code(
        """
        import sys
        from django.core.management import execute_from_command_line
        from tests.browser.shop import open_shop

        open_shop()
        execute_from_command_line(["manage.py", "runserver", "--noreload", "--skip-checks", *sys.argv[1:]])
        """,
        address,
        DJANGO_SETTINGS_MODULE="tests.browser.themed",
        SINGLEJOB_TEST_THEME=theme,
    )
    server.wait_for("Quit the server")
    stage = Stage(browser, f"http://{address}")
    yield stage
    for context in stage.contexts:
        context.close()
    ours = ("/static/django_singlejob/", ": 500")
    assert [problem for problem in stage.problems if any(part in problem for part in ours)] == []


# --- what can be seen


def invoice(status: str) -> OneOffJob:
    return OneOffJob.objects.filter(job_name="invoices", status=status).latest("pk")


#: The page of each button.
BUTTONS: dict[str, Address] = {
    "Run now": lambda: page_of("jobstatus", "newsletter"),
    "Pause…": lambda: page_of("jobstatus", "newsletter"),
    "Resume": lambda: page_of("jobstatus", "thumbnails"),
    "Clear its stale lock…": lambda: page_of("jobstatus", "backup"),
    "Clear…": lambda: page_of("joblock", "backup"),
    "Clear": lambda: clearing("silent"),
    "Stop…": lambda: page_of("joblock", "stock_sync"),
    "Cancel": lambda: page_of("oneoffjob", invoice("waiting").pk),
    "Run again": lambda: page_of("oneoffjob", invoice("failed").pk),
    "Pause refreshing": PAGES["overview"],
}

# A canvas knows every notation of a colour, and lays one over the other.
CONTRAST = """element => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
        layers.unshift(getComputedStyle(each).backgroundColor);
    }
    const painted = colours => {
        for (const colour of ["white", ...colours]) {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        }
        return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    };
    const luminance = colour => colour
        .map(value => value / 255)
        .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    const text = luminance(painted([...layers, getComputedStyle(element).color]));
    const background = luminance(painted(layers));
    return (Math.max(text, background) + 0.05) / (Math.min(text, background) + 0.05);
}"""
IS_ON_TOP = """element => {
    const {left, top, width, height} = element.getBoundingClientRect();
    return document.elementFromPoint(left + width / 2, top + height / 2) === element;
}"""
#: Pages whose width is the theme's affair.
ITS_OWN = ["index", "job-log", "one-off-add"]
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
#: The cells of a list that hide a part of what is in them.
CUT = """() => [...document.querySelectorAll("#result_list td")]
    .filter(cell => getComputedStyle(cell).overflowY == "hidden" && cell.scrollHeight > cell.clientHeight)
    .map(cell => cell.textContent)"""
IS_CUT = "element => element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight"


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True).or_(page.get_by_role("link", name=name, exact=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_button_is_readable_and_lies_on_top(themed: Stage, superuser: User, scheme: Theme) -> None:
    furnish()
    fall_silent("silent", SECOND)
    page = themed.visit(superuser, "/admin/", theme=scheme)
    for name, address in BUTTONS.items():
        page.goto(address())
        found = button(page, name)
        expect(found).to_be_enabled()
        found.scroll_into_view_if_needed()
        settle(page)
        assert found.evaluate(IS_ON_TOP), name
        assert not found.evaluate(IS_CUT), name
        assert found.evaluate(CONTRAST) >= 4.5, name


@pytest.mark.parametrize("scheme", sampled(SCHEMES))
def test_each_page_can_be_read(themed: Stage, superuser: User, picture: Picture, theme: str, scheme: Theme) -> None:
    furnish()
    page = themed.visit(superuser, "/admin/", theme=scheme)
    for name, address in PAGES.items():
        response = page.goto(address())
        assert response
        assert response.status == 200, name
        picture(page, f"theme-{theme}-{name}-{scheme}")
        assert pale(page) == [], name
        if name not in ITS_OWN:
            page.set_viewport_size(SIZES["phone"])
            page.wait_for_function(FITS)  # a theme may move its menu first
            assert page.evaluate(CUT) == [], name
            picture(page, f"theme-{theme}-{name}-{scheme}-phone")
            page.set_viewport_size(SIZES["desktop"])


#: What is ours on a page. The rest is the theme's affair, and so is the colour of links and of what is in them.
OURS = [f".singlejob-{part}:not(a *)" for part in ("page", "acts", "panels", "badge", "note", "text")]


def pale(page: Page) -> list[str]:
    """Our texts that have too little contrast."""
    settle(page)
    present = [[part] for part in OURS if page.locator(part).count()]
    if not present:
        return []
    found = Axe().run(page, {"include": present, "exclude": [["a"]]}, {"runOnly": ["color-contrast"], "preload": False})
    nodes = [node for violation in found.response["violations"] for node in violation["nodes"]]
    return [f"{node['html']}: {node['failureSummary']}" for node in nodes]


# --- what can be clicked


def test_the_buttons_do_what_they_say(themed: Stage, superuser: User) -> None:
    furnish()
    fall_silent("silent", SECOND)
    page = themed.visit(superuser, "/admin/")
    for name, says in {
        "Run now": "The next free worker will run the job newsletter",
        "Pause…": "The job newsletter is paused",
        "Resume": "The job thumbnails is no longer paused",
        "Cancel": "",
        "Run again": "",
    }.items():
        page.goto(BUTTONS[name]())
        button(page, name).click()
        if name == "Pause…":
            button(page, "Pause").click()  # it asks until when first
        expect(page.locator("body")).to_contain_text(says)
    paused = JobStatus.objects.filter(paused=True)
    assert list(paused.values_list("name", flat=True)) == ["newsletter"]
    assert OneOffJob.objects.filter(job_name="newsletter", status="waiting").count() == 1
    assert not OneOffJob.objects.filter(status="failed").exists()

    page.goto(clearing("silent"))
    expect(button(page, "Clear")).to_be_enabled()
    button(page, "Clear").click()
    expect(page.locator("body")).to_contain_text("The lock silent was cleared")
    assert is_free("silent")


def test_locks_can_be_cleared_from_their_list(themed: Stage, superuser: User) -> None:
    furnish()
    page = themed.visit(superuser, list_of("joblock"))
    page.get_by_role("row", name="backup").get_by_role("checkbox").check()
    page.locator("select[name=action]").select_option(label="Clear stale locks")
    page.locator("button[name=index]").click()
    expect(button(page, "Clear")).to_be_visible()
    expect(page.locator("body")).to_contain_text("presumed dead")
