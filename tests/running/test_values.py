from __future__ import annotations

import json
import re
import string
import sys
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, deque
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import django
import pytest
from django.utils.module_loading import import_string
from hypothesis import given, strategies

from django_singlejob.database import transactions
from django_singlejob.running.values import (
    DEPTH,
    JSON_LENGTH,
    Unstorable,
    as_stored,
    comes_back,
    stored_arguments,
    stored_result,
)

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.django_db


class Number(IntEnum):
    ONE = 1


class Word(StrEnum):
    HELLO = "hello"


class Point(NamedTuple):
    x: int
    y: int


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


NORMALIZE = import_string(f"{'django.utils.json' if django.VERSION >= (6, 0) else 'django_tasks.utils'}.normalize_json")
#: Values that Django's own tasks accept, and what comes back.
NORMALIZED: list[tuple[Any, Any]] = [
    (b"h\xc3\xa9", "h\u00e9"),
    (bytearray(b"ab"), [97, 98]),
    (range(3), [0, 1, 2]),
    ((1, (2,)), [1, [2]]),
    (deque([1, 2]), [1, 2]),
    (UserList([b"a"]), ["a"]),
    (Point(1, 2), [1, 2]),
    ({1: "a", 2.5: "b", None: "c", b"e": "e"}, {"1": "a", "2.5": "b", "null": "c", "e": "e"}),
    ({True: 1, False: 0}, {"true": 1, "false": 0}),
    ({Number.ONE: Word.HELLO}, {"1": "hello"}),
    (Counter("aab"), {"a": 2, "b": 1}),
    (OrderedDict(a=(1,)), {"a": [1]}),
    (UserDict({1: 2}), {"1": 2}),
    (MappingProxyType({"a": range(1)}), {"a": [0]}),
    (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
    (2**63, 2**63),
    (-(2**70), -(2**70)),
    ([{2**64: 2**64}], [{str(2**64): 2**64}]),
    (10**4000 + 1, 10**4000 + 1),
]


@pytest.mark.parametrize(("value", "stored"), NORMALIZED, ids=lambda each: repr(each)[:30])
def test_what_django_makes_json_of_is_stored(value: Any, stored: Any) -> None:
    assert as_stored(value, "it") == stored
    assert json.loads(json.dumps(as_stored(value, "it"))) == stored


scalars = (
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.text(string.printable)
    | strategies.text(string.ascii_letters).map(str.encode)
)
values = strategies.recursive(
    scalars,
    lambda inner: (
        strategies.lists(inner)
        | strategies.lists(inner).map(tuple)
        | strategies.dictionaries(scalars, inner)
        | strategies.builds(range, strategies.integers(0, 5))
    ),
    max_leaves=10,
)


@given(values)
def test_it_is_stored_as_django_stores_it(value: Any) -> None:
    normalized = json.dumps(NORMALIZE(value))
    try:
        assert as_stored(value, "it") == json.loads(normalized)
    except Unstorable as error:
        assert "two keys that are" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (float("nan"), "not JSON compliant"),
        ({float("inf"): 1}, "not JSON compliant"),
        ("a\0", "a character that databases do not store: NUL, or half a surrogate pair"),
        (b"\0", "a character that databases do not store"),
        (["\ud800"], "a character that databases do not store"),
        ([{"a": [{"\0": 1}]}], "a character that databases do not store"),
        (b"\xff", "can't decode byte 0xff"),
        ({b"\xff": 1}, "can't decode byte 0xff"),
        ({(1, 2): 3}, "keys must be str, int, float, bool or None, not tuple"),
        ({1: "a", "1": "b"}, "two keys that are the same in JSON: 1, 1"),
        ({"a": {1, 2}}, "Object of type set is not JSON serializable"),
        ({1: [object]}, "Object of type type is not JSON serializable"),
        (nested(DEPTH + 1), "nested deeper than 30 levels"),
        (UserString("a"), "nested deeper than 30 levels"),
        (range(1_000_001), "more than 1,000,000 items"),
        ({"a": range(10**30)}, "too large"),
        (10**5000, "Exceeds the limit"),
    ],
    ids=lambda each: ascii(each)[:30] if sys.getsizeof(each) < 500 else "long",
)
def test_what_cannot_be_stored_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(Unstorable, match=f"^it cannot be stored as JSON: .*{re.escape(complaint)}"):
        as_stored(value, "it")


def test_mysql_stores_no_more_than_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "keeps_long_integers", lambda alias: False)
    assert as_stored([2**63 - 1, -(2**63)], "it") == [2**63 - 1, -(2**63)]
    with pytest.raises(Unstorable, match="an integer of more than 64 bits, of which MySQL keeps"):
        as_stored([2**63], "it")


@pytest.mark.parametrize(
    ("vendor", "is_mariadb", "keeps"), [("postgresql", None, True), ("mysql", True, True), ("mysql", False, False)]
)
def test_which_databases_keep_long_integers(
    vendor: str, is_mariadb: bool | None, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Connection:
        mysql_is_mariadb = is_mariadb

    Connection.vendor = vendor  # type: ignore[attr-defined]
    monkeypatch.setattr(transactions, "connections", {"default": Connection()})
    assert transactions.keeps_long_integers("default") is keeps


def test_a_result_has_a_length() -> None:
    longest = "x" * (JSON_LENGTH - 2)
    assert stored_result(longest) == longest
    with pytest.raises(Unstorable, match="the result cannot be stored as JSON: it has more than 1,000,000 characters"):
        stored_result(longest + "x")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (["x" * 500_000, "x" * 499_984], {}),
        (["x" * 500_000], {"a": "x" * 499_983}),
        ([], {"x" * 999_987: 1}),
        (["\u00e9" * 166_665], {}),
        ([[1] * 333_330], {}),
    ],
    ids=["args", "both", "name", "escaped", "items"],
)
def test_the_arguments_together_have_the_same_length(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert len(json.dumps([args, kwargs])) in range(JSON_LENGTH - 5, JSON_LENGTH + 1)
    assert stored_arguments(args, kwargs) == (args, kwargs)
    assert comes_back([args, kwargs])
    for more in ([*args, 10**6], kwargs), (args, {**kwargs, "more": 1}):
        with pytest.raises(Unstorable, match="the arguments together have more than 1,000,000 characters as JSON"):
            stored_arguments(*more)
        assert not comes_back(list(more))


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a", (1, [2, (3,)]), {"a": (1,)}, 2**64, []], ids=repr)
def test_what_comes_back_as_it_was_or_as_a_list(value: Any) -> None:
    assert comes_back(value)


@pytest.mark.parametrize(
    "value", [b"a", range(3), {1: 2}, {"a": b"b"}, float("nan"), object, deque([1]), range(10**30)], ids=repr
)
def test_what_does_not(value: Any) -> None:
    assert not comes_back(value)


def test_nor_does_what_holds_itself() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert not comes_back(circle)
