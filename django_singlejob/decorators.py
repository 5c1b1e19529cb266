"""The two ways in: ``@singleton_job`` for a function, ``job_lock`` for a block."""

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from django_singlejob import runner
from django_singlejob.exceptions import LeaseLost, LockHeld, SingleJobError
from django_singlejob.holder import this_process
from django_singlejob.interrupt import Window
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.heartbeat import kept_alive
from django_singlejob.locking.lease import Lease
from django_singlejob.locking.request import LockRequest, Refusal
from django_singlejob.names import validate_own_name
from django_singlejob.one_offs.enqueue import Order
from django_singlejob.registry import Job, OnHeld, function_of, register, validate_durations
from django_singlejob.scheduling.slots import CatchUp

if TYPE_CHECKING:
    from django_singlejob.models import OneOffJob

P = ParamSpec("P")
R = TypeVar("R")

Skippable = Literal[runner.Skipped.SKIPPED]


class _Runnable(Job, Generic[P, R]):
    __wrapped__: Callable[P, Any]
    # Django's templates call whatever can be called: a page that only names a job would run it.
    do_not_call_in_templates = True

    def __set_name__(self, owner: type, name: str) -> None:
        """Refuse to be a method, which has no instance when the job is run. Raises ``SingleJobError``, of which Python
        3.11 makes a ``RuntimeError``."""
        if _class_of(self.func) == owner.__qualname__:
            raise SingleJobError(_about_method(self.func))

    def run(self, /, *args: P.args, **kwargs: P.kwargs) -> runner.Outcome:
        """Run the job, and tell what became of it. Raises what the job raises."""
        return runner.run(self, args, kwargs)

    def using(self, *, run_after: datetime | None = None, priority: int = 0, queue_name: str = "default") -> Order:
        """For a one-off that is not to be run as soon as somebody can: see ``Order``. Raises ``InvalidOrder``."""
        return Order(
            job_name=self.name,
            max_attempts=self.most_attempts,
            queue_name=queue_name,
            priority=priority,
            run_after=run_after,
        )

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> "OneOffJob":
        """Have a worker run the job once, as soon as one can: see ``Order.enqueue``."""
        return self.using().enqueue(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> "OneOffJob":
        """The same, for an ``async def``."""
        return await self.using().aenqueue(*args, **kwargs)


class SingletonJob(_Runnable[P, R]):
    """A function that runs under its lock when it is called. ``__wrapped__`` is the plain function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R | Skippable:
        """Run the job: its value, or ``SKIPPED``."""
        return cast("R | Skippable", self.run(*args, **kwargs).value)


class AsyncSingletonJob(_Runnable[P, R]):
    """An ``async def`` that runs under its lock when it is awaited. ``__wrapped__`` is the plain function."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R | Skippable:
        """Run the job: its value, or ``SKIPPED``."""
        outcome = await runner.run_async(self, args, kwargs)
        return cast("R | Skippable", outcome.value)


class _Decorator(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, func: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncSingletonJob[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> SingletonJob[P, R]: ...


@overload
def singleton_job(  # type: ignore[overload-overlap]
    name: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncSingletonJob[P, R]: ...
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
    rerun_abandoned: bool = True,
    max_attempts: int = 3,
    retries: int = 0,
    retry_delay: timedelta = timedelta(minutes=1),
    description: str | None = None,
) -> _Decorator: ...
def singleton_job(name: Any = None, **settings: Any) -> Any:
    """Make a function, or an ``async def``, a job: of all servers only one runs it at a time.

    Calling it runs it under its lock and returns its value, or ``SKIPPED`` (which is false) if it did not run. Its
    exception reaches the caller unchanged. Locks are not re-entrant: a job that calls itself is told ``SKIPPED``.
    ``job.run(...)`` tells more; ``job.__wrapped__`` is the plain function. Nothing touches the database before the
    first call.

    Args:
        name: unique over the project; default: the function's name. 1 to 200 of ``a-z 0-9 _ . : -``.
        schedule: when ``run_singleton`` and ``singleton_worker`` run it: a cron expression of five fields or
            ``@hourly @daily @weekly @monthly @yearly``, or a ``timedelta``, whose multiples since the Unix epoch are
            its slots. Each slot is run once. Without one it runs whenever it is called.
        time_zone: the IANA name of the zone of the cron expression; default: ``settings.TIME_ZONE``.
        catch_up: what is done about slots that nobody ran: ``"none"``; ``"latest"``, one run for all of them;
            ``"all"``, a run each, oldest first, of the newest ``SINGLEJOB["MAX_CATCH_UP"]``.
        misfire_grace: how late a slot may be run and still count as in time; default: 5 minutes. Past it, it is a
            misfire: with ``catch_up="none"`` it is not run.
        min_interval: no new run sooner than this after the last one started.
        lock: the lock's name, when several jobs must exclude each other; default: the job's name.
        lease: how long the right lasts without a sign of life; default: ``SINGLEJOB["LEASE"]``.
        heartbeat: whether signs of life are sent meanwhile. Without them ``lease`` must cover the whole run.
        max_runtime: past it ``JobTimeout`` is raised in the job's thread.
        on_held: ``"skip"`` or ``"raise"`` (``LockHeld``), when somebody else has the lock.
        wait: keep trying that long first.
        rerun_abandoned: whether a run whose holder died is run again by whoever takes over.
        max_attempts: how often at most.
        retries: how often it is run again after an exception.
        retry_delay: how long after the first one; twice as long after each further one, up to a day.
        description: for people; default: the first line of the docstring.

    Raises:
        InvalidName, InvalidSchedule, DuplicateJob, SingleJobError: at registration, for what can never work.
    """
    if callable(name) or isinstance(name, classmethod):
        return _registered(name, {})
    if name is not None:
        settings["name"] = name
    return lambda func: _registered(func, settings)


def _registered(func: Callable[..., Any], settings: dict[str, Any]) -> Job:
    if _is_method(func):
        raise SingleJobError(_about_method(func))
    if not callable(func):
        raise SingleJobError(f"@singleton_job is for functions, not for {func!r}.")
    if "name" not in settings and not hasattr(func, "__name__"):
        raise SingleJobError(f"{func!r} has no name of its own: use @singleton_job('a_name').")
    kind = AsyncSingletonJob if inspect.iscoroutinefunction(function_of(func)) else SingletonJob
    given = {key: value for key, value in settings.items() if value is not None}
    job: _Runnable[..., Any] = kind(
        func=func, **{"name": getattr(func, "__name__", ""), "description": _first_line(func), **given}
    )
    # Not the function's own attributes: one called `lock` would replace the job's.
    functools.update_wrapper(cast("Callable[..., Any]", job), func, updated=())
    if kind is AsyncSingletonJob and sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(job)  # Django's tasks ask for it
    register(job)
    return job


def _is_method(func: Any) -> bool:
    """Whether it is one by its looks. That is known before a ``classmethod`` is put over the job, and hides it."""
    if isinstance(func, classmethod):
        return True
    return bool(_class_of(func)) and next(iter(inspect.signature(func).parameters), "") in ("self", "cls")


def _class_of(func: Callable[..., Any]) -> str:
    """The qualified name of the class in whose body the function is defined; empty: in none, or as a static method."""
    if isinstance(func, staticmethod) or inspect.ismethod(func):
        return ""
    function = inspect.unwrap(func, stop=inspect.isfunction)  # functools.cache makes an object of one
    if not inspect.isfunction(function):
        return ""
    place = function.__qualname__.rpartition(".")[0]
    return "" if place.endswith("<locals>") else place


def _about_method(func: Callable[..., Any]) -> str:
    return (
        f"{func.__qualname__!r} is a method, and nobody knows on which object a job would call it. Write a function at "
        "the top of the module that calls the method, and decorate that one with @singleton_job."
    )


def _first_line(func: Callable[..., Any]) -> str:
    return (inspect.getdoc(func) or "").partition("\n")[0]


@contextmanager
def job_lock(
    name: str, *, lease: timedelta | None = None, wait: timedelta | None = None, heartbeat: bool = True
) -> Iterator[Lease]:
    """Hold a lock for a block of code, which is handed the ``Lease``. Records no run.

    Args:
        name: 1 to 200 of ``a-z 0-9 _ . : -``; a job's name excludes that job.
        lease: how long the right lasts without a sign of life; default: ``SINGLEJOB["LEASE"]``.
        wait: keep trying that long.
        heartbeat: whether signs of life are sent meanwhile. Without them ``lease`` must cover the whole block.

    Raises:
        LockHeld: somebody else has it.
        LeaseLost: in the block, when the lease is lost, or at its end.
        UnsafeTransaction, DatabaseUnreachable, InvalidName: see there.
        SingleJobError: ``lease`` or ``wait`` can never work.
    """
    validate_durations(f"Lock {validate_own_name(name)!r}", lease=lease, wait=wait)
    with Window() as window:
        asked = LockRequest.of(name, lease=lease, heartbeat=heartbeat, wait=wait, holder=this_process())
        answer = acquire(asked)
        if isinstance(answer, Refusal):
            raise LockHeld(runner.held_message(name, answer))
        try:
            with kept_alive(answer, window), closing(window), closing(window):  # twice: see Window.open
                window.open()
                answer.prove()
                yield answer
        except BaseException:
            with suppress(LeaseLost):  # the block's own exception goes first
                answer.finish()
            raise
        if not answer.finish():
            raise LeaseLost(answer.why_lost())
