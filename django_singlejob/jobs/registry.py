"""The jobs of this process, by name. Importing modules of each app registers them; no database is used."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from django.conf import settings

from django_singlejob.conf import ADDRESSES, SHORTEST_LEASE, WEB_URL, ZERO, are_addresses, is_web_url, options, quoted
from django_singlejob.exceptions import DuplicateJob, InvalidSchedule, SingleJobError, UnknownJob
from django_singlejob.jobs import slots
from django_singlejob.jobs.hashed import without_h
from django_singlejob.jobs.names import did_you_mean, validate_name, validate_own_name
from django_singlejob.jobs.schedule import LONGEST, Every, parse
from django_singlejob.jobs.slots import CatchUp, Policy
from django_singlejob.process.escaping import cut, listed

LEAST_GRACE = timedelta(seconds=1)
LONGEST_RETRY_DELAY = timedelta(days=1)
#: The attribute of a function that has ``@retried``.
RETRIED = "singlejob_retries"
#: Not all databases can count much further.
MOST_ATTEMPTS = 10**9

NO_JOB = (
    "No job is registered. Put a function with @singleton_job into the jobs.py of an app, and the app into "
    "INSTALLED_APPS."
)

OnHeld = Literal["skip", "raise"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function of which only one copy may run at once, and its options. See ``singleton_job`` for the fields.
    Each ``H`` in the schedule has been replaced by what it stands for."""

    name: str
    func: Callable[..., Any] = field(repr=False)
    schedule: str | timedelta | None = None
    time_zone: str | None = None
    catch_up: CatchUp = "latest"
    misfire_grace: timedelta | None = None
    min_interval: timedelta | None = None
    lock: str = ""
    lease: timedelta | None = None
    heartbeat: bool = True
    max_runtime: timedelta | None = None
    on_held: OnHeld = "skip"
    wait: timedelta | None = None
    max_attempts: int = 3
    retries: int = 0
    retry_delay: timedelta = timedelta(minutes=1)
    ping_url: str | None = field(default=None, repr=False)  # it is a secret
    on: str | Sequence[str] = ()
    failures: int | None = None
    notify: str | Sequence[str] | None = None
    editable: bool = True

    def __post_init__(self) -> None:
        validate_name(self.name)
        object.__setattr__(self, "lock", validate_name(self.name if self.lock == "" else self.lock))
        durations = ("misfire_grace", "min_interval", "lease", "max_runtime", "wait", "retry_delay")
        validate_durations(f"Job {self.name!r}", **{name: getattr(self, name) for name in durations})
        function = function_of(self.func)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SingleJobError(
                f"Job {self.name!r} is a generator: its body would run later and without the lock. Decorate the "
                "function that does the work itself."
            )
        if RETRIED in getattr(function, "__dict__", ()):
            raise SingleJobError(f"Job {self.name!r} has @retried. Remove it, and write @singleton_job(retries=...).")
        validate_types(f"Job {self.name!r}", **{name: getattr(self, name) for name in _TYPES})
        if self.on_held not in ("skip", "raise"):
            raise SingleJobError(
                f"Job {self.name!r}: on_held is {quoted(self.on_held)}, but must be 'skip' or 'raise'."
            )
        for name, least in ("max_attempts", 1), ("retries", 0):
            if not least <= (count := getattr(self, name)) <= MOST_ATTEMPTS:
                raise SingleJobError(
                    f"Job {self.name!r}: {name} is {quoted(count)}, but must be {least} or more, and "
                    f"{MOST_ATTEMPTS} at most."
                )
        self._validate_ping_url()
        self._validate_schedule()
        self._validate_on()
        self._validate_alarms()

    def _validate_alarms(self) -> None:
        most = self.failures
        if not (most is None or (type(most) is int and 1 <= most <= MOST_ATTEMPTS)):
            raise SingleJobError(
                f"Job {self.name!r}: failures is {quoted(most)}, but must be a whole number from 1 to {MOST_ATTEMPTS}."
            )
        if not (self.notify is None or are_addresses(self.notify)):
            raise SingleJobError(f"Job {self.name!r}: notify is {quoted(self.notify)}, but must be {ADDRESSES}.")
        if isinstance(self.notify, list):
            object.__setattr__(self, "notify", tuple(self.notify))  # a job can be a key

    def _validate_ping_url(self) -> None:
        if not (self.ping_url is None or self.ping_url == "" or is_web_url(self.ping_url)):
            raise SingleJobError(
                f"Job {self.name!r}: ping_url is {quoted(self.ping_url, 'ping_url')}, but must be {WEB_URL}, or an "
                "empty text for no pings."
            )

    def _validate_schedule(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise SingleJobError(
                f"Job {self.name!r}: catch_up is {quoted(self.catch_up)}, but must be 'none', 'latest' or 'all'."
            )
        if self.catch_up == "none" and self.misfire_grace is not None and self.misfire_grace < LEAST_GRACE:
            raise SingleJobError(
                f"Job {self.name!r}: with catch_up='none', no slot runs that is later than misfire_grace, which is "
                f"{quoted(self.misfire_grace)}. Each run begins a little late, so make it a second or more."
            )
        if self.schedule is None:
            if self.time_zone is not None:
                raise SingleJobError(f"Job {self.name!r} has a time_zone, but no schedule.")
            return
        try:
            if isinstance(self.schedule, str):
                object.__setattr__(self, "schedule", without_h(self.schedule, self.name))
            # The project's time zone is not checked here, because settings are not read at import.
            schedule = parse(self.schedule, "UTC" if self.time_zone is None else self.time_zone)
        except InvalidSchedule as error:
            raise InvalidSchedule(f"Job {self.name!r}: {error}") from None
        if isinstance(schedule, Every) and self.time_zone is not None:
            raise SingleJobError(
                f"Job {self.name!r} has a time_zone, but its schedule is an interval, which counts from the Unix epoch "
                "in UTC."
            )

    def _validate_on(self) -> None:
        given = [self.on] if isinstance(self.on, str) else self.on
        are_names = isinstance(given, list | tuple) and all(
            isinstance(name, str) and name.strip() and name.isprintable() for name in given
        )
        if not are_names or (not given and self.on != ()):
            raise SingleJobError(
                f"Job {self.name!r}: on is {quoted(self.on)}, but must be the name of a server, a pattern such as "
                "'web*', or a list of these."
            )
        object.__setattr__(self, "on", tuple(given))

    def is_for(self, hostname: str) -> bool:
        """Whether the server with this host name asks for the job."""
        names = {hostname, hostname.partition(".")[0]}
        return not self.on or any(fnmatchcase(name, pattern) for name in names for pattern in self.on)

    @property
    def policy(self) -> Policy | None:
        """When the job is due, and what happens to missed slots. ``None`` if it has no schedule."""
        if self.schedule is None:
            return None
        return Policy(
            schedule=parse(self.schedule, self.time_zone or settings.TIME_ZONE),
            catch_up=self.catch_up,
            misfire_grace=slots.MISFIRE_GRACE if self.misfire_grace is None else self.misfire_grace,
            max_catch_up=slots.MAX_CATCH_UP,
        )

    def delay_before_retry(self, failures: int) -> timedelta | None:
        """How long to wait before the next retry, after this many failures in a row. The delay doubles each time, up to
        a day. ``None`` if there is no further retry."""
        return delay_before_retry(failures, self.retries, self.retry_delay)

    @property
    def most_attempts(self) -> int:
        """How many attempts a one-off of this job gets at most, if its holders die or it fails."""
        return max(self.max_attempts, self.retries + 1)

    def misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """What is wrong with these arguments for the function. ``None`` if they fit, or if that cannot be known."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return cut(str(error), 200)
        except ValueError:  # a function written in C may have no signature
            return None
        return None

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.func)

    @property
    def description(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.func) or "").partition("\n")[0]

    @property
    def signature(self) -> str:
        """How the function is called, for people: ``hourly_report(day, *, copies=1)``."""
        return f"{getattr(self.func, '__name__', self.name)}{self._signature}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(function_of(self.func))

    @property
    def place(self) -> str:
        """Where the function is defined, for people: ``shop.jobs.hourly_report (shop/jobs.py:12)``."""
        code = getattr(inspect.unwrap(self.func), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"{self.path}{where}"

    @property
    def path(self) -> str:
        """The function's dotted path."""
        return f"{self.func.__module__}.{getattr(self.func, '__qualname__', repr(self.func))}"


def delay_before_retry(failures: int, retries: int, first: timedelta) -> timedelta | None:
    """See ``Job.delay_before_retry``. ``first``: the delay before the first retry."""
    if not 1 <= failures <= retries:
        return None
    longest = max(first, LONGEST_RETRY_DELAY)
    factor = 2 ** (failures - 1)
    # Compare quotients: the product may be longer than a timedelta can be.
    is_shorter = first == ZERO or factor < longest / first
    return first * factor if is_shorter else longest


def validate_types(owner: str, **options: object) -> None:
    """Raise ``SingleJobError`` if an option has the wrong type. ``owner`` begins the message."""
    for name, value in options.items():
        kind, wanted = _TYPES[name]
        # A boolean is an int to Python, but not here.
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise SingleJobError(f"{owner}: {name} is {quoted(value)} ({_kind(value)}), but must be {wanted}.")


_TYPES: dict[str, tuple[type, str]] = {
    "heartbeat": (bool, "True or False"),
    "editable": (bool, "True or False"),
    "max_attempts": (int, "a whole number"),
    "retries": (int, "a whole number"),
}


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def function_of(func: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function, which ``inspect`` can classify."""
    return func.__func__ if isinstance(func, staticmethod) else func


def validate_durations(owner: str, **durations: object) -> None:
    """Raise ``SingleJobError`` if a duration can never work. ``None`` is allowed. ``owner`` begins the message."""
    for name, value in durations.items():
        if complaint := _complaint(name, value):
            raise SingleJobError(f"{owner}: {name} is {quoted(value)}, but {complaint}.")


def _complaint(name: str, value: object) -> str:
    """What is wrong with the duration; empty if nothing is."""
    if value is None:
        return ""
    if not isinstance(value, timedelta):
        return "must be a timedelta"
    if name == "lease" and value < SHORTEST_LEASE:
        return f"must be {SHORTEST_LEASE.total_seconds()} seconds or longer"
    if value <= ZERO and name == "max_runtime":
        return "must be longer than zero"
    if value < ZERO:
        return "must not be negative"
    if value > LONGEST and name in ("lease", "min_interval", "retry_delay"):
        return f"must be at most {LONGEST.days} days"
    return ""


_jobs: dict[str, Job] = {}
# Where each was registered.
_sites: dict[str, "_Site"] = {}
# What to say of names that two functions have.
_disputed: dict[str, str] = {}
#: Why modules, and single jobs, are not registered; see ``discovery``.
failures: dict[str, Exception] = {}
#: Why this server does not ask for jobs: it cannot parse the schedules that operators have given them.
left_out: dict[str, Exception] = {}


class _Site(NamedTuple):
    """Where a job was registered: the file and the line, for people, and the module whose import did it; empty if none
    did."""

    place: str
    module: str


def register(job: Job) -> None:
    """Register the job. Raises ``DuplicateJob`` if another function already has its name: then neither has it from now
    on. Raises ``InvalidName`` if its name or its lock's name is reserved."""
    validate_own_name(job.name)
    validate_own_name(job.lock)
    if job.name in _disputed:
        raise DuplicateJob(_disputed[job.name])
    site = _site()
    known = _jobs.setdefault(job.name, job)
    if known.place != job.place:
        del _jobs[job.name]
        _disputed[job.name] = (
            f"Two jobs are called {job.name!r}, and neither of them runs: {cut(known.path, 200)} "
            f"({_sites[job.name].place}) and {cut(job.path, 200)} ({site.place}). Give one of them another name: "
            "@singleton_job('another_name')."
        )
        raise DuplicateJob(_disputed[job.name])
    _jobs[job.name] = job  # the same function again: its module was reloaded
    _sites[job.name] = site


def _site() -> _Site:
    """The first caller outside this package, and the module that is being imported."""
    place, frame = "somewhere", inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).startswith("django_singlejob."):
        frame = frame.f_back
    if frame:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    while frame and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__")) if frame else ""
    # What is run, and not imported, is in no list of modules, or stays there.
    return _Site(place, module if module in sys.modules else "")


def take_back() -> None:
    """Forget what modules whose import has failed have registered."""
    for name, site in list(_sites.items()):
        if site.module and site.module not in sys.modules:
            forget(name)


def forget(name: str) -> None:
    """The job is not registered any more."""
    _jobs.pop(name, None)


def is_known(name: str) -> bool:
    """Whether this release of the code has a job with that name."""
    return name in _jobs


def get(name: str) -> Job:
    """The job with that name. Raises ``UnknownJob``, which suggests similar names."""
    try:
        return _jobs[name]
    except KeyError:
        raise UnknownJob(f"There is no job {quoted(name)}. {_suggestion(name)}") from None


def _suggestion(name: str) -> str:
    jobs = f"The jobs are: {listed(sorted(_jobs))}." if _jobs else NO_JOB
    missing = f"These are not registered, because of an error: {listed(failures)}." if failures else ""
    return " ".join(filter(None, [did_you_mean(name, _jobs) or jobs, missing, searched()]))


def searched() -> str:
    """Where jobs are searched for."""
    modules = " and ".join(f"{name}.py" for name in options().autodiscover)
    if not modules:
        return "No module was searched: SINGLEJOB['AUTODISCOVER'] is empty."
    return f"Jobs are searched for in {modules} of each installed app (SINGLEJOB['AUTODISCOVER'])."


def zone_of(name: str) -> tzinfo:
    """The time zone of the job's schedule; UTC if it has none, or if there is no such job."""
    policy = _jobs[name].policy if name in _jobs else None
    return policy.schedule.zone if policy else UTC


def all_jobs() -> list[Job]:
    """The jobs, sorted by name."""
    return sorted(_jobs.values(), key=lambda job: job.name)
