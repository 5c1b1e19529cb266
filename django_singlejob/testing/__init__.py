"""Tools for a project's own tests: locks that another server holds or has left, clocks that move, and what is due.

Each takes the path that a server takes, in the test's process and transaction, and on each database that is supported.
The kernel imports nothing from here. The names are imported on first use, so pytest can load the plugin at any time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_singlejob.testing.clocks import travel
    from django_singlejob.testing.locks import expire, held_elsewhere
    from django_singlejob.testing.runs import enqueued, run_due, times_out
    from django_singlejob.testing.slots import assert_scheduled

__all__ = ["assert_scheduled", "enqueued", "expire", "held_elsewhere", "run_due", "times_out", "travel"]

_HOMES = {
    "assert_scheduled": "slots",
    "enqueued": "runs",
    "expire": "locks",
    "held_elsewhere": "locks",
    "run_due": "runs",
    "times_out": "runs",
    "travel": "clocks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
