"""How a one-off stores Python values: as the JSON that Django's own tasks make of them, the same on every database."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_singlejob.conf import quoted
from django_singlejob.database import transactions
from django_singlejob.jobs.names import is_storable

# MariaDB accepts 31 levels, and the list of the arguments is one of them.
DEPTH = 30
# Of the JSON of a one-off's arguments together, or of its result. Database servers refuse a statement that is too long,
# and MySQL then closes the connection.
JSON_LENGTH = 1_000_000


class Unstorable(ValueError):
    """A value cannot be stored. The message says which one, and why."""


def stored_arguments(args: Iterable[object], kwargs: Mapping[str, object]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a job as they are stored. Raises ``Unstorable``."""
    stored_args = [as_stored(value, f"argument {number}") for number, value in enumerate(args)]
    stored_kwargs: dict[str, Any] = {}
    for name, value in kwargs.items():
        is_simple = _is_simple(name) and _is_simple(value)
        stored_kwargs |= {name: value} if is_simple else as_stored({name: value}, f"argument {quoted(name)}")
    _refuse_longer(json.dumps([stored_args, stored_kwargs]), "the arguments together have")
    return stored_args, stored_kwargs


def stored_result(value: object) -> Any:
    """The return value of a job as it is stored. Raises ``Unstorable``."""
    return as_stored(value, "the result")


def stored_value(value: object) -> Any:
    """The return value as it is stored; ``None`` if it cannot be."""
    try:
        return stored_result(value)
    except Exception:  # reading a custom mapping may raise anything, and the run has already ended
        return None


def stored_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """The arguments of a run as a retry stores them; ``None`` if they would not come back unchanged."""
    call = [list(args), dict(kwargs)]
    return call if comes_back(call) else None


def comes_back(value: object) -> bool:
    """Whether the stored value comes back unchanged, except that tuples come back as lists."""
    try:
        as_stored(value, "")
    except Unstorable:
        return False
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    """Whether the value consists of JSON's own types."""
    match value:
        case list() | tuple():
            return all(map(_is_plain, value))
        case dict():
            return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return isinstance(value, str | int | float | None)


def as_stored(value: object, whose: str) -> Any:
    """The value in JSON's own types, like Django's ``normalize_json``: bytes become text, mappings objects, and other
    sequences lists. Raises ``Unstorable``, whose message begins with ``whose`` value it is."""
    if _is_simple(value):
        return value
    try:
        text = json.dumps(_normalized(value), allow_nan=False)
        _refuse_longer(text, "it has")
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise Unstorable(f"{whose} cannot be stored as JSON: {error}") from None


def _is_simple(value: object) -> bool:
    """Whether it comes back as it is, as most arguments do. Others are tried."""
    if type(value) is str:
        return len(value) < JSON_LENGTH // 10 and is_storable(value)
    return value is None or type(value) is bool or (type(value) is int and abs(value) < 2**31)


def _normalized(value: object, depth: int = 1) -> object:
    match value:
        case str() | bytes():
            return _text(value)
        case Mapping() | Sequence():
            if depth > DEPTH:
                raise ValueError(f"it is nested deeper than {DEPTH} levels")
            if len(value) > JSON_LENGTH:
                raise ValueError(f"it has more than {JSON_LENGTH:,} items")
    match value:
        case Mapping():
            names = (_text(key) if isinstance(key, str | bytes) else key for key in value)
            return dict(zip(names, (_normalized(item, depth + 1) for item in value.values()), strict=True))
        case Sequence():
            return [_normalized(item, depth + 1) for item in value]
    return value  # json.dumps() refuses what is not JSON's


def _text(value: str | bytes) -> str:
    text = value.decode() if isinstance(value, bytes) else value
    if not is_storable(text):
        raise Unstorable("it has a character that databases do not store: NUL, or half a surrogate pair")
    return text


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it has two keys that are the same in JSON: {', '.join(name for name, _ in pairs):.100}")
    return found


def _integer(digits: str) -> int:
    number = int(digits)
    if not (-(2**63) <= number < 2**63 or transactions.keeps_long_integers(transactions.alias())):
        raise ValueError("it has an integer of more than 64 bits, of which MySQL keeps only the first digits")
    return number


def _refuse_longer(text: str, of: str) -> None:
    if len(text) > JSON_LENGTH:
        raise Unstorable(f"{of} more than {JSON_LENGTH:,} characters as JSON")
