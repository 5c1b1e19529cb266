"""The settings: one dict, ``SINGLEJOB``, read at each use and validated when it has changed."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from operator import is_
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

ZERO = timedelta()
# A database nearby lost leases of up to 20 ms; one that is farther away, or busy, needs more.
SHORTEST_LEASE = timedelta(seconds=0.5)
ADDRESSES = "a mail address, or a list of these"
WEB_URL = "an ASCII URL that begins with https:// or http://, without a user"
LOCAL_TIME = "USE_TZ is False, but leases are judged in UTC, by the database's clock."

# Django's validator would load all of its forms, and a mail server knows better.
_ADDRESS = re.compile(r"[^@\s,;<>]+@[^@\s,;<>]+")
# Of a value in a message; the repr of a negative timedelta is this long.
_QUOTED_LENGTH = 64
# The options and settings whose values may be secrets, or contain some.
_SECRETS = frozenset({"HEALTH_TOKEN", "PING_URL", "SINGLEJOB"})


class Options(NamedTuple):
    """``settings.SINGLEJOB``, with the defaults filled in. The keys are the fields' names in capitals."""

    enabled: bool = True
    """Whether jobs and tasks run at all."""
    database: str | None = None
    """The alias of the database that holds the locks; ``None`` means where the routers send writes of ``JobLock``."""
    lease: timedelta = timedelta(seconds=60)
    """How long a lease lasts without a heartbeat."""
    heartbeats_per_lease: int = 6
    """How many heartbeats a holder sends within one lease."""
    min_interval: timedelta = timedelta(seconds=30)
    """How soon ``run_singleton`` may start a job without a schedule again."""
    slot_tolerance: timedelta = timedelta(seconds=30)
    """How early a cron daemon may fire for the next slot."""
    overrun_factor: float = 3.0
    """A run overruns if it takes longer than this many times its job's mean duration."""
    history_days: int = 30
    """Runs, one-offs and notes that are older than this many days are pruned."""
    history_keep: int = 1000
    """How many runs of each job are kept; older ones are pruned."""
    output: int = 10_000
    """How many characters of what a run printed are kept with it; 0 means none."""
    output_file: str | None = None
    """The path of a file to which what a run prints is also appended, in which ``{name}`` is the job's name; ``None``
    means that there is none."""
    runs_per_process: int = 1_000
    """After how many runs a worker replaces a process that runs jobs; 1 means that each run has one of its own."""
    record_command: str | Callable[[list[str]], str] = "name"
    """How much of a command line is stored: ``"name"``, ``"none"``, or a function that takes the list of arguments and
    returns the text to store, or its dotted path."""
    autodiscover: Sequence[str] = ("jobs", "tasks")
    """The modules of each installed app that register jobs."""
    single_statement: bool = False
    """Whether an ordinary grant, and its release, are one statement each, on PostgreSQL."""
    hostname: str | None = None
    """The name of this server; ``None`` means the operating system's hostname."""
    release: str | None = None
    """Which code runs here, for monitoring; ``None`` means the commit of the git checkout, if there is one."""
    ping_url: str | None = None
    """The URL that is pinged when a run begins and ends, with ``{name}`` in it; ``None`` means that there is none."""
    notify: Sequence[str] = ()
    """The mail addresses that hear when a job becomes critical, unless the job has its own."""
    admin_url: str | None = None
    """Where Django's admin is, for links in mails; ``None`` means that they name commands."""
    health_token: str | None = None
    """What a request must present to read the whole status; ``None`` means that no request may."""


KEYS = {name.upper(): name for name in Options._fields}


def options() -> Options:
    """Return the current settings. Raises ``ImproperlyConfigured`` if a value is invalid."""
    global _last  # noqa: PLW0603  (one assignment, so no thread sees half of it)
    if not settings.USE_TZ:
        raise ImproperlyConfigured(f"{LOCAL_TIME} Set USE_TZ = True.")
    given = getattr(settings, "SINGLEJOB", {})
    known, found = _last
    # Not `==`, because True == 1 and 6.0 == 6.
    if not isinstance(given, dict) or [*given] != [*known] or not all(map(is_, given.values(), known.values())):
        known = dict(given) if isinstance(given, dict) else given  # the dict itself may be changed in place
        found = _validated(known)
        _last = known, found
    return found


# The dict that was validated last, and its options.
_last: tuple[dict[str, Any], Options] = {}, Options()


def _validated(given: Any) -> Options:
    for key, problem in problems(given):
        if key in KEYS or key is None:
            raise ImproperlyConfigured(problem)
    return Options(**{KEYS[key]: value for key, value in given.items() if key in KEYS})


def problems(given: Any) -> Iterator[tuple[str | None, str]]:
    """Yield each invalid entry of the dict as its key and a sentence. The key is ``None`` if the dict itself is
    invalid."""
    if not isinstance(given, dict):
        yield None, f"SINGLEJOB is {quoted(given, 'SINGLEJOB')}, but must be a dict."
        return
    for key, value in given.items():
        if key not in KEYS:
            yield key, f"SINGLEJOB contains the unknown key {quoted(key)}. The valid keys are: {', '.join(KEYS)}."
        elif wanted := _wanted(key, value):
            yield key, f"SINGLEJOB[{key!r}] is {quoted(value, key)}, but must be {wanted}."


