from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from django.contrib.auth.models import Permission, User
from playwright.sync_api import expect, sync_playwright

from tests.browser.shop import open_shop, remember_slots
from tests.browser.stage import PATIENCE, Stage
from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from playwright.sync_api import Browser, Page
    from pytest_django.live_server_helper import LiveServer

    from tests.children import Child, Spawn

    Person = Callable[..., User]
    Server = Callable[..., Child]

    class Picture(Protocol):
        def __call__(self, page: Page, name: str, *, documented: bool = False) -> None: ...


FLAGS = [
    "--no-sandbox",  # otherwise it does not start for root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Not session-wide: while it is open, an event loop runs in this thread, and other tests would notice."""
    program = shutil.which("chromium") or there_is_none()
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # because of that event loop, Django would refuse its ORM
        expect.set_options(timeout=PATIENCE)
        yield playwright.chromium.launch(executable_path=program, args=FLAGS)


def there_is_none() -> NoReturn:
    reason = "There is no browser: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def stage(browser: Browser, live_server: LiveServer) -> Iterator[Stage]:
    stage = Stage(browser, live_server.url)
    yield stage
    stage.close()


@pytest.fixture
def person() -> Person:
    """Creates a staff user with these permissions: `person("clerk", "view_joblock")`."""

    def create(name: str, *permissions: str, **attributes: Any) -> User:
        somebody = User.objects.create(username=name, is_staff=True, **attributes)
        somebody.user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_singlejob", codename__in=permissions)
        )
        assert somebody.user_permissions.count() == len(permissions)
        return somebody

    return create


@pytest.fixture
def superuser(browser: Browser, live_server: LiveServer, person: Person) -> User:
    return person("admin", is_superuser=True)


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    """Saves a picture of the whole page. SINGLEJOB_PICTURES names a folder for the documentation's pictures; other
    pictures are taken only if it is set."""
    folder = os.environ.get("SINGLEJOB_PICTURES")

    def save(page: Page, name: str, *, documented: bool = False) -> None:
        if documented or folder:
            place = ROOT / folder if documented and folder else tmp_path
            page.screenshot(path=place / f"{name}.png", full_page=True, animations="disabled")

    return save


# --- the shop, whose jobs run on other servers


@pytest.fixture
def shop(fresh_process: None, live_server: LiveServer) -> None:
    """The shop's admin, with all well."""
    open_shop()
    remember_slots()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Touch this file to let the jobs of the shop continue."""
    return tmp_path / "go"


@pytest.fixture
def child_env(child_env: dict[str, str], go: Path) -> dict[str, str]:
    """The processes that tests start have no browser's event loop, so they must not have the permission for it."""
    return {name: child_env[name] for name in child_env if name != "DJANGO_ALLOW_ASYNC_UNSAFE"} | {"GO": str(go)}


@pytest.fixture
def server(spawn: Spawn) -> Server:
    """A server of the shop runs a management command: `server("run_singleton", "invoices")`."""

    def run(*arguments: str) -> Child:
        return spawn.code(
            """
            import sys
            from django.core.management import execute_from_command_line
            from tests.browser.shop import open_shop

            open_shop()
            execute_from_command_line(["manage.py", *sys.argv[1:]])
            """,
            *arguments,
        )

    return run
