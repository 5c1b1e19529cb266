"""The settings: one dict, ``SINGLEJOB``, read at each use, and validated when it has changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from operator import is_
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

ZERO = timedelta()
LOCAL_TIME = "USE_TZ is False, but leases are judged in UTC, by the database's clock."


@dataclass(frozen=True, kw_only=True)
class Options:
    """``settings.SINGLEJOB``, with the defaults filled in. The keys are the fields' names in capitals."""

    database: str | None = None
    """The alias that holds the locks; ``None``: where the routers send writes of ``JobLock``."""
    lease: timedelta = timedelta(seconds=60)
    """How long a holder's right lasts without a sign of life."""
    heartbeats_per_lease: int = 6
    """How many heartbeats go into a lease."""
    min_interval: timedelta = timedelta(seconds=30)
    """``run_singleton`` does not run a job without a schedule again sooner than this."""
    slot_tolerance: timedelta = timedelta(seconds=30)
    """How early a cron daemon may fire and still mean the coming slot."""
    overrun_factor: float = 3.0
    """A run is overrunning past this many times its job's mean duration."""
    overrun_min_runs: int = 5
    """Before so many runs a mean says nothing."""
    max_catch_up: int = 100
    """How many missed slots ``catch_up="all"`` runs at most."""
    history_days: int = 30
    """Older runs are pruned."""
    history_keep: int = 1000
    """Runs of a job beyond its newest so many are pruned."""
    record_command: str = "name"
    """What of a holder's command is stored: ``"name"``, ``"full"`` (redacted), ``"none"``, or the dotted path of a
    function that gets the list of arguments and returns the text to store."""
    autodiscover: Sequence[str] = ("jobs", "tasks")
    """The modules of each installed app that register jobs."""
    hostname: str | None = None
    """The name of this server; ``None``: what the operating system says."""


KEYS = {field.name.upper(): field.name for field in fields(Options)}


def options() -> Options:
    """The settings as they are now. Raises ``ImproperlyConfigured`` for a value that cannot work."""
    global _last  # noqa: PLW0603  (one assignment, so no thread sees half of it)
    if not settings.USE_TZ:
        raise ImproperlyConfigured(f"{LOCAL_TIME} Set USE_TZ = True.")
    given = getattr(settings, "SINGLEJOB", {})
    if not _is_same(given, _last[0]):
        known = dict(given) if isinstance(given, dict) else given  # the dict itself may be changed in place
        _last = known, _validated(known)
    return _last[1]


# What was validated last, and what it comes to.
_last: tuple[dict[str, Any], Options] = {}, Options()


def _is_same(given: object, known: dict[str, Any]) -> bool:
    # Not `==`, by which True is 1 and 6.0 is 6.
    return isinstance(given, dict) and [*given] == [*known] and all(map(is_, given.values(), known.values()))


def _validated(given: Any) -> Options:
    for key, problem in problems(given):
        if key in KEYS or key is None:
            raise ImproperlyConfigured(problem)
    return Options(**{KEYS[key]: value for key, value in given.items() if key in KEYS})


def problems(given: Any) -> Iterator[tuple[str | None, str]]:
    """Each unusable entry of the dict, as its key (``None``: the whole) and a sentence."""
    if not isinstance(given, dict):
        yield None, f"SINGLEJOB is {given!r}, but must be a dict."
        return
    for key, value in given.items():
        if key not in KEYS:
            yield key, f"SINGLEJOB has no key {key!r}. The keys are: {', '.join(KEYS)}."
        elif wanted := _wanted(key, value):
            yield key, f"SINGLEJOB[{key!r}] is {value!r}, but must be {wanted}."


def _wanted(key: str, value: object) -> str | None:
    """What the key's value must be; ``None``: it is that."""
    wanted, fits = _RULES[key]
    return None if fits(value) else wanted


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_name_or_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value != "")


def _is_name_of_module(value: object) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


_DURATION = ("a timedelta that is not negative", lambda value: isinstance(value, timedelta) and value >= ZERO)

_RULES: dict[str, tuple[str, Any]] = {
    "DATABASE": ("the alias of a database, or None", _is_name_or_none),
    "LEASE": ("a timedelta longer than zero", lambda value: isinstance(value, timedelta) and value > ZERO),
    "HEARTBEATS_PER_LEASE": (
        "a whole number, 4 or more: with fewer, one lost packet costs a healthy holder its lock",
        lambda value: _is_count(value, 4),
    ),
    "MIN_INTERVAL": _DURATION,
    "SLOT_TOLERANCE": _DURATION,
    "OVERRUN_FACTOR": ("a number above 1", lambda value: isinstance(value, int | float) and value > 1),
    "OVERRUN_MIN_RUNS": ("a whole number, 1 or more", lambda value: _is_count(value, 1)),
    "MAX_CATCH_UP": ("a whole number, 1 or more", lambda value: _is_count(value, 1)),
    "HISTORY_DAYS": ("a whole number of days, 0 or more", _is_count),
    "HISTORY_KEEP": ("a whole number of runs, 0 or more", _is_count),
    "RECORD_COMMAND": (
        '"name", "full", "none" or the dotted path of a function',
        lambda value: isinstance(value, str) and (value in ("name", "full", "none") or "." in value),
    ),
    "AUTODISCOVER": (
        'a list of names of modules, such as ["jobs"]',
        lambda value: isinstance(value, list | tuple) and all(map(_is_name_of_module, value)),
    ),
    "HOSTNAME": ("a host's name, or None", _is_name_or_none),
}
