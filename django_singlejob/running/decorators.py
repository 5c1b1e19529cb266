"""The two entry points: ``@singleton_job`` for a function, ``job_lock`` for a block."""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Protocol, TypeVar, cast, overload

from django_singlejob.conf import quoted
from django_singlejob.exceptions import LeaseLost, LockHeld, SingleJobError
from django_singlejob.jobs.management_command import ManagementCommand
from django_singlejob.jobs.names import did_you_mean, validate_own_name
from django_singlejob.jobs.registry import Job, OnHeld, function_of, get, register, validate_durations, validate_types
from django_singlejob.jobs.slots import CatchUp
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.heartbeat import renewing
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LockRequest, Refusal
from django_singlejob.process.holder import this_process
from django_singlejob.running import runner
from django_singlejob.running.command import ShellCommand
from django_singlejob.running.enqueue import AnyCall, Order
from django_singlejob.running.outcomes import Outcome, Skipped

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

logger = logging.getLogger("django_singlejob")

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# Those of ``singleton_job``.
_OPTIONS = [option.name for option in fields(Job) if option.name != "func"]


class _Runnable(Job, Generic[P, R_co]):
    __wrapped__: Callable[P, R_co]
    # Django's templates call every callable: a page that only shows a job would run it.
    do_not_call_in_templates = True

    def __set_name__(self, owner: type, name: str) -> None:
        """Refuse to become a method, because a run would have no instance. Raises ``SingleJobError``, which Python 3.11
        wraps in a ``RuntimeError``."""
        if _class_of(self.func) == owner.__qualname__:
            raise SingleJobError(_about_method(self.func))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by its name, like a function, even if its module has something around it under that name."""
        return _job_of, (self.func.__module__, self.name)

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """Run the job and return its outcome. Raises what the job raises."""
        return runner.run(self, args, kwargs)

    def using(
        self,
        *,
        run_after: datetime | None = None,
        priority: int = 0,
        queue_name: str = "default",
        unique: bool | str = False,
    ) -> Order:
        """Return an ``Order`` that enqueues the job with these options. Raises ``InvalidOrder`` if one is invalid."""
        return Order(
            job_name=self.name,
            max_attempts=self.most_attempts,
            queue_name=queue_name,
            priority=priority,
            run_after=run_after,
            unique=unique,
            _misfit=self.misfit,
        )

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> "OneOffJob":
        """Have a worker run the job once with these arguments, as soon as possible: see ``Order.enqueue``."""
        return self.using().enqueue(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> "OneOffJob":
        """Like ``enqueue``, for an ``async def``."""
        return await self.using().aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[AnyCall]) -> "list[OneOffJob]":
        """Have a worker run the job once for each pair of arguments and keyword arguments, as soon as possible: see
        ``Order.enqueue_many``."""
        return self.using().enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[AnyCall]) -> "list[OneOffJob]":
        """Like ``enqueue_many``, for an ``async def``."""
        return await self.using().aenqueue_many(calls)


def _job_of(module: str, name: str) -> Job:
    import_module(module)
    return get(name)


class SingletonJob(_Runnable[P, R_co]):
    """A function that runs under its lock when it is called. ``__wrapped__`` is the plain function. For type checkers,
    it may also be an ``async def``, whose value is a coroutine."""

    # Without the first one, a function that returns `Any` would look as if it were async.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: "SingletonJob[P, Never]", /, *args: P.args, **kwargs: P.kwargs
    ) -> R_co | Skipped: ...
    @overload
    def __call__(
        self: "SingletonJob[P, Coroutine[Any, Any, R]]", /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R | Skipped]: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co | Skipped: ...
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the job and return the function's value, or ``SKIPPED``."""
        return runner.run(self, args, kwargs).value


class AsyncSingletonJob(_Runnable[P, R_co]):
    """An ``async def`` that runs under its lock when it is awaited. ``__wrapped__`` is the plain function."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the job and return the function's value, or ``SKIPPED``."""
        return (await runner.run_async(self, args, kwargs)).value


class _Decorator(Protocol):
    def __call__(self, func: Callable[P, R], /) -> SingletonJob[P, R]: ...


