"""How the arguments and the result of a one-off look. Of a long column, only the beginning is read."""

import json
from typing import Any

from django_singlejob.locking.endings import TRACEBACK_LENGTH
from django_singlejob.process.escaping import shown

SHOWN_LENGTH = TRACEBACK_LENGTH


def as_call(args: str, kwargs: str) -> str:
    """The arguments as Python code has them, or as JSON if they were cut or are not arguments."""
    found = arguments_in(args, kwargs)
    if found is None:
        return shown(f"{args}, {kwargs}")
    given, named = found
    return ", ".join([*map(_as_json, given), *(f"{_as_name(name)}={_as_json(value)}" for name, value in named.items())])


def arguments_in(args: str, kwargs: str) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments as values; ``None`` if they were cut or are not arguments."""
    given, named = _parsed(args), _parsed(kwargs)
    return (given, named) if isinstance(given, list) and isinstance(named, dict) else None


def _as_name(name: str) -> str:
    return name if name.isidentifier() else _as_json(name)


def as_shown(text: str) -> str:
    """The JSON with its characters as people write them, not escaped."""
    value = _parsed(text)
    return shown(text) if value is None else _as_json(value)


def _parsed(text: str) -> Any:
    """The beginning of a column as a value. ``None`` if it is not the whole, or is not JSON that Python reads."""
    if len(text) > SHOWN_LENGTH:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _as_json(value: object) -> str:
    return shown(json.dumps(value, ensure_ascii=False))
