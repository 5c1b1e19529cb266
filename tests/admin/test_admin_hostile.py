"""The admin's answers to requests that nobody sends by accident: each page, each way, and no error 500."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.admin import read_only
from django_singlejob.models.one_offs import one_offs
from tests.admin.pages import MODELS, address, all_rows, begin, list_of, names, page_of, shown
from tests.selection import sampled

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MEGABYTE = 1_000_000
CATASTROPHIC = "(a*)*b"

#: After the question mark.
QUERIES = [
    # lookups that no list offers
    f"error__regex={CATASTROPHIC}",
    f"name__regex={CATASTROPHIC}",
    f"job_name__iregex={CATASTROPHIC}",
    f"hostname__regex={CATASTROPHIC}",
    "name__regex=(",
    "fence__in=1,2,x",
    "fence__gt=1e400",
    f"fence={10**400}",
    f"pid={2**63}",
    "lock__x__y=1",
    "__=1",
    "pk__in=",
    "args__contains={",
    "kwargs__a__b=1",
    "duration__gt=x",
    "slot__year=1",
    "expires_at__lt=0000-00-00",
    "traceback__contains=x",
    "password=1",
    # NUL
    "q=%00",
    "q=a%00b",
    "o=%00",
    "p=%00",
    "e=%00",
    "all=%00",
    "_popup=%00",
    "_to_field=%00",
    "_facets=%00",
    "_changelist_filters=%00",
    "hours=%00",
    "name=%00",
    "name=a&name=%00b",
    "state=%00",
    "status__exact=%00",
    "status__isnull=%00",
    "hostname=%00",
    "server=%00",
    "job_name=%00",
    "queue_name__exact=%00",
    "token=%00",
    "priority=%00",
    f"priority={10**400}",
    "priority=%D9%A6",
    "priority=x",
    "%00=1",
    "status__exact%00=1",
    "started_at__year=%00",
    "back=%00",
    "run_after=%00",
    # what is not what it should be
    "token=x",
    f"token={10**400}",
    "status__isnull=x",
    "state=x&state=stale",
    *(
        f"started_at__year={year}"
        for year in (0, 1, 9998, 9999, 10_000, 99_999_999_999, -1, "x", "", "%D9%A6", 10**400)
    ),
    *(f"started_at__year=2025&started_at__month={month}" for month in (0, 13, -1, "x", "", 10**30)),
    *(f"started_at__year=2025&started_at__month=2&started_at__day={day}" for day in (0, 30, -1, "x", "", 10**30)),
    "started_at__year=1&started_at__month=1&started_at__day=1",
    "started_at__year=9999&started_at__month=12&started_at__day=31",
    "started_at__month=x",
    "started_at__day=99999999999",
    "started_at__gte=x",
    "started_at__year=2025&started_at__year=x",
    *(f"p={page}" for page in (-1, 0, 2**63, 10**400, "9" * 5000, "x")),
    *(f"o={order}" for order in ("-1", "99", 10**400, "9" * 5000, "x", "..-.--1", "1.1.-1.2", "pk")),
    # huge
    f"q={'a' * MEGABYTE}",
    f"q={'a+' * 2000}",
    f"q={'%22' * 500}",
    "q=" + "%5C" * 150 + "'",
    f"o={'1.-2.' * 1500}",
    f"hostname={'a' * MEGABYTE}",
    f"job_name={'a' * 7000}",
    "&".join(["name=a"] * 2000),
    "&".join(f"a{number}=1" for number in range(2000)),
    # text that is none
    "q=%ED%A0%80",
    "q=%FF%FE",
    "q=%F0%9F%98%80",
    "hostname=%F4%90%80%80",
    "server=%F0%9F%98%80",
    "q=%25%5F%5C",
]
IDS = ["\0", "_00", "_", "__00", "-1", "0", "x", "%", str(2**63), str(2**64), str(10**400), "9" * 5000, "a" * 5000]
FINE = (200, 302, 400, 404)


@pytest.fixture(autouse=True)
def something_of_each(fresh_process: None) -> None:
    """Create a row of each model."""
    singleton_job("nightly", schedule="0 4 * * *")(lambda: None)
    begin("nightly")


def addresses() -> list[str]:
    return [*names(), *(f"autocomplete {field}" for field in ("lock", "job", "run", "one_off"))]


def url_of(name: str) -> str:
    kind, _, field = name.partition(" ")
    if kind != "autocomplete":
        return address(name)
    return f"{reverse('admin:autocomplete')}?app_label=test_app&model_name=note&field_name=about_{field}"


@pytest.mark.parametrize("name", sampled(addresses(), every=16))
def test_no_query_string_is_an_error(viewer: Client, name: str) -> None:
    before = all_rows()
    url = url_of(name)
    joint = "&" if "?" in url else "?"
    allowed = (*FINE, viewer.get(url).status_code)
    for query in QUERIES:
        response = viewer.get(f"{url}{joint}{query.replace('q=', 'term=') if 'autocomplete' in name else query}")
        assert response.status_code in allowed, query[:100]
        assert len(response.content) < MEGABYTE, query[:100]
    assert all_rows() == before


@pytest.mark.parametrize("name", sampled(addresses(), every=16))
def test_nor_for_a_superuser_nor_is_a_strange_encoding(admin_client: Client, name: str) -> None:
    url = url_of(name)
    joint = "&" if "?" in url else "?"
    for key in "q", "term", "name", "hostname", "server", "job_name", "run_after", "priority", "a\\ud800":
        for value in "\\ud800", "\\x00", "x":
            query = f"{joint}{key}={value}"
            response = admin_client.get(f"{url}{query}", headers={"content-type": "text/html; charset=unicode_escape"})
            assert response.status_code in (*FINE, admin_client.get(url).status_code), query


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("page", ["change", "history", "delete", "onwards"])
def test_no_key_is_an_error(admin_client: Client, model: str, page: str) -> None:
    url = page_of(model, "KEY").replace("/change/", "/" if page == "onwards" else f"/{page}/")
    for key in IDS:
        response = admin_client.get(url.replace("KEY", key.replace("%", "%25").replace("\0", "%00")))
        # Nobody may delete a row.
        assert response.status_code in (*FINE, 403), key[:100]


def test_no_job_is_an_error_where_its_schedule_is_changed(admin_client: Client) -> None:
    url = page_of("jobstatus", "KEY").replace("/change/", "/schedule/")
    for key in IDS:
        for query in "", "?reset=yes":
            asked = url.replace("KEY", key.replace("%", "%25").replace("\0", "%00")) + query
            assert {admin_client.get(asked).status_code, admin_client.post(asked).status_code} == {302}, key[:100]


@pytest.mark.parametrize("model", MODELS)
def test_no_action_is_an_error(admin_client: Client, model: str) -> None:
    odd: list[dict[str, Any]] = [
        {"select_across": "1"},
        {"index": "9" * 5000},
        {"index": "-9"},
        {"version": "\0"},
        {"back": "_00"},
    ]
    ours = ["cancel", "pause", "clear"]
    for action in "", "x", "\0", "delete_selected", *ours:
        sent: list[dict[str, Any]] = [{"_selected_action": ["nightly", key]} for key in [*IDS, "nightly\0", "😀", ""]]
        for given in [*sent, *({"_selected_action": "nightly"} | more for more in odd)]:
            response = admin_client.post(list_of(model), {"action": action, "index": "0", **given})
            assert response.status_code in FINE, (action, str(given)[:100])


@pytest.mark.parametrize("model", MODELS)
def test_a_list_admits_its_own_filters_alone(viewer: Client, model: str) -> None:
    for query in "name__regex=a", "pk=1", "pid__gt=0", "started_at__gte=2025-01-01", "error__contains=a", "x=1":
        assert viewer.get(list_of(model, f"?{query}")).status_code == 400, query


@pytest.mark.parametrize(
    ("model", "query"),
    [
        *(("joblock", query) for query in ("state=stale", "hostname=web-1")),
        *(("jobstatus", query) for query in ("state=attention", "state=idle", "q=nightly")),
        *(("jobrun", query) for query in ("status__exact=failed", "trigger__exact=call", "server=web-1", "job_name=x")),
        *(("jobrun", f"started_at__year=2025{query}") for query in ("", "&started_at__month=2&started_at__day=28")),
        ("jobrun", f"token={'0' * 32}"),
        *(("oneoffjob", query) for query in ("status__exact=failed", "status__exact=failed&queue_name__exact=mail")),
        *(("oneoffjob", query) for query in ("priority=5", "name=nightly")),
    ],
)
def test_these_are_its_own(viewer: Client, model: str, query: str) -> None:
    shown(viewer, list_of(model, f"?{query}"))


@pytest.mark.parametrize("model", MODELS)
def test_what_is_no_text_finds_nothing(viewer: Client, model: str) -> None:
    assert rows_of(viewer, model, "") == 1
    for query in "q=%00", "q=nightly%00", "o=%00", "q=" + "a" * (read_only.LONGEST_SEARCH + 1), "q=" + "a+" * 100:
        assert rows_of(viewer, model, query) == 0, query


def test_a_search_gets_one_complaint(viewer: Client) -> None:
    limits = f"{read_only.MOST_WORDS} words of {read_only.LONGEST_SEARCH} characters"
    assert limits in shown(viewer, list_of("jobrun", "?q=" + "a+" * 100))
    assert limits not in shown(viewer, list_of("jobrun", "?q=a%00b"))


def rows_of(client: Client, model: str, query: str) -> int:
    return shown(client, list_of(model, f"?{query}")).count('<th class="field-')


def test_a_run_that_was_cancelled_by_hand_has_a_key(admin_client: Client) -> None:
    """A key beside hostile ones: nothing is done to it either, because the request was not sent by our page."""
    one_offs().update(status="waiting")
    sent = {"action": "cancel", "_selected_action": [str(one_offs().get().pk), "x"], "index": "0"}
    assert admin_client.post(list_of("oneoffjob"), sent).status_code == 302
    assert one_offs().get().status == "waiting"
