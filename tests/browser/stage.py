"""The stage for the stories: a browser, the pages that users open in it, and what must not go wrong there."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.test import Client

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, ViewportSize

Theme = Literal["light", "dark"]
Size = Literal["desktop", "phone"]

SIZES: dict[Size, ViewportSize] = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
# In milliseconds. The machine may be busy with other things.
PATIENCE = 30_000
# The findings of axe that count. The rest is advice.
IMPACTS = {"serious", "critical"}
# Parts of a page that are Django's own, and whose links axe does not like.
NOT_OURS = {"exclude": [[".breadcrumbs"], ["#toolbar"]]}
# With "preload", axe would load the stylesheets again, and violate the policy itself.
OPTIONS = {"resultTypes": ["violations"], "preload": False}


@dataclass
class Stage:
    browser: Browser
    server: str
    contexts: list[BrowserContext] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def visit(
        self,
        person: User,
        path: str,
        *,
        theme: Theme = "light",
        size: Size = "desktop",
        status: int = 200,
        scripts: bool = True,
    ) -> Page:
        """The page at this path, as this user sees it. Fails if the server answers with another status."""
        page = self._enter(person, theme, size, scripts)
        expected = (f"{self.server}{path}", status)
        page.on("response", lambda response: self._judge(response, expected))
        response = page.goto(expected[0])
        assert response, path
        assert response.status == status, f"{path}: {response.status}"
        return page

    def _enter(self, person: User, theme: Theme, size: Size, scripts: bool) -> Page:
        context = self.browser.new_context(
            base_url=self.server,
            color_scheme=theme,
            viewport=SIZES[size],
            reduced_motion="reduce",
            java_script_enabled=scripts,
        )
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session_of(person), "url": self.server}])
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(f"A script raised {error}"))
        page.on("requestfailed", self._miss)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        """Violations of the policy are errors in the console, too. `_judge` reports what the server refuses."""
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.problems.append(f"The console of {message.location.get('url')} says: {message.text}")

    def _miss(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # that is, somebody left the page before it was complete
            self.problems.append(f"{request.method} {request.url} failed: {request.failure}")

    def _judge(self, response: Response, expected: tuple[str, int]) -> None:
        if response.status >= 400 and (response.url, response.status) != expected:
            self.problems.append(f"{response.request.method} {response.url}: {response.status}")

    def forgive(self, words: str) -> None:
        """Ignore problems that contain these words: they were intended."""
        self.problems = [problem for problem in self.problems if words not in problem]

    def close(self) -> None:
        """Fails if anything went wrong on a page."""
        for context in self.contexts:
            for page in context.pages:
                page.evaluate("0")  # when this is answered, all earlier events have been reported
            context.close()
        assert not self.problems, "\n".join(self.problems)


def session_of(person: User) -> str:
    """Logs in without a password, since hashing one takes longer than a test."""
    client = Client()
    client.force_login(person)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def settle(page: Page) -> None:
    """Wait until colours that change slowly, such as those of links when the theme does, have changed."""
    page.evaluate("Promise.allSettled(document.getAnimations().map(animation => animation.finished)).then(() => 0)")


def assert_accessible(page: Page) -> None:
    settle(page)
    found = Axe().run(page, NOT_OURS, OPTIONS).response["violations"]
    serious = [violation for violation in found if violation["impact"] in IMPACTS]
    assert not serious, "\n".join([f"axe does not like {urlsplit(page.url).path}:", *map(_report, serious)])


def _report(violation: dict[str, Any]) -> str:
    nodes = "\n".join(f"{node['target']}: {node['html']}\n{node['failureSummary']}" for node in violation["nodes"])
    return f"{violation['impact']}: {violation['help']} ({violation['id']})\n{indent(nodes, '    ')}"
