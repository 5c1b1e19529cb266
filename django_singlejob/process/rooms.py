"""What the rooms around the kernel add to it. The kernel imports no room and works without them: the app says where
each addition is, and it is imported when it is first used."""

from typing import Any

from django.utils.module_loading import import_string

_paths: dict[str, str] = {}


def add(name: str, path: str) -> None:
    """Have the kernel find under this name what a room defines at this dotted path."""
    _paths[name] = path


def find(name: str) -> Any:
    """What a room adds under this name; ``None`` if none does."""
    return import_string(_paths[name]) if name in _paths else None
