"""The jobs of this process, by name. Importing modules of each app registers them; no database is used."""

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo
from pathlib import Path
from typing import Any, Literal, get_args

import django
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from django_singlejob.conf import WEB_URL, ZERO, is_web_url, options
from django_singlejob.exceptions import DuplicateJob, InvalidSchedule, SingleJobError, UnknownJob, quoted
from django_singlejob.jobs import slots
from django_singlejob.jobs.hashed import without_h
from django_singlejob.jobs.names import did_you_mean, validate_name, validate_own_name
from django_singlejob.jobs.schedule import LONGEST, Every, parse
from django_singlejob.jobs.slots import CatchUp, Policy

LONGEST_RETRY_DELAY = timedelta(days=1)
#: Not all databases can count much further.
MOST_ATTEMPTS = 10**9

# The frames of a traceback that do not belong to the project.
_FRAMEWORK = ("<", *(str(path) + os.sep for path in (Path(__file__).parents[1], Path(str(django.__file__)).parent)))
# Those of Python itself and of installed packages.
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

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

    def _validate_ping_url(self) -> None:
        if not (self.ping_url is None or self.ping_url == "" or is_web_url(self.ping_url)):
            raise SingleJobError(
                f"Job {self.name!r}: ping_url is {quoted(self.ping_url)}, but must be {WEB_URL}, or an empty text for "
                "no pings."
            )

    def _validate_schedule(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise SingleJobError(
                f"Job {self.name!r}: catch_up is {quoted(self.catch_up)}, but must be 'none', 'latest' or 'all'."
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
        if not 1 <= failures <= self.retries:
            return None
        longest = max(self.retry_delay, LONGEST_RETRY_DELAY)
        factor = 2 ** (failures - 1)
        # Compare quotients: the product may be longer than a timedelta can be.
        is_shorter = self.retry_delay == ZERO or factor < longest / self.retry_delay
        return self.retry_delay * factor if is_shorter else longest

    @property
    def most_attempts(self) -> int:
        """How many attempts a one-off of this job gets at most, if its holders die or it fails."""
        return max(self.max_attempts, self.retries + 1)

    def misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """What is wrong with these arguments for the function. ``None`` if they fit, or if that cannot be known."""
        try:
            inspect.signature(self.func).bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        except ValueError:  # a function written in C may have no signature
            return None
        return None

    @property
    def description(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.func) or "").partition("\n")[0]

    @property
    def signature(self) -> str:
        """How the function is called, for people: ``hourly_report(day, *, copies=1)``."""
        return f"{getattr(self.func, '__name__', self.name)}{inspect.signature(self.func)}"

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


def validate_types(owner: str, **options: object) -> None:
    """Raise ``SingleJobError`` if an option has the wrong type. ``owner`` begins the message."""
    for name, value in options.items():
        kind, wanted = _TYPES[name]
        # A boolean is an int to Python, but not here.
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise SingleJobError(f"{owner}: {name} is {quoted(value)} ({_kind(value)}), but must be {wanted}.")


_TYPES: dict[str, tuple[type, str]] = {
    "heartbeat": (bool, "True or False"),
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
    if value <= ZERO and name in ("lease", "max_runtime"):
        return "must be longer than zero"
    if value < ZERO:
        return "must not be negative"
    if value > LONGEST and name in ("lease", "min_interval", "retry_delay"):
        return f"must be at most {LONGEST.days} days"
    return ""


_jobs: dict[str, Job] = {}
# Where each was registered, for people.
_sites: dict[str, str] = {}


def register(job: Job) -> None:
    """Register the job. Raises ``DuplicateJob`` if another function already has its name, and ``InvalidName`` if its
    name or its lock's name is reserved."""
    validate_own_name(job.name)
    validate_own_name(job.lock)
    site = _site()
    known = _jobs.setdefault(job.name, job)
    if known.place != job.place:
        raise DuplicateJob(
            f"Two jobs are called {job.name!r}: {known.path} ({_sites[job.name]}) and {job.path} ({site}). Give one of "
            "them another name: @singleton_job('another_name')."
        )
    _jobs[job.name] = job  # the same function again: its module was reloaded
    _sites[job.name] = site


def _site() -> str:
    """The file and the line at which a job is registered: those of the first caller outside this package."""
    frame = inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).startswith("django_singlejob."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "somewhere"


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
    jobs = f"The jobs are: {', '.join(sorted(_jobs))}." if _jobs else NO_JOB
    return f"{did_you_mean(name, _jobs) or jobs} {_searched()}"


def _searched() -> str:
    modules = " and ".join(f"{name}.py" for name in options().autodiscover)
    if not modules:
        return "No module was searched: SINGLEJOB['AUTODISCOVER'] is empty."
    return f"Jobs are searched for in {modules} of each installed app (SINGLEJOB['AUTODISCOVER'])."


def zone_of(name: str) -> tzinfo:
    """The time zone of the job's schedule; UTC if it has none, or if there is no such job."""
    policy = _jobs[name].policy if name in _jobs else None
    return policy.schedule.zone if policy else UTC


def all_jobs() -> Iterator[Job]:
    """The jobs, sorted by name."""
    return iter(sorted(_jobs.values(), key=lambda job: job.name))


def registered() -> list[Job]:
    """The jobs, in the order in which they were registered: with thousands of them, faster than ``all_jobs``."""
    return list(_jobs.values())


def autodiscover() -> None:
    """Import the modules ``SINGLEJOB["AUTODISCOVER"]`` of each installed app. An error in one of them is raised, with a
    note that names the setting: the module may be one that has nothing to do with jobs."""
    names = options().autodiscover
    try:
        autodiscover_modules(*names)
    except Exception as error:
        error.add_note(f"{_searched()} If such a module is not for jobs, leave its name out of the setting.")
        raise


def why_not_registered(error: Exception) -> str:
    """What to say if ``autodiscover`` raised this, on one line."""
    words = " ".join(f"The jobs cannot be registered: {type(error).__name__}: {error}".split())
    return words if words.endswith((".", "?")) else f"{words}."


def remedy_for(error: Exception) -> str:
    """What to do if ``autodiscover`` raised this: ``Fix the error in /srv/shop/jobs.py, line 12.``"""
    remedy = f"Fix the error in {_origin(error)}."
    if _is_about_task(error):
        return (
            f"{remedy} To make a task of a singleton job, let TASKS name its backend: "
            "{'default': {'BACKEND': 'django_singlejob.backends.SingleJobBackend'}}."
        )
    if isinstance(error, SingleJobError):
        return remedy
    return f"{remedy} If its module is not for jobs, leave that name out of SINGLEJOB['AUTODISCOVER']."


def _is_about_task(error: Exception) -> bool:
    """Whether a backend of another package refuses a task, as those of Django refuse a job."""
    # By its name: most processes have no tasks, and do not import them.
    kind = f"{type(error).__module__}.{type(error).__name__}"
    is_refusal = kind in ("django.tasks.exceptions.InvalidTask", "django_tasks.exceptions.InvalidTaskError")
    return is_refusal and "django_singlejob.backends.SingleJobBackend" not in _backends_of_tasks()


def has_tasks() -> bool:
    """Whether the project may have tasks that workers run: ``TASKS`` names a backend that is not one of Django's."""
    return any(not path.startswith(("django.", "django_tasks.")) for path in _backends_of_tasks())


def _backends_of_tasks() -> list[str]:
    # Django has this setting since 6.0. Before that, django-tasks needs none.
    return [str(given.get("BACKEND")) for given in getattr(settings, "TASKS", {}).values()]


def _origin(error: Exception) -> str:
    """Where in the project it was raised: ``/srv/shop/jobs.py, line 12``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_FRAMEWORK)]
    # The project's own code called Python's, or that of another package. A project may be installed itself.
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    innermost = next(iter((own or frames)[-1:]), None)
    return f"{innermost.filename}, line {innermost.lineno}" if innermost else "the module that this comes from"