@overload
def singleton_job(name: Callable[P, R], /) -> SingletonJob[P, R]: ...
@overload
def singleton_job(
    name: str | None = None,
    *,
    schedule: str | timedelta | None = None,
    time_zone: str | None = None,
    catch_up: CatchUp = "latest",
    misfire_grace: timedelta | None = None,
    min_interval: timedelta | None = None,
    lock: str | None = None,
    lease: timedelta | None = None,
    heartbeat: bool = True,
    max_runtime: timedelta | None = None,
    on_held: OnHeld = "skip",
    wait: timedelta | None = None,
    max_attempts: int = 3,
    retries: int = 0,
    retry_delay: timedelta = timedelta(minutes=1),
    ping_url: str | None = None,
    on: str | Sequence[str] = (),
    failures: int | None = None,
    notify: str | Sequence[str] | None = None,
    editable: bool = True,
) -> _Decorator: ...
def singleton_job(name: Any = None, **settings: Any) -> Any:
    """Make a function, or an ``async def``, a job: across all servers, only one copy of it runs at once.

    Calling the job runs it under its lock and returns the function's value, or ``SKIPPED`` (which is false) if it did
    not run. Exceptions reach the caller unchanged. Locks are not re-entrant: a job that calls itself gets ``SKIPPED``.
    Use ``job.run(...)`` to get an ``Outcome``, and ``job.__wrapped__`` for the plain function. Nothing touches the
    database before the first call.

    Args:
        name: a name that is unique in the project, of 1 to 200 of the characters ``a-z 0-9 _ . : -``; default: the
            function's name.
        schedule: when ``run_singleton`` and ``singleton_worker`` run the job: a cron expression of five fields, one of
            ``@hourly @daily @midnight @weekly @monthly @yearly @annually``, or a ``timedelta``, whose multiples since
            the Unix epoch are the slots. Each slot runs once. Without a schedule, the job runs whenever it is called.
            An ``H`` in a cron expression is a value that a hash of the job's name chooses.
        time_zone: the IANA time zone of the cron expression; default: ``settings.TIME_ZONE``.
        catch_up: what happens to missed slots: ``"none"`` drops them, ``"latest"`` makes one run for all of them, and
            ``"all"`` runs each of the newest 100, oldest first.
        misfire_grace: how late a slot may run and still be on time; default: 5 minutes. A later slot is a misfire, and
            is not run with ``catch_up="none"``.
        min_interval: the shortest time between the starts of two runs.
        lock: the name of the lock, if several jobs must exclude each other; default: the job's name.
        lease: how long the lease lasts without a heartbeat; default: ``SINGLEJOB["LEASE"]``.
        heartbeat: whether to send heartbeats during the run. Without them, ``lease`` must cover the whole run.
        max_runtime: how long the job may run. Then a command ends it with ``JobTimeout``; in a process of your own,
            only ``Lease.check`` raises that.
        on_held: what to do if another caller holds the lock: ``"skip"`` the run or ``"raise"`` ``LockHeld``.
        wait: how long to wait for the lock; default: not at all.
        max_attempts: how many attempts a run may take if its holders die, or if signals interrupt the run of a slot; 1:
            it is not run again.
        retries: how many times to retry the job after an exception.
        retry_delay: how long to wait before the first retry; doubled for each further retry, up to a day.
        ping_url: the URL that is pinged when a run begins and ends; default: ``SINGLEJOB["PING_URL"]``. An empty text
            means that there are no pings.
        on: the servers whose commands run the job: a host name, a pattern such as ``"web*"``, or a list of these. Each
            is compared with the whole host name, and with its part before the first dot, and case counts. A call in
            code, and ``run_singleton --now``, run the job anywhere, with a warning.
        failures: after how many failures in a row the job is critical; fewer are a warning. Default: what the reader of
            the status says, usually 1.
        notify: the mail addresses that hear when the job becomes critical, once a day while it is, and when it is well
            again; default: ``SINGLEJOB["NOTIFY"]``. An empty list means that nobody hears.
        editable: whether an operator may give the job another schedule, in the admin or by ``singleton_schedule``.

    Raises:
        InvalidName, InvalidSchedule, DuplicateJob, SingleJobError: at registration, if the job can never work.
    """
    _refuse_unknown(settings)
    _refuse_schedule_as(name)
    if callable(name) or isinstance(name, classmethod):
        return _registered(name, {})
    if name is not None:
        settings["name"] = name
    return lambda func: _registered(func, settings)


