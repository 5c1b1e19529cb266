"""The jobs of this process, by name. Filled by importing each app's ``jobs.py``; touches no database."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from django_singlejob.conf import ZERO, options
from django_singlejob.exceptions import DuplicateJob, InvalidSchedule, SingleJobError, UnknownJob
from django_singlejob.names import validate_name, validate_own_name
from django_singlejob.scheduling.schedule import LONGEST, Every, parse
from django_singlejob.scheduling.slots import MISFIRE_GRACE, CatchUp, Policy

LONGEST_RETRY_DELAY = timedelta(days=1)

OnHeld = Literal["skip", "raise"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function of which one copy may run at a time, and how. See ``singleton_job`` for the fields."""

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
    rerun_abandoned: bool = True
    max_attempts: int = 3
    retries: int = 0
    retry_delay: timedelta = timedelta(minutes=1)
    description: str = ""

    def __post_init__(self) -> None:
        validate_name(self.name)
        object.__setattr__(self, "lock", validate_name(self.lock or self.name))
        durations = ("misfire_grace", "min_interval", "lease", "max_runtime", "wait", "retry_delay")
        validate_durations(f"Job {self.name!r}", **{name: getattr(self, name) for name in durations})
        function = function_of(self.func)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SingleJobError(f"Job {self.name!r} is a generator: its body would run later and without the lock.")
        if self.on_held not in ("skip", "raise"):
            raise SingleJobError(f"Job {self.name!r}: on_held is {self.on_held!r}, but must be 'skip' or 'raise'.")
        if self.max_attempts < 1:
            raise SingleJobError(f"Job {self.name!r}: max_attempts is {self.max_attempts!r}, but must be 1 or more.")
        if self.retries < 0:
            raise SingleJobError(f"Job {self.name!r}: retries is {self.retries!r}, but must be 0 or more.")
        self._validate_schedule()

    def _validate_schedule(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise SingleJobError(
                f"Job {self.name!r}: catch_up is {self.catch_up!r}, but must be 'none', 'latest' or 'all'."
            )
        if self.schedule is None:
            if self.time_zone is not None:
                raise SingleJobError(f"Job {self.name!r} has a time_zone, but no schedule.")
            return
        try:
            # The project's own time zone is not asked for here: settings are not read at import.
            schedule = parse(self.schedule, "UTC" if self.time_zone is None else self.time_zone)
        except InvalidSchedule as error:
            raise InvalidSchedule(f"Job {self.name!r}: {error}") from None
        if isinstance(schedule, Every) and self.time_zone is not None:
            raise SingleJobError(
                f"Job {self.name!r} has a time_zone, but its schedule is an interval, which counts from the Unix epoch "
                "in UTC."
            )

    @property
    def policy(self) -> Policy | None:
        """When it is due, and what is done about slots that nobody ran in time; ``None``: it has no schedule."""
        if self.schedule is None:
            return None
        return Policy(
            schedule=parse(self.schedule, self.time_zone or settings.TIME_ZONE),
            catch_up=self.catch_up,
            misfire_grace=MISFIRE_GRACE if self.misfire_grace is None else self.misfire_grace,
            max_catch_up=options().max_catch_up,
        )

    def delay_before_retry(self, failures: int) -> timedelta | None:
        """How long after its last failure in a row it is tried again: twice as long each time, up to a day; ``None``:
        no more."""
        if not 1 <= failures <= self.retries:
            return None
        longest = max(self.retry_delay, LONGEST_RETRY_DELAY)
        factor = 2 ** (failures - 1)
        # Compared like this, for the product may be longer than a timedelta can be.
        is_shorter = self.retry_delay == ZERO or factor < longest / self.retry_delay
        return self.retry_delay * factor if is_shorter else longest

    @property
    def most_attempts(self) -> int:
        """How often a one-off of it is begun at most, if its holders die or it fails."""
        return max(self.max_attempts if self.rerun_abandoned else 1, self.retries + 1)

    def misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """What is wrong with these arguments for its function; ``None``: nothing, as far as it can be told."""
        try:
            inspect.signature(self.func).bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        except ValueError:  # one that is written in C may not tell
            return None
        return None

    @property
    def signature(self) -> str:
        """How its function is called, for people: ``hourly_report(day, *, copies=1)``."""
        return f"{getattr(self.func, '__name__', self.name)}{inspect.signature(self.func)}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(function_of(self.func))

    @property
    def place(self) -> str:
        """Where the function stands, for people: ``shop.jobs.hourly_report (shop/jobs.py:12)``."""
        code = getattr(inspect.unwrap(self.func), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"{self.path}{where}"

    @property
    def path(self) -> str:
        """The function's dotted path."""
        return f"{self.func.__module__}.{getattr(self.func, '__qualname__', repr(self.func))}"


def function_of(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, of which ``inspect`` can tell the kind."""
    return func.__func__ if isinstance(func, staticmethod) else func


def validate_durations(owner: str, **durations: object) -> None:
    """Raise ``SingleJobError`` for those that can never work, ``None`` aside. ``owner``: whose they are, for people."""
    for name, value in durations.items():
        if complaint := _complaint(name, value):
            raise SingleJobError(f"{owner}: {name} is {value!r}, but {complaint}.")


def _complaint(name: str, value: object) -> str:
    """What is wrong with the duration; empty: nothing."""
    if value is None:
        return ""
    if not isinstance(value, timedelta):
        return "must be a timedelta"
    if value < ZERO or (value == ZERO and name in ("lease", "max_runtime")):
        return "must be longer"
    if value > LONGEST and name in ("lease", "min_interval", "retry_delay"):
        return f"{LONGEST.days} days are the most"
    return ""


_jobs: dict[str, Job] = {}


def register(job: Job) -> None:
    """Make the job known. Raises ``DuplicateJob`` if another function has its name already, ``InvalidName`` if its name
    or its lock's is reserved."""
    validate_own_name(job.name)
    validate_own_name(job.lock)
    known = _jobs.setdefault(job.name, job)
    if known.place != job.place:
        raise DuplicateJob(
            f"Two jobs are called {job.name!r}: {known.place} and {job.place}. Give one of them another name: "
            "@singleton_job('another_name')."
        )
    _jobs[job.name] = job  # the same function again: its module was reloaded


def is_known(name: str) -> bool:
    """Whether this release of the code has a job of that name."""
    return name in _jobs


def get(name: str) -> Job:
    """The job of that name. Raises ``UnknownJob``, naming the closest ones."""
    try:
        return _jobs[name]
    except KeyError:
        raise UnknownJob(f"There is no job {name!r}. {_suggestion(name)}") from None


def _suggestion(name: str) -> str:
    if close := difflib.get_close_matches(name, _jobs, n=3):
        return f"Did you mean {' or '.join(map(repr, close))}?"
    if _jobs:
        return f"The jobs are: {', '.join(sorted(_jobs))}."
    return "No job is registered: decorate a function in an installed app's jobs.py with @singleton_job."


def all_jobs() -> Iterator[Job]:
    """The jobs, by name."""
    return iter(sorted(_jobs.values(), key=lambda job: job.name))


def autodiscover() -> None:
    """Import ``jobs.py`` of each installed app. An error in one of them is not swallowed."""
    autodiscover_modules("jobs")
