"""How a one-off stores Python values: as the JSON that Django's own tasks make of them, the same on every database."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_singlejob import database
from django_singlejob.names import is_storable

# MariaDB accepts 31 levels, and the list of the arguments is one of them.
DEPTH = 30
# Of the JSON of a one-off's arguments together, or of its result. Database servers refuse a statement that is too long,
# and MySQL then closes the connection.
JSON_LENGTH = 1_000_000
_SHOWN_KEY = 100
_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**63 - 1


class Unstorable(ValueError):
    """A value cannot be stored. The message says which part of it, and why."""


def stored_arguments(args: Iterable[object], kwargs: Mapping[str, object]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a job as they are stored. Raises ``Unstorable``."""
    room = _Room("the arguments together have")
    stored_args = [_stored(value, f"argument {number}", room) for number, value in enumerate(args)]
    stored_kwargs = {}
    for name, value in kwargs.items():
        stored_name = _stored(name, "the name of a keyword argument", room)
        stored_kwargs[stored_name] = _stored(value, f"argument {_shown(name)}", room)
    room.check([stored_args, stored_kwargs])
    return stored_args, stored_kwargs


def stored_result(value: object) -> Any:
    """The return value of a job as it is stored. Raises ``Unstorable``."""
    return as_stored(value, "the result")


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


def as_stored(value: object, path: str) -> Any:
    """The value in JSON's own types, like Django's ``normalize_json``: bytes become text, mappings objects, and other
    sequences lists. Raises ``Unstorable``, which names the part that some database cannot store."""
    room = _Room(f"{path} has")
    stored = _stored(value, path, room)
    room.check(stored)
    return stored


class _Room:
    """How many more characters of JSON there is room for.

    Each part of a value takes the fewest that it can become, before it is read. So a huge value, or one that contains
    another a million times, is refused without a look at all of it.
    """

    def __init__(self, of: str) -> None:
        self._of, self._left = of, JSON_LENGTH

    def take(self, least: int) -> None:
        """Raises ``Unstorable`` if that is more than the room left."""
        self._left -= least
        if self._left < 0:
            raise self._refusal()

    def check(self, stored: object) -> None:
        """Raises ``Unstorable`` if the whole is too long."""
        if len(json.dumps(stored)) > JSON_LENGTH:
            raise self._refusal()

    def _refusal(self) -> Unstorable:
        return Unstorable(f"{self._of} more than {JSON_LENGTH:,} characters as JSON")


def _stored(value: object, path: str, room: _Room, depth: int = 1) -> Any:
    match value:
        case bytes():
            room.take(len(value) // 4)
            return _checked_text(_decoded(value, path), path, room)
        case str():
            return _checked_text(value, path, room)
        case Mapping() | Sequence() if depth > DEPTH:
            raise Unstorable(f"{path} is nested deeper than {DEPTH} levels")
        case Mapping():
            room.take(_length(value))
            return _object(value, path, room, depth)
        case Sequence():
            room.take(_length(value))
            return [_stored(item, f"{path}[{number}]", room, depth + 1) for number, item in enumerate(value)]
    return _checked_scalar(value, path, room)


def _length(value: Mapping[object, object] | Sequence[object]) -> int:
    # The length is known before a range, or a page of rows, is read.
    try:
        return len(value)
    except OverflowError:
        return JSON_LENGTH + 1


def _object(value: Mapping[object, object], path: str, room: _Room, depth: int) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for key, item in value.items():
        name = _name(key, path, room)
        if name in stored:
            raise Unstorable(f"{path} has two keys that are {_shown(name)} in JSON")
        stored[name] = _stored(item, f"{path}[{_shown(key)}]", room, depth + 1)
    return stored


def _name(key: object, path: str, room: _Room) -> str:
    """The key as text, since JSON has no other keys."""
    if isinstance(key, str | bytes | int | float | None):
        stored = _stored(key, f"a key of {path}", room)
        return stored if isinstance(stored, str) else json.dumps(stored)
    raise Unstorable(f"{path} has the key {_shown(key)}, which JSON does not support")


def _shown(key: object) -> str:
    """The key as a path contains it. The paths of all items do, so it is short."""
    return repr(key[:_SHOWN_KEY] if isinstance(key, str | bytes) else key)[: _SHOWN_KEY + 2]


def _decoded(value: bytes, path: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unstorable(f"{path} is bytes that are not UTF-8") from None


def _checked_text(value: str, path: str, room: _Room) -> str:
    room.take(1 + len(value))
    if not is_storable(value):
        raise Unstorable(f"{path} has a character that databases do not store: NUL, or half a surrogate pair")
    return value


def _checked_scalar(value: object, path: str, room: _Room) -> object:
    # An integer has a digit for every 3.3 bits.
    room.take(1 + (value.bit_length() * 3 // 10 if isinstance(value, int) else 0))
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