def command_job(command: str, /, *arguments: str, **settings: Any) -> SingletonJob[[], Any]:
    """Make a management command a job, and return the job.

    Args:
        command: the name of the command, which is also the job's, unless ``name`` is given.
        arguments: those of the command, one string each, as in a shell. They are the same for each run.
        settings: see ``singleton_job``.

    A run that raises ``CommandError`` has failed. Its value is what the command returns, usually ``None``.

    Raises:
        SingleJobError: there is no such command, or its parser refuses the arguments.
        InvalidName, InvalidSchedule, DuplicateJob: the job can never work.
    """
    _refuse_unknown(settings, "command_job")
    func = ManagementCommand(command, arguments, _caller_of(inspect.currentframe()))
    return cast("SingletonJob[[], Any]", _registered(func, settings))


def shell_job(name: str, words: Sequence[str], /, **settings: Any) -> SingletonJob[[], None]:
    """Make a shell command a job, and return the job. It is run as by ``run_singleton LOCK -- COMMAND``, without input.

    Args:
        name: the job's name.
        words: the command and its arguments, one string each. No shell reads them: name one as the command,
            ``["bash", "-o", "pipefail", "-c", "pg_dump shop | gzip > /backup/shop.gz"]``.
        settings: see ``singleton_job``.

    A run whose command does not exit with 0 has failed. Processes that it leaves behind hold the lock until they exit.

    Raises:
        SingleJobError: ``words`` is not a list of strings.
        InvalidName, InvalidSchedule, DuplicateJob: the job can never work.
    """
    _refuse_unknown(settings, "shell_job")
    if not (isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words)):
        raise SingleJobError(
            f"shell_job() takes the words of a command as a list of strings, and not {quoted(words)}. For a line of a "
            "shell, write ['bash', '-o', 'pipefail', '-c', 'LINE']."
        )
    command = ShellCommand(words, partial(logger.warning, "%s: %s", name), has_input=False)
    described = {
        "__module__": _caller_of(inspect.currentframe()),
        "__name__": words[0],
        # Two jobs of one name may run different commands. Their arguments may be secrets.
        "__qualname__": f"shell_job({words[0]!r}, {sha256(repr([words, settings]).encode()).hexdigest()[:8]})",
        "__doc__": f"{words[0]}, a shell command.",
    }
    for attribute, value in described.items():
        setattr(command, attribute, value)
    return cast("SingletonJob[[], None]", _registered(command, {**settings, "name": name}))


def _caller_of(frame: FrameType | None) -> str:
    """The name of the module that has called the function with this frame."""
    return str(frame.f_back.f_globals.get("__name__")) if frame and frame.f_back else __name__


def _refuse_unknown(settings: Iterable[str], owner: str = "singleton_job") -> None:
    for name in settings:
        if name not in _OPTIONS:
            known = did_you_mean(name, _OPTIONS) or f"Its options are: {', '.join(_OPTIONS)}."
            raise SingleJobError(f"{owner}() has no option {quoted(name)}. {_OTHER_NAMES.get(name, known)}")


def _refuse_schedule_as(name: object) -> None:
    is_cron = isinstance(name, str) and (name.startswith("@") or len(name.split()) in (5, 6))
    if is_cron or isinstance(name, timedelta):
        raise SingleJobError(
            f"The first argument of singleton_job() is the job's name, and {quoted(name)} is a schedule: write "
            f"@singleton_job(schedule={quoted(name)})."
        )


# What to write instead of the names that other packages have for it.
_INSTEAD = {
    "Use max_runtime, a timedelta.": "timeout job_timeout time_limit soft_time_limit max_run_time",
    "Use wait, a timedelta.": "blocking_timeout wait_timeout",
    "Use time_zone, such as 'Europe/Rome'.": "tz timezone",
    "Use schedule, such as '*/5 * * * *'.": "cron crontab cron_string trigger",
    "Use schedule, a timedelta.": "interval every run_every seconds minutes hours",
    "Use lease for the lock, or misfire_grace for a slot that comes too late.": "expires expiry ttl lock_ttl",
    "Use retries, a whole number.": "max_retries max_retry retry max_tries tries",
    "Use catch_up: 'none', 'latest' or 'all'.": "coalesce",
    "Call the job's using(queue_name=...).enqueue().": "queue queue_name",
    "Call the job's using(run_after=...).enqueue().": "countdown eta run_after",
    "Call the job's using(priority=...).enqueue().": "priority",
}
_OTHER_NAMES = {name: advice for advice, names in _INSTEAD.items() for name in names.split()}


