"""Projects with admin sites of their own: each link leads to the site that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Group, User
from django.test import AsyncClient
from django.urls import path

from django_singlejob.admin import register
from django_singlejob.admin.jobs import JobStatusAdmin
from django_singlejob.models import JobStatus
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from tests.admin.pages import Page, begin, messages_of, shown
from tests.admin.test_admin import live_a_little
from tests.children import ROOT
from tests.contract.acts import expire

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.people import LogIn
    from tests.children import Spawn

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


class Operations(AdminSite):
    """A site for operators, who need not be staff."""

    def has_permission(self, request: Any) -> bool:
        return bool(request.user.is_active)


operations = Operations(name="operations")
register(operations)
operations.register([Group])

OURS = "/internal/operations/"
ALONE = (path("internal/operations/", operations.urls),)
BESIDE_DJANGOS = (path("admin/", admin.site.urls), *ALONE)
each_project = pytest.mark.parametrize("urls", [ALONE, BESIDE_DJANGOS], ids=["alone", "beside Django's"])


def crawl(client: Client, start: str) -> Iterator[tuple[str, str]]:
    """Each URL that a page names, and the page, on all pages that can be reached from the first."""
    seen, waiting = set(), [start]
    while waiting:
        here = waiting.pop()
        page = Page(re.sub(r'(?s)<div class="module" id="recent-actions-module">.*?</div>', "", shown(client, here)))
        yield from ((urljoin(here, target), here) for target in page.targets)
        for link in page.links:
            there = urljoin(here, link)
            yield there, here
            # Of the pages of a list, one for each filter will do.
            kind = urlsplit(there).path, tuple(parse_qs(urlsplit(there).query))
            if kind not in seen and len(kind[1]) <= 1 and not re.search(r"/(logout|password_change|auth)/|^/$", there):
                seen.add(kind)
                waiting.append(there)


def strays(client: Client, start: str) -> set[tuple[str, str]]:
    """The URLs that lead away from the site, and the pages that name them, except for "View site"."""
    found = set(crawl(client, start))
    visited = {here for _there, here in found}
    for page in ("overview/", "overview/ledger/", "overview/winners/", "joblock/clear/"):
        assert any(f"{start}django_singlejob/{page}" in here for here in visited), page
    for model in ("jobstatus", "joblock", "jobrun", "oneoffjob"):
        assert any(re.search(f"/{model}/.+/change/", here) for here in visited), model
    return {(there, here) for there, here in found if there != "/" and not there.startswith(start)}


@pytest.mark.slow
def test_no_link_leads_to_another_site(admin_client: Client, settings: Any) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    live_a_little()
    assert strays(admin_client, OURS) == set()


@pytest.mark.slow
def test_nor_does_one_from_djangos_own(admin_client: Client, settings: Any) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    live_a_little()
    shown(admin_client, f"{OURS}django_singlejob/overview/")
    assert strays(admin_client, "/admin/") == set()


@pytest.mark.django_db(transaction=True)
def test_a_site_that_replaces_djangos_is_one_like_it(spawn: Spawn, admin_client: Client) -> None:
    begin("nightly")
    child = spawn.code(
        """
        import sys
        from django.test import Client

        client = Client(headers={"host": "localhost"})
        client.cookies["sessionid"] = sys.argv[1]
        for page in "overview/", "jobstatus/nightly/change/":
            response = client.get(f"/admin/django_singlejob/{page}")
            print(response.status_code, response.content.decode())
        """,
        admin_client.cookies["sessionid"].value,
        DJANGO_SETTINGS_MODULE="tests.admin.site_of_project",
    )
    assert child.finish() == 0
    assert child.output.count("200 <!DOCTYPE html>") == 2
    assert "The shop" in child.output
    links = [link for link in Page(child.output).links if "django_singlejob" in link]
    assert "/admin/django_singlejob/overview/ledger/?job=nightly" in links
    assert all(link.startswith("/admin/") for link in links)


@each_project
def test_the_overview_is_the_first_entry_of_the_menu(admin_client: Client, settings: Any, urls: Any) -> None:
    settings.ROOT_URLCONF = urls
    ours = [link for link in Page(shown(admin_client, OURS)).links if "/django_singlejob/" in link]
    assert ours[:2] == [f"{OURS}django_singlejob/", f"{OURS}django_singlejob/overview/"]


def test_a_page_can_be_replaced_by_one_of_its_own(admin_client: Client, settings: Any) -> None:
    class JobAdmin(JobStatusAdmin):
        list_per_page = 1

    site = AdminSite(name="customized")
    register(site)
    site.unregister(JobStatus)
    site.register(JobStatus, JobAdmin)
    settings.ROOT_URLCONF = (path("own/", site.urls), *BESIDE_DJANGOS)
    begin("nightly")
    begin("weekly")
    links = Page(shown(admin_client, "/own/django_singlejob/jobstatus/")).links
    assert "/own/django_singlejob/jobstatus/nightly/change/" in links
    assert "?p=2" in links


# --- what is posted


def post(client: Client, page: str, **fields: Any) -> str:
    """Where the answer leads."""
    response = client.post(f"{OURS}django_singlejob/{page}", fields, follow=True)
    assert messages_of(response)
    there: str = response.redirect_chain[-1][0]
    return there


@pytest.mark.parametrize("action", ["run_now", "pause", "resume"])
def test_a_job_that_was_changed_on_its_page_is_shown_again(admin_client: Client, settings: Any, action: str) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    begin("nightly")
    chosen = {"_selected_action": "nightly", "back": "nightly", "confirmed": "yes"}
    there = post(admin_client, "jobstatus/", action=action, **chosen)
    assert there == f"{OURS}django_singlejob/jobstatus/nightly/change/"


def test_so_is_a_one_off(admin_client: Client, settings: Any) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    begin("nightly")
    one_offs().update(status="waiting")
    row = one_offs().get()
    there = post(admin_client, "oneoffjob/", action="cancel", _selected_action=row.pk, back=row.pk, version=row.version)
    assert there == f"{OURS}django_singlejob/oneoffjob/{row.pk}/change/"


def test_a_lock_that_was_cleared_leads_to_the_list(admin_client: Client, settings: Any) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    begin("nightly")
    expire("nightly")
    asked = Page(shown(admin_client, f"{OURS}django_singlejob/joblock/clear/?name=nightly")).fields
    there = post(admin_client, "joblock/clear/", lock=asked["lock"], name="nightly", force="nightly")
    assert there == f"{OURS}django_singlejob/joblock/"
    assert not locks().exists()


def test_permissions_are_the_same_there(log_in: LogIn, settings: Any) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    begin("nightly")
    viewer = log_in("clerk", "view_joblock")
    User.objects.update(is_staff=False)
    assert "Clear" not in shown(viewer, f"{OURS}django_singlejob/joblock/nightly/change/")
    assert viewer.get(f"{OURS}django_singlejob/joblock/clear/?name=nightly").status_code == 403
    assert viewer.get(f"{OURS}django_singlejob/jobstatus/nightly/change/").status_code == 403
    assert viewer.get("/admin/django_singlejob/joblock/").status_code == 302


# --- how


@pytest.mark.django_db(transaction=True)
def test_pages_that_are_served_asynchronously_know_their_site_too(log_in: LogIn, settings: Any) -> None:
    settings.ROOT_URLCONF = BESIDE_DJANGOS
    begin("nightly")
    client = AsyncClient()
    client.cookies = log_in("admin", is_superuser=True).cookies
    for site in OURS, "/admin/", OURS:
        response = async_to_sync(client.get)(f"{site}django_singlejob/joblock/nightly/change/")
        assert f'"{site}django_singlejob/jobstatus/nightly/change/"' in response.content.decode()


def test_only_one_module_looks_up_urls() -> None:
    modules = (ROOT / "django_singlejob").rglob("*.py")
    assert [module.name for module in modules if re.search(r"\breverse\(", module.read_text())] == ["addresses.py"]
