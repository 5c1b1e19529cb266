"""Permissions in the admin: each user tries each URL and each action, and a POST made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, RequestFactory
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.admin.clearing import Sighting, sign
from django_singlejob.models.alerts import alerts
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from tests.admin.pages import OPERATE, VIEW, address, all_rows, begin, list_of, names, ours, user_of
from tests.contract.acts import expire, is_free, lock, start_run
from tests.selection import sampled

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.people import LogIn

    People = dict[str, Client]

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

PEOPLE = ["anonymous", "staff", "viewer", "operator", "superuser"]

# What each of these users gets with GET. Anonymous users are redirected to the log-in page.
NOBODY = [302, 403, 403, 403, 403]
WHO_SEES = [302, 403, 200, 200, 200]
WHO_ADDS = [302, 403, 403, 200, 200]
WHO_ACTS = [302, 403, 403, 200, 200]
# The URL without its last word: Django redirects to the page, which then checks the user.
ONWARDS = [302, 302, 302, 302, 302]

MATRIX: dict[str, list[int]] = {}
for model in "joblock", "jobstatus", "jobrun", "oneoffjob":
    MATRIX |= {
        f"{model}_changelist": WHO_SEES,
        f"{model}_add": WHO_ADDS if model == "oneoffjob" else NOBODY,
        f"{model}_history": WHO_SEES,
        f"{model}_delete": NOBODY,
        f"{model}_change": WHO_SEES,
        f"{model}_onwards": ONWARDS,
    }
MATRIX |= {"joblock_clear": WHO_ACTS, "joblock_stop": WHO_ACTS, "overview_changelist": WHO_SEES}
MATRIX |= {"jobstatus_schedule": WHO_ACTS}
MATRIX |= {"overview_ledger": WHO_SEES, "overview_winners": WHO_SEES, "overview_why": WHO_SEES}


@pytest.fixture
def people(log_in: LogIn) -> People:
    return {
        "anonymous": Client(),
        "staff": log_in("staff"),
        "viewer": log_in("viewer", *VIEW),
        "operator": log_in("operator", *OPERATE),
        "superuser": log_in("superuser", is_superuser=True),
    }


@pytest.fixture(autouse=True)
def something_of_each(fresh_process: None) -> None:
    """Create a row of each model."""
    singleton_job("nightly", schedule="0 4 * * *")(lambda: None)
    begin("nightly")


def everything() -> list[object]:
    return [*all_rows(), *LogEntry.objects.order_by("pk").values()]


def test_the_matrix_is_complete() -> None:
    assert sorted(names()) == sorted(MATRIX)


@pytest.mark.parametrize("name", MATRIX)
def test_each_user_sees_the_expected_pages(people: People, name: str) -> None:
    before = everything()
    found = {person: client.get(address(name)).status_code for person, client in people.items()}
    assert found == dict(zip(PEOPLE, MATRIX[name], strict=True))
    assert everything() == before


# Everything that an admin form might send.
SENT = {
    "post": "yes",
    "_save": "Save",
    "name": "changed",
    "status": "done",
    "paused": "on",
    "token": "0" * 32,
    "hostname": "changed",
    "index": "0",
}
# A POST may change something here, which other tests cover.
MAY_ACT = {"oneoffjob_add", "joblock_clear", "joblock_stop", "jobstatus_schedule"}


@pytest.mark.parametrize("name", sorted(set(MATRIX) - MAY_ACT))
def test_a_post_that_is_made_by_hand_changes_nothing(people: People, name: str) -> None:
    before = everything()
    for person, client in people.items():
        for sent in SENT, SENT | {"_selected_action": "nightly", "action": "delete_selected"}:
            status = client.post(address(name), sent).status_code
            is_allowed = person in ("viewer", "operator", "superuser") and name.endswith(("_changelist", "_history"))
            expected = (200, 302, 405) if is_allowed else (302, 403, 405)
            assert status in expected, (person, status)
    assert everything() == before


@pytest.mark.parametrize("name", sampled(sorted(MATRIX)))
def test_nor_do_other_methods(people: People, name: str) -> None:
    before = everything()
    for client in people.values():
        for method in "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS":
            assert client.generic(method, address(name)).status_code in (200, 302, 403, 405)
    assert everything() == before


def test_it_is_listed_for_users_that_may_see_it(people: People) -> None:
    for person, client in people.items():
        page = client.get(reverse("admin:index"), follow=True).content.decode()
        may_see = person in ("viewer", "operator", "superuser")
        for model in "joblock", "jobstatus", "jobrun", "oneoffjob", "overview":
            assert (f'href="{list_of(model)}"' in page) is may_see, (person, model)


# --- the actions


def is_asked_to_run() -> bool:
    return one_offs().filter(job_name="nightly", status="waiting").exists()


def is_paused() -> bool:
    return gates().get(name="nightly").paused


def pause() -> None:
    gates().update(paused=True)


def one_off_is(status: str) -> Callable[[], object]:
    return lambda: one_offs().update(status=status)


def has_status(status: str) -> Callable[[], bool]:
    return lambda: one_offs().get().status == status


def is_hidden() -> bool:
    return gates().get(name="mistyped").hidden


def an_old_name() -> None:
    start_run("mistyped").release()


def hide() -> None:
    an_old_name()
    gates().hide("mistyped")


def nothing() -> None:
    pass


def fail() -> None:
    gates().filter(name="nightly").update(consecutive_failures=1)


#: For each action: how to prepare it, whether it was done, and its permission. Those that only ask are below.
ACTIONS: dict[str, tuple[Callable[[], object], Callable[[], bool], str]] = {
    "jobstatus run_now": (nothing, is_asked_to_run, "run_jobstatus"),
    "jobstatus acknowledge": (fail, lambda: alerts().exists(), "change_jobstatus"),
    "jobstatus pause": (nothing, is_paused, "change_jobstatus"),
    "jobstatus resume": (pause, lambda: not is_paused(), "change_jobstatus"),
    "jobstatus hide": (an_old_name, is_hidden, "change_jobstatus"),
    "jobstatus show": (hide, lambda: not is_hidden(), "change_jobstatus"),
    "joblock clear": (expire, lambda: False, "clear_joblock"),
    "joblock stop": (nothing, lambda: False, "stop_joblock"),
    "oneoffjob stop": (nothing, lambda: False, "stop_joblock"),
    "oneoffjob cancel": (one_off_is("waiting"), has_status("cancelled"), "change_oneoffjob"),
    "oneoffjob retry": (one_off_is("failed"), has_status("waiting"), "change_oneoffjob"),
    "oneoffjob discard": (one_off_is("done"), lambda: not one_offs().exists(), "delete_oneoffjob"),
}
#: What a user sends from the page on which an action asks.
CONFIRMATIONS = {"acknowledge": {"confirmed": "yes"}, "discard": {"confirmed": "yes"}, "pause": {"confirmed": "yes"}}
#: What these ask, other pages do.
ASKING = ("clear", "stop")
#: Only jobs that the code does not have can be hidden.
OTHER_KEYS = {"hide": "mistyped", "show": "mistyped"}
each_action = pytest.mark.parametrize("name", ACTIONS)


def test_all_actions_are_known(django_user_model: Any) -> None:
    request = RequestFactory().get("/")
    request.user = django_user_model(is_superuser=True, is_active=True)
    found = [f"{each.opts.model_name} {action}" for each in ours() for action in each.get_actions(request)]
    assert sorted(found) == sorted(ACTIONS)


def choose(client: Client, name: str, **more: str) -> int:
    model, action = name.split()
    key = str(one_offs().earliest("pk").pk) if model == "oneoffjob" else OTHER_KEYS.get(action, "nightly")
    sent = {"action": action, "_selected_action": key} | CONFIRMATIONS.get(action, {}) | more
    return client.post(list_of(model), sent).status_code


@each_action
def test_a_user_without_the_permission_does_nothing(people: People, log_in: LogIn, name: str) -> None:
    prepare, is_done, permission = ACTIONS[name]
    prepare()
    others = [other for other in OPERATE if other != permission]
    people["all but this"] = log_in("other", *others)
    if not permission.startswith("change"):  # in Django, the permission to change includes the one to view
        people["who may not look"] = log_in("blind", permission)
    for doer in "operator", "superuser":
        del people[doer]
    before = everything()
    for person, client in people.items():
        expected = {"anonymous": 302, "viewer": 200, "all but this": 200}.get(person, 403)
        found = {choose(client, name), choose(client, name, back="nightly"), choose(client, name, index="0")}
        assert found <= {expected, 302 if expected == 200 else expected}, person
    assert everything() == before
    assert not is_done()


@each_action
def test_a_user_with_the_permission_does_it_and_that_is_in_the_log(people: People, log_in: LogIn, name: str) -> None:
    model, action = name.split()
    prepare, is_done, permission = ACTIONS[name]
    prepare()
    before = everything()
    client = log_in("doer", *{permission, f"view_{model}", *(["view_joblock"] if action == "stop" else [])})
    if action in ASKING:
        assert choose(client, name) == 200
        assert everything() == before
        return
    assert choose(client, name) == 302
    assert is_done()
    entry = LogEntry.objects.get()
    assert (entry.user.get_username(), entry.is_deletion()) == ("doer", action == "discard")
    assert entry.is_change() is not entry.is_deletion()
    assert entry.content_type
    assert entry.content_type.model == model


def test_what_is_lost_is_asked_about_first(people: People) -> None:
    one_offs().update(status="done")
    before = everything()
    key = str(one_offs().get().pk)
    for doer in "operator", "superuser":
        sent = {"action": "discard", "_selected_action": key}
        assert people[doer].post(list_of("oneoffjob"), sent).status_code == 200
    assert everything() == before


# --- what is not an action


def test_the_permission_to_clear_a_lock(people: People, log_in: LogIn) -> None:
    people |= {
        "who may not look": log_in("blind", "clear_joblock", "force_joblock"),
        "all but this": log_in("other", *[other for other in OPERATE if other != "clear_joblock"]),
    }
    doers = {person: people.pop(person) for person in ("operator", "superuser")}
    doers["forcer"] = log_in("forcer", "view_joblock", "force_joblock")
    expire()
    before = everything()
    for person, client in people.items():
        expected = 302 if person == "anonymous" else 403
        assert clear(client) == clear(client, force="nightly") == expected, person
    assert everything() == before
    for client in doers.values():
        assert clear(client) == 302
        assert is_free()
        one_offs().all().delete()
        begin("nightly")
        expire()
    assert LogEntry.objects.count() == 2 * len(doers)


def clear(client: Client, **more: str) -> int:
    held = lock()
    sent = {"lock": sign(Sighting.of(held), user_of(client)), "name": held.name} | more
    return client.post(reverse("admin:django_singlejob_joblock_clear"), sent).status_code


def test_the_permission_to_force_it(people: People, log_in: LogIn) -> None:
    superuser = people.pop("superuser")
    before = everything()
    for person, client in people.items():
        assert clear(client, force="nightly") == (302 if person == "anonymous" else 403), person
        assert clear(client) == (302 if person in ("anonymous", "operator") else 403), person
    assert clear(superuser) == 302
    assert everything() == before
    assert clear(superuser, force="nightly") == 302
    assert is_free()
    assert LogEntry.objects.count() == 2


def test_the_permission_to_enqueue_a_one_off(people: People, log_in: LogIn) -> None:
    people["all but this"] = log_in("other", *[other for other in OPERATE if other != "add_oneoffjob"])
    doers = {person: people.pop(person) for person in ("operator", "superuser")}
    before = everything()
    for person, client in people.items():
        assert add(client) == (302 if person == "anonymous" else 403), person
    assert everything() == before
    for client in doers.values():
        assert add(client) == 302
    assert one_offs().waiting().count() == LogEntry.objects.count() == len(doers)


def add(client: Client) -> int:
    sent = {"job_name": "nightly", "args": "[]", "kwargs": "{}", "priority": "0", "queue_name": "default"}
    return client.post(reverse("admin:django_singlejob_oneoffjob_add"), sent).status_code


def test_the_permission_to_change_a_schedule(people: People, log_in: LogIn) -> None:
    people |= {
        "who may not look": log_in("blind", "change_schedule_jobstatus"),
        "all but this": log_in("other", *[other for other in OPERATE if other != "change_schedule_jobstatus"]),
    }
    doers = {person: people.pop(person) for person in ("operator", "superuser")}
    before = everything()
    for person, client in people.items():
        assert change_schedule(client) == (302 if person == "anonymous" else 403), person
    assert everything() == before
    for client in doers.values():
        gates().update(own_schedule="", own_time_zone="")
        assert change_schedule(client) == 302
        assert gates().get(name="nightly").own_schedule == "0 5 * * *"
    assert LogEntry.objects.count() == len(doers)


def change_schedule(client: Client) -> int:
    given = {
        "schedule": "0 5 * * *",
        "time_zone": "UTC",
        "reason": "trial",
        "previewed": "0 5 * * * UTC",
        "save": "yes",
    }
    return client.post(address("jobstatus_schedule"), given).status_code


def test_a_permission_for_one_page_shows_no_others(log_in: LogIn) -> None:
    """The overview shows something of every model."""
    models = ["joblock", "jobstatus", "jobrun", "oneoffjob"]
    for permission in VIEW:
        client = log_in(permission, permission)
        found = {model for model in [*models, "overview"] if client.get(list_of(model)).status_code == 200}
        assert found == {permission.removeprefix("view_")}