def _wanted(key: str, value: object) -> str | None:
    """Describe what the key's value must be; ``None`` if the value is valid."""
    wanted, fits = _RULES[key]
    return None if fits(value) else wanted


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _is_name_or_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value != "")


def _is_token(value: object) -> bool:
    """Whether an HTTP header can present it."""
    return isinstance(value, str) and value != "" and value.isascii() and value.isprintable() and " " not in value


def _is_path(value: str) -> bool:
    """Whether it is an absolute path, without what may be a placeholder."""
    return value.startswith("/") and value.isprintable() and "{" not in value


def _is_name_of_module(value: object) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _is_dotted_path(value: object) -> bool:
    return _is_name_of_module(value) and "." in str(value)


def is_web_url(value: object) -> bool:
    """Whether the value is a URL of a web server: ``WEB_URL`` says so in words."""
    if not (isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value):
        return False
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and "@" not in parts.netloc


def are_addresses(value: object) -> bool:
    """Whether the value is a mail address, or a list of some: ``ADDRESSES`` says so in words."""
    given = [value] if isinstance(value, str) else value
    return isinstance(given, list | tuple) and all(isinstance(each, str) and _ADDRESS.fullmatch(each) for each in given)


def _is_duration(value: object) -> bool:
    return isinstance(value, timedelta) and ZERO <= value <= _LONGEST


# Databases cannot count further, nor add much more to an instant.
_MOST = 2**31 - 1
_LONGEST = timedelta(days=36_525)
_DURATION = (f"a timedelta of zero or more, and of {_LONGEST.days} days at most", _is_duration)

_RULES: dict[str, tuple[str, Any]] = {
    "ENABLED": (
        "True or False: a text from the environment is true, even 'False'",
        lambda value: isinstance(value, bool),
    ),
    "DATABASE": ("the alias of a database, or None", _is_name_or_none),
    "LEASE": (
        f"a timedelta of {SHORTEST_LEASE.total_seconds()} seconds or longer, and of {_LONGEST.days} days at most",
        lambda value: _is_duration(value) and value >= SHORTEST_LEASE,
    ),
    "HEARTBEATS_PER_LEASE": (
        "a whole number from 4 to 1,000: with fewer, one lost packet can cost a healthy holder its lock",
        lambda value: _is_count(value, 4) and value <= 1000,
    ),
    "MIN_INTERVAL": _DURATION,
    "SLOT_TOLERANCE": _DURATION,
    "OVERRUN_FACTOR": (
        "a number above 1, and of a million at most",
        lambda value: isinstance(value, int | float) and 1 < value <= 1_000_000,
    ),
    "HISTORY_DAYS": (
        f"a whole number of days, 0 or more, and {_LONGEST.days} at most",
        lambda value: _is_count(value) and value <= _LONGEST.days,
    ),
    "HISTORY_KEEP": (f"a whole number of runs, 0 or more, and {_MOST} at most", _is_count),
    "OUTPUT": (
        "a whole number of characters, from 0 to 1,000,000",
        lambda value: _is_count(value) and value <= 1_000_000,
    ),
    "OUTPUT_FILE": (
        "an absolute path, such as '/var/log/shop/{name}.log', with no other braces, or None",
        lambda value: value is None or (isinstance(value, str) and _is_path(value.replace("{name}", ""))),
    ),
    "RUNS_PER_PROCESS": (f"a whole number of runs, from 1 to {_MOST}", lambda value: _is_count(value, 1)),
    "RECORD_COMMAND": (
        '"name", "none", or a function or its dotted path',
        lambda value: callable(value) or value in ("name", "none") or _is_dotted_path(value),
    ),
    "AUTODISCOVER": (
        'a list of module names, such as ["jobs"]',
        lambda value: isinstance(value, list | tuple) and all(map(_is_name_of_module, value)),
    ),
    "SINGLE_STATEMENT": ("True or False", lambda value: isinstance(value, bool)),
    "HOSTNAME": ("a hostname, or None", _is_name_or_none),
    "RELEASE": ("a text that is not empty, or None", _is_name_or_none),
    "PING_URL": (
        f"{WEB_URL} that contains {{name}}, or None",
        lambda value: value is None or (is_web_url(value) and "{name}" in value),
    ),
    "NOTIFY": (ADDRESSES, are_addresses),
    "ADMIN_URL": (f"{WEB_URL}, or None", lambda value: value is None or is_web_url(value)),
    "HEALTH_TOKEN": (
        "a text of printable ASCII characters without spaces, or None: no request can present another one",
        lambda value: value is None or _is_token(value),
    ),
}


def quoted(value: object, option: str = "") -> str:
    """The value as a message quotes it: like ``repr``, but cut, and whatever the value is. Of an ``option`` that may be
    a secret, only the type: messages get into logs and mails."""
    if option.upper() in _SECRETS:
        return f"of the type {type(value).__name__}"
    try:
        text = repr(value)
    except Exception:  # it may be any class's own, and Python refuses to convert very long integers
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _QUOTED_LENGTH else f"{text[:_QUOTED_LENGTH]}..."
