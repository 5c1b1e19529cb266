"""The admin's list of one-offs, the page of a one-off, and the actions there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import Error, connection, transaction
from django.db.models import F, JSONField, Value
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_singlejob import singleton_job
from django_singlejob.models.one_offs import OneOffJobQuerySet, one_offs
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow
from django_singlejob.running.enqueue import Order, place
from tests.admin.pages import Page, act, begin, list_of, messages_of, page_of, shown
from tests.app import django_tasks
from tests.contract.acts import HOUR, expire, last_run, ticked

if TYPE_CHECKING:
    from django.test import Client

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

ADD = "admin:django_singlejob_oneoffjob_add"
ASKED = {"job_name": "mail", "args": "[1]", "kwargs": "{}", "priority": "5", "queue_name": "default"}
STATUSES = ["waiting", "in_progress", "done", "failed", "cancelled"]


@pytest.fixture
def mail(fresh_process: None) -> Any:
    return singleton_job("mail", retries=4)(lambda number: number)


@pytest.fixture
def one_of_each(mail: Any) -> dict[str, int]:
    """The key of a one-off in each status."""
    keys = {status: mail.enqueue(number).pk for number, status in enumerate(STATUSES)}
    for status, key in keys.items():
        one_offs().filter(pk=key).update(status=status)
    return keys


def listed(client: Client, query: str = "") -> list[int]:
    """The one-offs in the list, from top to bottom."""
    return [int(key) for key in re.findall(r"oneoffjob/(\d+)/change/", shown(client, list_of("oneoffjob", query)))]


def statuses() -> dict[int, str]:
    return dict(one_offs().values_list("pk", "status"))


# --- the list, and the page of a one-off


def test_they_are_filtered_and_searched_for(admin_client: Client, one_of_each: dict[str, int]) -> None:
    other = place(Order(job_name="shop:report_1", queue_name="slow"), [], {})
    one_offs().filter(pk=one_of_each["done"]).update(hostname="web-7")
    assert listed(admin_client) == [other.pk, *sorted(one_of_each.values(), reverse=True)]
    for status, key in one_of_each.items():
        assert set(listed(admin_client, f"?status__exact={status}")) - {other.pk} == {key}
    assert listed(admin_client, "?q=REPORT_1") == listed(admin_client, "?q=slow") == [other.pk]
    assert listed(admin_client, "?q=web-7") == [one_of_each["done"]]


def test_what_it_was_asked_to_do_and_what_became_of_it_is_shown(admin_client: Client, mail: Any) -> None:
    row = place(
        Order(job_name="mail", max_attempts=mail.most_attempts), ["<it>", [1, None]], {"language": "it", "copies": 2}
    )
    one_offs().update(
        status="failed",
        result={"sent": "<none>"},
        error="Oh <no>\nand more",
        traceback="Traceback\n  <here>",
        worker_ids="web-1:4\nweb-2:5\n",
        attempt=2,
    )
    page = shown(admin_client, page_of("oneoffjob", row.pk))
    for text in [
        "&quot;&lt;it&gt;&quot;, [1, null], language=&quot;it&quot;, copies=2",
        "{&quot;sent&quot;: &quot;&lt;none&gt;&quot;}",
        "Traceback\n  &lt;here&gt;</pre>",
        "web-1:4\nweb-2:5\n</pre>",
        "2 of 5",
    ]:
        assert (
            text in page
            or text.replace("language=&quot;it&quot;, copies=2", "copies=2, language=&quot;it&quot;") in page
        )
    assert "Oh &lt;no&gt;" in shown(admin_client, list_of("oneoffjob"))
    assert page_of("jobstatus", "mail") in Page(page).links
    one_offs().update(job_name="", task_path="tests.app.django_tasks.add")
    assert not [
        link
        for link in Page(shown(admin_client, page_of("oneoffjob"))).links
        if "/jobstatus/" in link and "change" in link
    ]


def test_one_that_waits_for_too_long_makes_one_ask(admin_client: Client, mail: Any) -> None:
    mail.enqueue(1)
    assert "is a worker running?" not in shown(admin_client, list_of("oneoffjob"))
    one_offs().update(run_after=DBNow() - HOUR)
    assert "is a worker running?" in shown(admin_client, list_of("oneoffjob"))
    for status in "in_progress", "done":
        one_offs().update(status=status)
        assert "is a worker running?" not in shown(admin_client, list_of("oneoffjob"))


def test_one_that_waits_because_its_process_crashed_says_so(admin_client: Client, mail: Any) -> None:
    mail.enqueue(1)
    one_offs().update(suspect=True, run_after=DBNow() - HOUR)
    page = shown(admin_client, list_of("oneoffjob"))
    assert "waits to run alone" in page
    assert "is a worker running?" not in page


def test_nobody_is_told_for_how_long_one_of_a_dead_worker_has_run(admin_client: Client, mail: Any) -> None:
    begin("mail")
    one_offs().update(started_at=DBNow() - 72 * HOUR)
    pages = list_of("oneoffjob"), page_of("oneoffjob")
    assert ["3\xa0d\xa00\xa0h<" in shown(admin_client, page) for page in pages] == [True, True]
    expire("mail")
    assert ["3\xa0d\xa00\xa0h<" in shown(admin_client, page) for page in pages] == [False, False]
    assert ["its worker is dead" in shown(admin_client, page) for page in pages] == [True, True]


def test_the_name_of_a_task_finds_none_that_runs_as_a_job(admin_client: Client) -> None:
    path = "tests.app.django_tasks.add"
    task, job = (place(Order(task_path=path), [], {}) for _ in range(2))
    one_offs().filter(pk=job.pk).update(job_name="mail")
    assert listed(admin_client, f"?name={path}") == [task.pk]
    assert listed(admin_client, "?name=mail") == [job.pk]


def test_the_buttons_fit_the_status(
    admin_client: Client, operator: Client, viewer: Client, one_of_each: dict[str, int]
) -> None:
    expected = {
        "waiting": {"cancel"},
        "done": {"discard"},
        "failed": {"retry", "discard"},
        "cancelled": {"retry", "discard"},
    }
    for status, key in one_of_each.items():
        for client, buttons in (operator, expected.get(status, set())), (viewer, set()):
            page = shown(client, page_of("oneoffjob", key))
            assert {button for button in ("cancel", "retry", "discard") if f'value="{button}"' in page} == buttons, (
                status
            )


# --- enqueued


def asked(client: Client, **changes: str) -> str:
    """Enqueue a one-off. Returns the URL it redirects to, or else the errors."""
    response: Any = client.post(reverse(ADD), ASKED | {"run_after_0": "", "run_after_1": ""} | changes)
    if response.status_code == 302:
        return str(response.url)
    return " ".join(error for errors in response.context["errors"] for error in errors)


@pytest.mark.usefixtures("mail")
def test_it_can_be_enqueued(operator: Client) -> None:
    assert {"job_name", "args", "kwargs", "priority"} <= Page(shown(operator, reverse(ADD))).fields.keys()
    assert asked(operator) == list_of("oneoffjob")
    row = one_offs().get()
    assert (row.job_name, row.args, row.kwargs, row.priority, row.max_attempts) == ("mail", [1], {}, 5, 5)
    assert (row.status, row.run_after) == ("waiting", row.created_at)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.is_addition()) == (str(row.pk), True)
    assert [report.value for report in ticked()] == [1]
    assert (row.requested_by, last_run("mail").trigger, last_run("mail").requested_by) == (
        "operator",
        "manual",
        "operator",
    )


@pytest.mark.usefixtures("mail")
def test_for_later_too(operator: Client) -> None:
    asked(operator, run_after_0="2040-01-02", run_after_1="03:04:05", args="", kwargs='{"number": 2}')
    row = one_offs().get()
    assert (row.args, row.kwargs) == ([], {"number": 2})
    assert f"{row.run_after:%F %T %Z}" == "2040-01-02 03:04:05 UTC"


COMPLAINTS = [
    ({"job_name": "unknown"}, "not one of the available choices"),
    ({"args": "1"}, "Enter a list"),
    ({"args": "[1"}, "valid JSON"),
    ({"args": '{"number": 1}'}, "Enter a list"),
    ({"kwargs": "[]"}, "Enter names and values"),
    ({"kwargs": "[1]"}, "Enter names and values"),
    ({"args": "[" * 32 + "]" * 32}, "nested deeper than 30 levels"),
    ({"args": '["\\u0000"]'}, "NUL"),
    ({"priority": "101"}, "Invalid priority 101"),
    ({"queue_name": ""}, "required"),
    ({"args": "[]"}, "The job does not accept these arguments: missing a required argument: 'number'."),
    ({"args": "[1, 2]"}, "The job does not accept these arguments: too many positional arguments."),
    ({"kwargs": '{"number": 2}'}, "The job does not accept these arguments: multiple values for argument 'number'."),
    ({"kwargs": '{"<b>": 2}'}, "The job does not accept these arguments: got an unexpected keyword argument '<b>'."),
]


@pytest.mark.slow
@pytest.mark.usefixtures("mail")
def test_what_cannot_be_enqueued_is_explained(operator: Client) -> None:
    for changes, complaint in COMPLAINTS:
        assert complaint in asked(operator, **changes), changes
    assert not one_offs().exists()
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("mail")
def test_what_was_typed_in_comes_back_as_text(operator: Client) -> None:
    sent = ASKED | {"args": '["<script>alert(1)</script>"', "kwargs": '{"<script>alert(2)</script>": 1}'}
    page = operator.post(reverse(ADD), sent).content.decode()
    assert "<script>alert(" not in page
    assert "&lt;script&gt;alert(1)" in page


# --- cancelled and retried


def test_those_that_wait_can_be_cancelled(operator: Client, one_of_each: dict[str, int]) -> None:
    answers = act(operator, "oneoffjob", "cancel", *one_of_each.values())
    assert answers == ["1 one-off was cancelled.", "4 were left alone, because they have begun or ended."]
    assert statuses() == {key: status for status, key in one_of_each.items()} | {one_of_each["waiting"]: "cancelled"}
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.get_change_message()) == (str(one_of_each["waiting"]), "Cancelled.")


def test_those_that_failed_or_were_cancelled_can_be_run_again(operator: Client, one_of_each: dict[str, int]) -> None:
    answers = act(operator, "oneoffjob", "retry", *one_of_each.values())
    assert answers == [
        "2 one-offs will be retried as soon as a worker is free.",
        "3 were left alone, because they are waiting, in progress or done.",
    ]
    again = {one_of_each[status]: "waiting" for status in ("failed", "cancelled")}
    assert statuses() == {key: status for status, key in one_of_each.items()} | again
    assert {int(entry.object_id or 0): entry.get_change_message() for entry in LogEntry.objects.all()} == dict.fromkeys(
        again, "Requested a retry."
    )
    assert {row.pk for row in one_offs().filter(requested_by="operator")} == again.keys()
    ticked()
    assert {statuses()[key] for key in again} == {"done"}
    assert set(runs().filter(requested_by="operator").values_list("trigger", flat=True)) == {"manual"}
    assert runs().filter(requested_by="operator").count() == 2


def test_who_requested_it_is_shown(operator: Client, one_of_each: dict[str, int]) -> None:
    page = page_of("oneoffjob", one_of_each["failed"])
    assert '<div class="readonly">operator</div>' not in shown(operator, page)
    act(operator, "oneoffjob", "retry", one_of_each["failed"])
    assert '<div class="readonly">operator</div>' in shown(operator, page)


def test_from_its_page_it_leads_back_there(operator: Client, one_of_each: dict[str, int]) -> None:
    for status, action in ("waiting", "cancel"), ("failed", "retry"):
        key = one_of_each[status]
        page = Page(shown(operator, page_of("oneoffjob", key)))
        sent = {name: page.fields[name] for name in ("_selected_action", "back")}
        response = operator.post(list_of("oneoffjob"), sent | {"action": action})
        assert (response.status_code, response.headers["Location"]) == (302, page_of("oneoffjob", key))
        assert statuses()[key] != status


@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_to_choose_all_of_none_is_to_choose_none(operator: Client, one_of_each: dict[str, int], action: str) -> None:
    before = statuses()
    response = operator.post(list_of("oneoffjob"), {"action": action, "select_across": "1", "index": "0"}, follow=True)
    assert response.status_code == 200
    assert statuses() == before
    assert not LogEntry.objects.exists()


# --- deleted


def discarded(client: Client, page: str) -> list[str]:
    """Confirm what this page asks. Returns the messages."""
    fields = {name: values for name, values in Page(page).fields.items() if name != "q"}
    return messages_of(client.post(list_of("oneoffjob"), fields, follow=True))


def ask_to_discard(client: Client, *keys: object, **more: Any) -> str:
    sent = {"action": "discard", "_selected_action": [str(key) for key in keys]} | more
    response = client.post(list_of("oneoffjob"), sent)
    assert response.status_code == 200
    return response.content.decode()


def test_those_that_ended_can_be_deleted(operator: Client, one_of_each: dict[str, int]) -> None:
    page = ask_to_discard(operator, *one_of_each.values())
    assert page.count("has not ended, so you cannot delete it") == 2
    assert statuses() == {key: status for status, key in one_of_each.items()}
    assert discarded(operator, page) == ["3 one-offs were deleted."]
    assert set(statuses().values()) == {"waiting", "in_progress"}
    gone = {str(one_of_each[status]) for status in ("done", "failed", "cancelled")}
    assert {entry.object_id for entry in LogEntry.objects.all() if entry.is_deletion()} == gone
    assert LogEntry.objects.count() == 3


def test_the_others_not_even_if_a_request_names_them(operator: Client, one_of_each: dict[str, int]) -> None:
    answers = act(operator, "oneoffjob", "discard", *one_of_each.values(), confirmed="yes")
    assert answers == [
        "3 one-offs were deleted.",
        "2 were left alone, because they have not ended, or have changed meanwhile.",
    ]
    assert set(statuses().values()) == {"waiting", "in_progress"}


@pytest.mark.parametrize("then", ["waiting", "failed"])
def test_one_that_was_retried_meanwhile_stays(operator: Client, one_of_each: dict[str, int], then: str) -> None:
    """Even if it has failed again by then."""
    key = one_of_each["failed"]
    page = ask_to_discard(operator, key)
    one_offs().filter(pk=key).retry()
    one_offs().filter(pk=key).update(status=then)
    assert discarded(operator, page) == ["1 was left alone, because it has not ended, or has changed meanwhile."]
    assert statuses()[key] == then
    assert not LogEntry.objects.exists()


def test_one_that_is_retried_between_the_reading_and_the_delete_stays(
    operator: Client, one_of_each: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = one_of_each["failed"]
    discard = OneOffJobQuerySet.discard

    def retried_first(rows: OneOffJobQuerySet) -> int:
        one_offs().filter(pk=key).retry()
        return discard(rows)

    monkeypatch.setattr(OneOffJobQuerySet, "discard", retried_first)
    act(operator, "oneoffjob", "discard", key, confirmed="yes")
    assert statuses()[key] == "waiting"


def test_deleting_compares_the_status_in_the_statement(one_of_each: dict[str, int]) -> None:
    assert one_offs().discard() == 3
    assert set(statuses().values()) == {"waiting", "in_progress"}


def test_from_its_page_it_is_deleted_after_a_question(operator: Client, mail: Any) -> None:
    row = mail.enqueue(1)
    ticked()
    fields = Page(shown(operator, page_of("oneoffjob", row.pk))).fields
    sent = {name: fields[name][0] for name in ("back", "version")}
    page = ask_to_discard(operator, row.pk, **sent)
    assert discarded(operator, page) == ["1 one-off was deleted."]
    assert not one_offs().exists()
    assert runs().filter(job_name="mail").exists()
    shown(operator, page_of("jobrun", runs().get().pk))


def test_one_that_changed_since_its_page_was_opened_is_left_alone(operator: Client, mail: Any) -> None:
    row = mail.enqueue(1)
    ticked()
    version = str(one_offs().get().version)
    one_offs().update(version=F("version") + 2)
    page = ask_to_discard(operator, row.pk, version=version)
    assert discarded(operator, page) == ["1 was left alone, because it has not ended, or has changed meanwhile."]


def test_to_choose_none_deletes_none(operator: Client, one_of_each: dict[str, int]) -> None:
    act(operator, "oneoffjob", "discard", confirmed="yes")
    page = ask_to_discard(operator, one_of_each["waiting"])
    assert "singlejob-delete" not in page
    assert len(statuses()) == 5


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_the_button_works_where_numbers_have_separators(operator: Client, mail: Any) -> None:
    row = mail.enqueue(1)
    one_offs().filter(pk=row.pk).update(id=1_234_567, version=4_321)
    page = Page(shown(operator, page_of("oneoffjob", 1_234_567)))
    sent = {name: page.fields[name] for name in ("_selected_action", "back", "version")}
    operator.post(list_of("oneoffjob"), sent | {"action": "cancel"})
    assert one_offs().get(pk=1_234_567).status == "cancelled"


def test_one_that_has_failed_again_since_it_was_seen_is_left_alone(operator: Client, mail: Any) -> None:
    row = mail.enqueue(1)
    one_offs().filter(pk=row.pk).update(status="failed")
    page = Page(shown(operator, page_of("oneoffjob", row.pk)))
    one_offs().filter(pk=row.pk).update(version=F("version") + 3)
    sent = {name: page.fields[name] for name in ("_selected_action", "back", "version")}
    answers = messages_of(operator.post(list_of("oneoffjob"), sent | {"action": "retry"}, follow=True))
    assert answers == ["1 was left alone, because it is waiting, in progress or done."]
    assert one_offs().get().status == "failed"


def test_all_at_once_is_refused(operator: Client, mail: Any) -> None:
    """It would change rows that are not on the page."""
    rows = [mail.enqueue(number) for number in range(3)]
    answers = act(operator, "oneoffjob", "cancel", rows[0].pk, select_across="1")
    assert answers == ["Nothing was done. Select the rows page by page."]
    assert {row.status for row in one_offs().all()} == {"waiting"}


@pytest.mark.parametrize("args", ['["\\ud800"]', "[" * 100_000, f"[{'9' * 5_000}]", '["a'])
@pytest.mark.usefixtures("mail")
def test_strange_arguments_are_refused(operator: Client, args: str) -> None:
    assert asked(operator, args=args)
    assert not one_offs().exists()


HOSTILE: dict[str, list[Any]] = {
    "priority": ["9" * 5000, "99999999999", "-1e9", "NaN", "\0", "1.5", "", "101"],
    "run_after_0": ["0001-01-01", "9999-12-31", "\0", "0" * 10_000, "999999-01-01", "-1"],
    "run_after_1": ["\0", "25:00", "1" * 10_000],
    "queue_name": ["\0", "a\0b", "x" * 201, " "],
    "job_name": ["\0", "x" * 10_000, "", "unknown", b"\xed\xa0\x80"],
}
JSON_VALUES: list[Any] = [
    '"' + "x" * 1_000_000 + '"',
    '"' + "x" * 10_000_000 + '"',
    '"' + "\u00e9" * 200_000 + '"',
    "[" + "1," * 400_000 + "1]",
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "[" * 900 + "]" * 900,
    "[" * 31 + "]" * 31,
    '{"a":' * 100_000,
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 5000,
    '"\\ud800"',
    '"\\u0000"',
    '{"\\ud800": 1}',
    '{"\\u0000": 1}',
    '[{"a": [{"\\udfff": 1}]}]',
    "\0",
    b"\xed\xa0\x80",
]
NAMES = ["\\ud800", "\\u0000", "a\\udfff", "\\u0000" * 10, "x" * 1_000_000]
HOSTILE["args"] = [b"[%b]" % given if isinstance(given, bytes) else f"[{given}]" for given in JSON_VALUES]
HOSTILE["kwargs"] = [
    *(b'{"a": %b}' % given if isinstance(given, bytes) else f'{{"a": {given}}}' for given in JSON_VALUES),
    *(f'{{"{name}": 1}}' for name in NAMES),
]
TYPED = [(field, number) for field, values in HOSTILE.items() for number in range(len(values))]


@pytest.mark.slow
@pytest.mark.parametrize(("field", "number"), TYPED, ids=str)
@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=None)
def test_whatever_is_typed_is_answered_with_a_form(operator: Client, field: str, number: int) -> None:
    singleton_job("mail")(lambda *args, **kwargs: None)
    empty = {"run_after_0": "", "run_after_1": ""}
    other = {"run_after_0": {"run_after_1": "12:00"}, "run_after_1": {"run_after_0": "2030-01-01"}}.get(field, {})
    response: Any = operator.post(reverse(ADD), ASKED | empty | other | {field: HOSTILE[field][number]})
    assert response.status_code == 200
    complaints = [str(error) for errors in response.context["errors"] for error in errors]
    assert complaints
    assert all(len(complaint) < 20_000 for complaint in complaints)
    assert not one_offs().exists()


@pytest.mark.usefixtures("mail")
def test_arguments_that_are_too_long_are_a_complaint(operator: Client) -> None:
    complaint = "the arguments together have more than 1,000,000 characters as JSON"
    assert complaint in asked(operator, args=f'["{"x" * 600_000}"]', kwargs=f'{{"a": "{"x" * 400_000}"}}')


#: JSON as somebody may have written it into a row, and what the list shows of it.
BY_HAND = [
    ("[]", '{"\\ud800": 1}', r"&quot;\ud800&quot;=1"),
    ("[]", '{"a": {"b": [{"\\udfff": 1}]}}', r"a={&quot;b&quot;: [{&quot;\udfff&quot;: 1}]}"),
    ('["\\ud800"]', "{}", r"&quot;\ud800&quot;"),
    ("[]", '{"": 1}', "&quot;&quot;=1"),
    ("[]", '{"a b": 1}', "&quot;a b&quot;=1"),
    (f"[{'9' * 5000}]", "{}", "[999"),
    (f'["{"x" * 3_000_000}"]', "{}", "[&quot;xxx"),
    ("[]", f'{{"{"k" * 3_000_000}": 1}}', "{&quot;kkk"),
    (f"[{'1, ' * 800_000}1]", "{}", "[1, 1, "),
]
DEEP = [(f"{'[' * 5_000}{']' * 5_000}", "{}", "[[[["), ("[]", '{"\\u0000": 1}', r"&quot;\u0000&quot;=1")]


def write(**columns: str) -> None:
    """What somebody writes into the table, past the model."""
    table = one_offs().model._meta.db_table
    kind = "::jsonb" if connection.vendor == "postgresql" else ""
    changes = ", ".join(f"{name} = %s{kind}" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {changes}", list(columns.values()))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BY_HAND) + len(DEEP)))
def test_strange_json_that_was_written_by_hand_is_shown_in_part(operator: Client, mail: Any, number: int) -> None:
    row = mail.enqueue(1)
    args, kwargs, expected = [*BY_HAND, *DEEP][number]
    try:
        with transaction.atomic():
            write(args=args, kwargs=kwargs)
    except Error:
        pytest.skip("the database refuses it")
    for result in [None, args]:
        if result:
            one_offs().update(status="done")
            write(result=result)
        for url in (
            list_of("oneoffjob"),
            page_of("oneoffjob", row.pk),
            page_of("jobstatus", "mail"),
            list_of("overview"),
        ):
            page = shown(operator, url)
            assert len(page) < 100_000
            if "oneoffjob" in url:
                assert expected in page


def test_the_long_columns_are_not_read(operator: Client, mail: Any) -> None:
    """Only their beginnings are."""
    row = mail.enqueue(1)
    with CaptureQueriesContext(connection) as queries:
        for url in list_of("oneoffjob"), page_of("oneoffjob", row.pk), page_of("jobstatus", "mail"):
            shown(operator, url)
    table = connection.ops.quote_name(one_offs().model._meta.db_table)
    for name in "args", "kwargs", "result", "traceback", "error", "errors", "worker_ids":
        column = f"{table}.{connection.ops.quote_name(name)}"
        for query in queries:
            selected = query["sql"].partition(" FROM ")[0]
            assert not re.search(rf"(SELECT|,) {re.escape(column)}(,|$)", selected), query["sql"]


def test_long_results_are_cut_and_short_ones_are_not(operator: Client, mail: Any) -> None:
    row = mail.enqueue(1)
    one_offs().update(status="done", result=["y" * 9_000, "\u00e9"], worker_ids="web-1:4\n" * 100)
    page = shown(operator, page_of("oneoffjob", row.pk))
    assert "y" * 9_000 + "&quot;, &quot;\u00e9&quot;]" in page
    one_offs().update(result=["y" * 20_000], error="e" * 30_000)
    page = shown(operator, page_of("oneoffjob", row.pk))
    assert "y" * 9_990 in page
    assert "y" * 10_000 not in page
    assert "e" * 10_000 not in page


@pytest.mark.parametrize(
    "written",
    [
        {"args": Value(None, JSONField())},
        {"args": "ab"},
        {"kwargs": [1]},
        {"run_after": datetime(9998, 12, 31, 23, 59, tzinfo=UTC)},
    ],
)
def test_what_was_written_by_hand_is_shown(operator: Client, mail: Any, written: dict[str, Any]) -> None:
    row = mail.enqueue(1)
    one_offs().update(**written)
    with timezone.override("Europe/Rome"):
        shown(operator, list_of("oneoffjob"))
        shown(operator, page_of("oneoffjob", row.pk))


# --- jobs and tasks, filters, and what went wrong in each attempt


@pytest.fixture
def of_all_kinds(fresh_process: None) -> dict[str, int]:
    """The keys of a job's one-offs and of a task's."""
    orders = {
        "mail": Order(job_name="mail", queue_name="slow", priority=5),
        "urgent": Order(job_name="mail", priority=100),
        "report": Order(job_name="shop:report_1", priority=-100),
        "task": Order(task_path="shop.tasks.mail", queue_name="slow"),
    }
    return {name: place(order, [], {}).pk for name, order in orders.items()}


def test_they_are_filtered_by_queue_priority_and_name(viewer: Client, of_all_kinds: dict[str, int]) -> None:
    found = {
        "?queue_name__exact=slow": {"mail", "task"},
        "?queue_name__exact=unknown": set(),
        "?priority=5": {"mail"},
        "?priority=0": {"task"},
        "?priority=-100": {"report"},
        "?priority=101": set(),
        "?priority=x": set(),
        "?priority=5.5": set(),
        "?name=mail": {"mail", "urgent"},
        "?name=shop.tasks.mail": {"task"},
        "?name=shop": set(),
        "?name=mail&queue_name__exact=slow&priority=5&status__exact=waiting": {"mail"},
    }
    keys = {query: {*listed(viewer, query)} for query in found}
    assert keys == {query: {of_all_kinds[name] for name in names} for query, names in found.items()}


def test_the_filters_offer_what_there_is(viewer: Client, of_all_kinds: dict[str, int]) -> None:
    links = Page(shown(viewer, list_of("oneoffjob"))).links
    assert [link for link in links if "priority=" in link] == [
        "?priority=100",
        "?priority=5",
        "?priority=0",
        "?priority=-100",
    ]
    assert [link for link in links if "queue_name__exact=" in link] == [
        "?queue_name__exact=default",
        "?queue_name__exact=slow",
    ]
    assert [link for link in links if "?name=" in link] == [
        "?name=mail",
        "?name=shop.tasks.mail",
        "?name=shop%3Areport_1",
    ]


def test_a_task_and_a_job_can_be_told_apart(viewer: Client, of_all_kinds: dict[str, int]) -> None:
    for name, kind in ("mail", "job"), ("task", "task"):
        page = shown(viewer, page_of("oneoffjob", of_all_kinds[name]))
        assert f'<span class="singlejob-note">{kind}</span>' in page
    page = shown(viewer, list_of("oneoffjob"))
    assert page.count('<span class="singlejob-note">job</span>') == 3
    assert page.count('<span class="singlejob-note">task</span>') == 1


def test_one_whose_worker_died_looks_dead(viewer: Client) -> None:
    begin("nightly")
    pages = list_of("oneoffjob"), page_of("oneoffjob")
    assert all('singlejob-busy">in progress' in shown(viewer, page) for page in pages)
    expire("nightly")
    for page in pages:
        assert 'singlejob-bad">stale' in shown(viewer, page)
        assert "its worker is dead" in shown(viewer, page)
        assert 'singlejob-busy">' not in shown(viewer, page)
    assert "</a> stale: " in shown(viewer, page_of("jobstatus", "nightly"))


def failing(*errors: Exception | None) -> Any:
    """A job whose runs raise these errors, one after the other."""
    left = iter(errors)

    def mail() -> None:
        if error := next(left):
            raise error

    return singleton_job("mail")(mail)


def test_the_error_of_each_attempt_stays(operator: Client) -> None:
    row = failing(ValueError("first <b>"), LookupError("second"), None).enqueue()
    ticked()
    page = shown(operator, page_of("oneoffjob", row.pk))
    assert "Errors of earlier attempts" not in page
    assert "ValueError: first &lt;b&gt;" in page
    assert "In your code: mail, line" in page
    act(operator, "oneoffjob", "retry", row.pk)
    ticked()
    page = shown(operator, page_of("oneoffjob", row.pk))
    places = [page.index(text) for text in ("LookupError: second", "Errors of earlier attempts", "ValueError: first")]
    assert places == sorted(places)
    act(operator, "oneoffjob", "retry", row.pk)
    ticked()
    page = shown(operator, page_of("oneoffjob", row.pk))
    assert one_offs().get().status == "done"
    assert "What went wrong" not in page
    earlier = page[page.index("Errors of earlier attempts") :]
    assert earlier.index("ValueError: first") < earlier.index("LookupError: second")


def test_errors_that_were_written_by_hand_are_shown_or_passed_over(viewer: Client, mail: Any) -> None:
    row = mail.enqueue(1)
    hostile = '{"error": "</script><b>"}\n{"traceback": "<b>"}'
    for text in "x", "[1]", '{"error": 1}', "{", "[" * 5000, hostile, "{}\n" * 99:
        one_offs().update(errors=text)
        assert "<b>" not in shown(viewer, page_of("oneoffjob", row.pk))
    assert "x" * 300 not in shown(viewer, page_of("oneoffjob", row.pk))


BIDI = "a\u202eb\u2066c"


@pytest.fixture
def deceiving(mail: Any) -> None:
    """One-offs with marks that change the direction of writing, wherever a program can put them."""
    texts = dict.fromkeys(("queue_name", "requested_by", "hostname", "error", "error_class", "traceback"), BIDI)
    for columns in {"job_name": "mail"}, {"task_path": "shop.mail", "backend": "default"}:
        for status in "waiting", "failed":
            row = place(Order(), [BIDI, [BIDI]], {"name": BIDI, BIDI: 1}, status="waiting", **columns)
            ended = {"finished_at": DBNow()} if status == "failed" else {}
            one_offs().filter(pk=row.pk).update(**texts, **ended, status=status, result={BIDI: [BIDI]}, origin=BIDI)


@pytest.mark.usefixtures("deceiving")
def test_marks_that_change_the_direction_of_writing_are_shown_as_what_they_are(admin_client: Client) -> None:
    pages = [page_of("oneoffjob", row.pk) for row in one_offs()]
    pages += [list_of("oneoffjob"), list_of("jobstatus"), reverse("admin:django_singlejob_overview_changelist")]
    for page in pages:
        text = admin_client.get(page).content.decode()
        assert [line for line in text.splitlines() if {"\u202e", "\u2066"} & set(line)] == [], page
    text = admin_client.get(pages[0]).content.decode()
    assert r"[&quot;a\u202eb\u2066c&quot;]" in text
    assert one_offs().first().args == [BIDI, [BIDI]]  # type: ignore[union-attr]


def test_a_task_that_waits_for_its_retry_shows_its_attempt_its_errors_and_its_time(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ConnectionError("down <b>")

    monkeypatch.setattr(django_tasks, "body", fail)
    django_tasks.delivered.enqueue()
    for _ in range(2):
        one_offs().update(run_after=DBNow())
        ticked()
    row = one_offs().get()
    in_list, page = shown(operator, list_of("oneoffjob")), shown(operator, page_of("oneoffjob", row.pk))
    for text in "waiting", "2 of 3", "down &lt;b&gt;", "in 1\N{NO-BREAK SPACE}min":
        assert text in in_list
        assert text in page
    assert "Errors of earlier attempts" in page
    act(operator, "oneoffjob", "cancel", row.pk)
    assert one_offs().get().status == "cancelled"