def _registered(func: Callable[..., Any], settings: dict[str, Any]) -> Job:
    if _is_method(func):
        raise SingleJobError(_about_method(func))
    if not callable(func):
        raise SingleJobError(f"{quoted(func)} is not a function. Decorate a function with @singleton_job.")
    if "name" not in settings and not hasattr(func, "__name__"):
        raise SingleJobError(f"{quoted(func)} has no __name__. Name the job: @singleton_job('a_name').")
    kind = AsyncSingletonJob if inspect.iscoroutinefunction(function_of(func)) else SingletonJob
    given = {key: value for key, value in settings.items() if value is not None}
    job: _Runnable[..., Any] = kind(func=func, **{"name": getattr(func, "__name__", ""), **given})
    # Leave out the function's own attributes: one called `lock` would replace the job's.
    functools.update_wrapper(cast("Callable[..., Any]", job), func, updated=())
    if kind is AsyncSingletonJob and sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(cast("Callable[..., Any]", job))  # for Django's tasks
    register(job)
    return job


def _is_method(func: Any) -> bool:
    """Whether the function looks like a method. This works before a ``classmethod`` around the job hides it."""
    if isinstance(func, classmethod):
        return True
    return bool(_class_of(func)) and next(iter(inspect.signature(func).parameters), "") in ("self", "cls")


def _class_of(func: Callable[..., Any]) -> str:
    """The qualified name of the class that the function is defined in; empty for a static method, or outside a
    class."""
    if isinstance(func, staticmethod) or inspect.ismethod(func):
        return ""
    function = inspect.unwrap(func, stop=inspect.isfunction)  # functools.cache returns an object
    if not inspect.isfunction(function):
        return ""
    place = function.__qualname__.rpartition(".")[0]
    return "" if place.endswith("<locals>") else place


def _about_method(func: Callable[..., Any]) -> str:
    return (
        f"{func.__qualname__!r} is a method, so a job would have no object to call it on. Write a function at module "
        "level that calls the method, and decorate that function with @singleton_job."
    )


@contextmanager
def job_lock(
    name: str, *, lease: timedelta | None = None, wait: timedelta | None = None, heartbeat: bool = True
) -> Iterator[Lease]:
    """Hold a lock during a block of code, which receives the ``Lease``. No run is recorded.

    Args:
        name: 1 to 200 of the characters ``a-z 0-9 _ . : -``. A job with this lock does not run meanwhile.
        lease: how long the lease lasts without a heartbeat; default: ``SINGLEJOB["LEASE"]``.
        wait: how long to wait for the lock; default: not at all.
        heartbeat: whether to send heartbeats during the block. Without them, ``lease`` must cover the whole block.

    Raises:
        LockHeld: another caller holds the lock, or this could not be decided.
        LeaseLost: the lease was lost; raised at the end of the block. Inside, ``Lease.check`` tells.
        UnsafeTransaction, DatabaseUnreachable, InvalidName: see their docstrings.
        SynchronousOnlyOperation: in an event loop; call the block in ``sync_to_async``.
        SingleJobError: ``lease``, ``wait`` or ``heartbeat`` is invalid.
    """
    owner = f"Lock {validate_own_name(name)!r}"
    validate_durations(owner, lease=lease, wait=wait)
    validate_types(owner, heartbeat=heartbeat)
    asked = LockRequest.of(name, lease=lease, heartbeat=heartbeat, wait=wait, holder=this_process())
    answer = acquire(asked)
    if isinstance(answer, Refusal):
        raise LockHeld(answer.message(name))
    try:
        with renewing(answer):
            answer.prove()
            yield answer
    except BaseException:
        with suppress(LeaseLost):  # the block's own exception takes precedence
            answer.finish()
        raise
    if not answer.finish():
        raise LeaseLost(answer.why_lost())
