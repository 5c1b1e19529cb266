"""What may be enqueued, and how it comes back."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import Error, connection, transaction

from django_singlejob import singleton_job
from django_singlejob.exceptions import InvalidOrder
from django_singlejob.models.one_offs import one_offs
from tests.contract.acts import HOUR, MINUTE, SECOND, ticked
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob.models import OneOffJob

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db(transaction=True, available_apps=APPS)]


def mailing(body: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """A job that returns its arguments."""
    return singleton_job("mail", **settings)(body or (lambda *args, **kwargs: [args, kwargs]))


def the_one_off() -> OneOffJob:
    return one_offs().get()


# --- enqueueing


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([object()], "argument 0 .* type object"),
        ([1, [{"a": {1, 2}}]], "argument 1 .* type set"),
        (["\0"], "argument 0 .* NUL"),
        ([datetime(2026, 1, 1, tzinfo=UTC)], "argument 0 .* type datetime"),
        ([nested(31)], "argument 0 .* nested deeper than 30 levels"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(args: list[Any], message: str) -> None:
    job = mailing()
    with pytest.raises(InvalidOrder, match=message):
        job.enqueue(*args)
    assert not one_offs().exists()


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 101},
        {"priority": 0.5},
        {"priority": True},
        {"queue_name": "q" * 201},
        {"run_after": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"run_after": MINUTE},
        {"queue_name": "a\0"},
        {"run_after": datetime(999, 12, 31, tzinfo=UTC)},
        {"run_after": datetime.max.replace(tzinfo=UTC)},
        {"run_after": datetime(1, 1, 1, tzinfo=timezone(HOUR))},
        {"run_after": datetime(1000, 1, 1, tzinfo=timezone(14 * HOUR))},  # in UTC, it is in the year 999
    ],
    ids=ascii,
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOrder):
        mailing().using(**options)


@pytest.mark.parametrize("offset", [16 * HOUR, -23 * HOUR, HOUR + SECOND, -timedelta(microseconds=1)], ids=str)
def test_run_after_may_have_any_offset(offset: timedelta) -> None:
    """PostgreSQL refuses one of 16 hours, and one of less than a second."""
    instant = datetime(2040, 1, 2, 3, 4, 5, tzinfo=timezone(offset))
    mailing().using(run_after=instant).enqueue()
    assert the_one_off().run_after == instant


VALUES: list[Any] = [
    None,
    True,
    -(2**63),
    1.5,
    "",
    "h\u00e9 \U0001f600 'quoted' \\\\",
    [],
    {},
    [[{"a": [None, 0.1]}]],
    HTTPStatus.OK,
    nested(30),
    2**63,
    -(2**64),
    10**4000 + 1,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_what_is_json_comes_back_as_it_was(value: Any) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**63 and not getattr(connection, "mysql_is_mariadb", True):
        pytest.skip("MySQL keeps no long integers")
    mailing(lambda given: given).enqueue(value)
    ticked()
    assert (the_one_off().args, the_one_off().result) == ([value], value)


@pytest.mark.parametrize("name", ["\0", "\ud800", "a\udfff"], ids=ascii)
def test_names_are_refused_as_values_are(name: str) -> None:
    job = mailing()
    for args, kwargs in ([], {name: 1}), ([{name: 1}], {}), ([], {"a": [{"b": {name: 1}}]}):
        with pytest.raises(InvalidOrder, match="NUL, or half a surrogate pair"):
            job.enqueue(*args, **kwargs)
    assert not one_offs().exists()


@pytest.mark.parametrize(
    "name", [" ", "", "mail ", " mail", "ma\x1bil", "\ufeffmail", "a\u202eb", "*", "a,b", 7], ids=ascii
)
def test_a_queue_has_a_name_that_people_can_see_and_workers_can_name(name: Any) -> None:
    with pytest.raises(InvalidOrder, match="Invalid queue name"):
        mailing().using(queue_name=name)


@pytest.mark.parametrize("calls", [None, 5, True, len], ids=repr)
def test_calls_that_are_none_are_refused(calls: Any) -> None:
    with pytest.raises(InvalidOrder, match="Make it a list of pairs"):
        mailing().enqueue_many(calls)


def test_arguments_that_are_too_long_are_refused() -> None:
    job = mailing()
    for args, kwargs in (["x" * 1_000_000], {}), (["x" * 500_000], {"a": "x" * 500_000}), ([], {"x" * 1_000_000: 1}):
        with pytest.raises(InvalidOrder) as refusal:
            job.enqueue(*args, **kwargs)
        assert str(refusal.value).endswith(" more than 1,000,000 characters as JSON.")
    assert not one_offs().exists()


def test_the_longest_arguments_come_back_on_every_database() -> None:
    longest = "x" * 999_990
    mailing(len).enqueue(longest)
    ticked()
    assert (the_one_off().args, the_one_off().result) == ([longest], 999_990)


#: JSON that nobody can enqueue, but that somebody may have written into a row.
BY_HAND = [
    ("[]", '{"\\ud800": 1}'),
    ("[]", '{"\\u0000": 1}'),
    ("[]", '{"a": {"b": {"\\udfff": 1}}}'),
    ('["\\ud800", {"\\udc80": 1}]', "{}"),
    ('"ab"', "{}"),
    ("[]", "[1]"),
    ("null", "null"),
    (f'["{"x" * 3_000_000}"]', "{}"),
]


@pytest.mark.parametrize("number", range(len(BY_HAND)))
@pytest.mark.parametrize("accepts", [True, False])
def test_a_worker_outlives_what_was_written_by_hand(
    number: int, accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-xdist cannot send a log that contains half a surrogate pair.
    monkeypatch.setattr(logging.getLogger("django_singlejob"), "disabled", True)
    job = mailing() if accepts else mailing(lambda number: number)
    strange, other = job.enqueue(1), job.enqueue(2)
    if not written(strange, *BY_HAND[number]):
        pytest.skip("the database refuses it")
    for _ in range(4):
        ticked()
    assert one_offs().get(pk=other.pk).status == "done"
    assert one_offs().defer("args", "kwargs", "result").get(pk=strange.pk).status in ("done", "failed")


def written(row: OneOffJob, args: str, kwargs: str) -> bool:
    """Write these texts past the model. Returns ``False`` if the database refuses them."""
    kind = "::jsonb" if connection.vendor == "postgresql" else ""
    sql = f"UPDATE {row._meta.db_table} SET args = %s{kind}, kwargs = %s{kind}, priority = 1 WHERE id = %s"
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql, [args, kwargs, row.pk])
    except Error:
        return False
    return True


def test_it_can_be_asked_for_in_a_coroutine() -> None:
    row = async_to_sync(mailing().aenqueue)(1)
    assert row.args == [1]


# --- many at once


def test_many_are_enqueued_in_their_order_and_each_is_run() -> None:
    rows = mailing().enqueue_many([((1,), {}), ([], {"two": 2}), ((b"3", {"four": 4}), {"five": (6,)})])
    expected = [([1], {}), ([], {"two": 2}), (["3", {"four": 4}], {"five": [6]})]
    assert [(row.args, row.kwargs, row.status) for row in rows] == [(*call, "waiting") for call in expected]
    ticked()
    results = dict(one_offs().values_list("pk", "result"))
    assert [results[row.pk] for row in rows] == [list(call) for call in expected]


def test_many_may_have_options_and_come_from_a_generator() -> None:
    order = mailing().using(priority=5, queue_name="mail", run_after=datetime(2030, 1, 1, tzinfo=UTC))
    rows = order.enqueue_many(((number,), {}) for number in range(3))
    assert [row.args for row in rows] == [[0], [1], [2]]
    assert {(row.priority, row.queue_name, row.run_after) for row in one_offs()} == {(5, "mail", order.run_after)}


def test_none_at_all_are_enqueued_without_a_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert mailing().enqueue_many([]) == []


def test_many_can_be_asked_for_in_a_coroutine() -> None:
    (row,) = async_to_sync(mailing().aenqueue_many)([((1,), {"two": 2})])
    assert (row.args, row.kwargs) == ([1], {"two": 2})


@pytest.mark.parametrize("is_committed", [True, False])
def test_many_are_part_of_the_callers_transaction(is_committed: bool) -> None:
    job = mailing()
    with transaction.atomic():
        job.enqueue_many([((1,), {}), ((2,), {})])
        transaction.set_rollback(not is_committed)
    assert one_offs().count() == 2 * is_committed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (((object(),), {}), r"of calls\[1\], argument 0 cannot be stored as JSON: .* type object"),
        (
            ((), {"at": [{1}]}),
            r"of calls\[1\], argument 'at' cannot be stored as JSON: .* type set",
        ),
        (
            (("x" * 1_000_000,), {}),
            r"of calls\[1\], argument 0 .* more than 1,000,000 characters",
        ),
        (((), {"\0": 1}), r"of calls\[1\], argument .* a character"),
        (4711, r"calls\[1\] is 4711\. Make it a pair"),
        (("mail", {}), r"calls\[1\] is \('mail', {}\)\. Make it a pair"),
        (((), {1: 2}), r"calls\[1\] is \(\(\), {1: 2}\)\. Make it a pair"),
        ({"a": 1}, r"calls\[1\] is {'a': 1}\. Make it a pair"),
    ],
    ids=["object", "set", "length", "name", "number", "text", "key", "dict"],
)
def test_one_call_that_cannot_be_is_named_and_none_is_enqueued(
    call: Any, message: str, django_assert_num_queries: Any
) -> None:
    job = mailing()
    with (
        django_assert_num_queries(0),
        pytest.raises(InvalidOrder, match=f"^The job 'mail' cannot be enqueued: {message}"),
    ):
        job.enqueue_many([((1,), {}), call, ((2,), {})])


# --- what the function does not take


def send(to: str, *, language: str = "en") -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ([], {}, "'mail' cannot be enqueued: missing a required argument: 'to'."),
        (["ada", "it"], {}, "'mail' cannot be enqueued: too many positional arguments."),
        (
            ["ada"],
            {"priority": 5},
            "'mail' cannot be enqueued: got an unexpected keyword argument 'priority'. priority is an option of",
        ),
        (["ada"], {"run_after": MINUTE}, "run_after is an option of using(): call using(run_after=...).enqueue(...)."),
    ],
    ids=str,
)
def test_what_the_function_does_not_take_is_refused(args: list[Any], kwargs: dict[str, Any], message: str) -> None:
    job = mailing(send)
    for order in job, job.using(priority=3):
        with pytest.raises(InvalidOrder) as refusal:
            order.enqueue(*args, **kwargs)
        assert message in str(refusal.value)
        with pytest.raises(InvalidOrder) as refusal:
            order.enqueue_many([(["ada"], {"language": "it"}), (args, kwargs)])
        assert message.removeprefix("'mail' cannot be enqueued: ") in str(refusal.value)
        assert "'mail' cannot be enqueued: of calls[1], " in str(refusal.value)
    assert not one_offs().exists()


def test_what_the_function_takes_may_have_the_name_of_an_option() -> None:
    mailing(lambda priority, **others: None).enqueue(priority="high", run_after="later")
    assert the_one_off().kwargs == {"priority": "high", "run_after": "later"}


def test_and_then_it_is_not_taken_for_one() -> None:
    with pytest.raises(InvalidOrder, match=r"got an unexpected keyword argument 'langauge'\.$"):
        mailing(lambda priority: None).enqueue(priority="high", langauge="it")
