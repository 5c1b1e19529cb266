"""The pages of the admin: their URLs, their actions and their content."""

from __future__ import annotations

from collections import defaultdict
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.urls import reverse

from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.running.enqueue import Order, place
from tests.contract.acts import everything, start_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client

    from django_singlejob import Lease

MODELS = ["joblock", "jobstatus", "jobrun", "oneoffjob"]
VIEW = ("view_joblock", "view_jobstatus", "view_jobrun", "view_oneoffjob")
#: The permissions to look after the jobs, but not to take a lock from a live holder.
OPERATE = (
    *VIEW,
    "run_jobstatus",
    "change_jobstatus",
    "change_schedule_jobstatus",
    "clear_joblock",
    "stop_joblock",
    "add_oneoffjob",
    "change_oneoffjob",
    "delete_oneoffjob",
)

each_model = pytest.mark.parametrize("model", MODELS)


# --- URLs


def list_of(model: str, query: str = "") -> str:
    return f"{reverse(f'admin:django_singlejob_{model}_changelist')}{query}"


def page_of(model: str, key: Any = None) -> str:
    """The page of this row, or of the first one."""
    rows: dict[str, Any] = {"joblock": locks(), "jobstatus": gates(), "jobrun": runs(), "oneoffjob": one_offs()}
    chosen = rows[model].order_by("pk").first().pk if key is None else key
    return reverse(f"admin:django_singlejob_{model}_change", args=[quote(chosen)])


def clear_page(*names: str) -> str:
    return f"{reverse('admin:django_singlejob_joblock_clear')}?{'&'.join(f'name={name}' for name in names)}"


def stop_page(*names: str, **more: str) -> str:
    """The page that asks whether to stop what holds these locks now."""
    wanted = [("run", locks().get(name=name).token.hex) for name in names]
    return f"{reverse('admin:django_singlejob_joblock_stop')}?{urlencode([*wanted, *more.items()])}"


def ours() -> Iterator[Any]:
    """The admin classes of our models."""
    yield from (found for model, found in admin.site._registry.items() if model._meta.app_label == "django_singlejob")


def names() -> list[str]:
    """The names of all our URLs. The one that Django does not name is called ``onwards``."""
    found = [(each, pattern.name) for each in ours() for pattern in each.get_urls()]
    return [
        name.removeprefix("django_singlejob_") if name else f"{each.opts.model_name}_onwards" for each, name in found
    ]


def address(name: str) -> str:
    """The URL with this name, of the first row if it needs a row."""
    name_of_model, _, page = name.partition("_")
    if page in ("changelist", "add", "clear", "stop", "ledger", "winners", "why"):
        return reverse(f"admin:django_singlejob_{name}")
    change = page_of(name_of_model)
    return change.replace("/change/", "/" if page == "onwards" else f"/{page}/")


# --- actions


def user_of(client: Client) -> User:
    """The user that is logged in, or one without a primary key."""
    return User.objects.get(pk=client.session["_auth_user_id"]) if "_auth_user_id" in client.session else User()


def begin(name: str = "nightly", **terms: Any) -> Lease:
    """Somebody starts a one-off of this job that keeps running, so there is a row of each model."""
    return start_run(name, one_off=place(Order(job_name=name), [], {}), **terms)


def all_rows() -> list[object]:
    return [*everything(), *one_offs().order_by("pk").values()]


def shown(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, (response.status_code, url)
    return response.content.decode()


def act(client: Client, model: str, action: str, *keys: object, **more: Any) -> list[str]:
    """Select these rows and this action in the list, and confirm a pause. Returns the messages to the user."""
    confirmed = {"confirmed": "yes"} if action == "pause" else {}
    chosen = {"action": action, "_selected_action": [str(key) for key in keys]} | confirmed | more
    return messages_of(client.post(list_of(model), chosen, follow=True))


def messages_of(response: Any) -> list[str]:
    assert response.status_code == 200, response.status_code
    return [str(message) for message in response.context["messages"]]


class Page(HTMLParser):
    """The content of a page.

    Attributes:
        fields: the values of the form fields, by name, except those of the admin's own search and log-out.
        links: the URLs it links to.
        targets: the URLs its forms and buttons post to.
        text: all text, including what only a screen reader reads.
        inline: what a strict Content-Security-Policy refuses.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = defaultdict(list)
        self.links: list[str] = []
        self.targets: list[str] = []
        self.text = ""
        self.inline: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._inside = tag
        self.text += "\n"
        if tag in ("input", "select", "textarea") and given.get("name") not in ("q", "csrfmiddlewaretoken", None):
            self.fields[given["name"]].append(given.get("value", ""))
        if tag == "a":
            self.links.append(given.get("href", ""))
        self.targets += [given[name] for name in ("action", "formaction") if given.get(name)]
        read = ["title", "aria-label", "alt", "placeholder", "label"]
        read += ["value"] if tag == "input" and given.get("type") == "submit" else []
        self.text += "".join(f"\n{given[name]}\n" for name in read if name in given)
        self._find_inline(tag, given)

    def _find_inline(self, tag: str, given: dict[str, str]) -> None:
        is_code = tag == "script" and "src" not in given and given.get("type") != "application/json"
        if tag == "style" or is_code:
            self.inline.append(tag)
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        self.inline += [value for value in given.values() if value.strip().lower().startswith("javascript:")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data
