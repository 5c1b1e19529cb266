"""How a one-off stores Python values: as the JSON that Django's own tasks make of them, the same on every database."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from django_singlejob import database

# MariaDB accepts 31 levels, and the list of the arguments is one of them.
DEPTH = 30
# Database servers refuse a statement that is too long, and MySQL then closes the connection.
RESULT_LENGTH = 1_000_000
MOST_ITEMS = 1_000_000
_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**63 - 1


class Unstorable(ValueError):
    """A value cannot be stored. The message says which part of it, and why."""


def stored_result(value: object) -> Any:
    """The return value of a job as it is stored. Raises ``Unstorable``."""
    stored = as_stored(value, "the result")
    if len(json.dumps(stored)) > RESULT_LENGTH:
        raise Unstorable(f"the result has more than {RESULT_LENGTH:,} characters as JSON")
    return stored


def comes_back(value: object) -> bool:
    """Whether the stored value comes back unchanged, except that tuples come back as lists."""
    if not _is_plain(value):
        return False
    try:
        as_stored(value, "")
    except Unstorable:
        return False
    return True


def _is_plain(value: object, depth: int = 1) -> bool:
    """Whether the value consists of JSON's own types, as deep as they can be stored."""
    match value:
        case list() | tuple():
            return depth <= DEPTH and all(_is_plain(item, depth + 1) for item in value)
        case dict():
            return depth <= DEPTH and all(isinstance(key, str) and _is_plain(value[key], depth + 1) for key in value)
    return isinstance(value, str | int | float | None)


def as_stored(value: object, path: str, depth: int = 1) -> Any:
    """The value in JSON's own types, like Django's ``normalize_json``: bytes become text, mappings objects, and other
    sequences lists. Raises ``Unstorable``, which names the part that some database cannot store."""
    match value:
        case bytes():
            return _checked_text(_decoded(value, path), path)
        case str():
            return _checked_text(value, path)
        case Mapping() | Sequence() if depth > DEPTH:
            raise Unstorable(f"{path} is nested deeper than {DEPTH} levels")
        case Mapping() | Sequence() if _is_too_long(value):
            raise Unstorable(f"{path} has more than {MOST_ITEMS:,} items")
        case Mapping():
            return _object(value, path, depth)
        case Sequence():
            return [as_stored(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
    return _checked_scalar(value, path)


def _is_too_long(value: Mapping[object, object] | Sequence[object]) -> bool:
    # The length is known before a range, or a page of rows, is read.
    try:
        return len(value) > MOST_ITEMS
    except OverflowError:
        return True


def _object(value: Mapping[object, object], path: str, depth: int) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for key, item in value.items():
        name = _name(key, path)
        if name in stored:
            raise Unstorable(f"{path} has two keys that are {name!r} in JSON")
        stored[name] = as_stored(item, f"{path}[{key!r}]", depth + 1)
    return stored


def _name(key: object, path: str) -> str:
    """The key as text, since JSON has no other keys."""
    if isinstance(key, str | bytes | int | float | None):
        stored = as_stored(key, f"a key of {path}")
        return stored if isinstance(stored, str) else json.dumps(stored)
    raise Unstorable(f"{path} has the key {key!r:.100}, which JSON does not support")


def _decoded(value: bytes, path: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unstorable(f"{path} is bytes that are not UTF-8") from None


def _checked_text(value: str, path: str) -> str:
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise Unstorable(f"{path} has a character that databases do not store: NUL, or half a surrogate pair")
    return value


def _checked_scalar(value: object, path: str) -> object:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unstorable(f"{path} is {value}, which JSON does not support")
    elif isinstance(value, int):
        _check_integer(value, path)
    elif value is not None:
        raise Unstorable(f"{path} is {value!r:.100}, of the type {type(value).__name__}, which JSON does not support")
    return value


def _check_integer(value: int, path: str) -> None:
    if _LEAST_INTEGER <= value <= _GREATEST_INTEGER:
        return
    try:
        json.dumps(value)
    except ValueError:
        raise Unstorable(f"{path} is an integer with more digits than Python converts to text") from None
    if not database.keeps_long_integers(database.alias()):
        raise Unstorable(f"{path} is an integer of more than 64 bits, of which MySQL keeps only the first digits")
