"""How a task is retried: ``@retried`` notes it on the task's function, where the backend and the engine find it."""

from collections.abc import Callable
from datetime import timedelta
from inspect import isfunction
from typing import Any, NamedTuple, TypeVar

from django_singlejob.conf import quoted
from django_singlejob.exceptions import SingleJobError
from django_singlejob.jobs.registry import (
    MOST_ATTEMPTS,
    RETRIED,
    Job,
    delay_before_retry,
    validate_durations,
    validate_types,
)

F = TypeVar("F", bound=Callable[..., Any])


class Retries(NamedTuple):
    """The options of ``@retried``."""

    retries: int
    retry_delay: timedelta
    on: tuple[type[Exception], ...]

    def delay_after(self, failure: BaseException, attempt: int) -> timedelta | None:
        """How long to wait before the next attempt. ``None`` if this one, which raised ``failure``, was the last."""
        return delay_before_retry(attempt, self.retries, self.retry_delay) if isinstance(failure, self.on) else None


def retries_of(func: object) -> Retries | None:
    """How the task with this function is retried. ``None`` if it is not, because it has no ``@retried``."""
    found = getattr(func, RETRIED, None)
    return found if isinstance(found, Retries) else None


def retried(
    retries: int,
    *,
    retry_delay: timedelta | None = None,
    on: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Callable[[F], F]:
    """Have a task retried that raises an exception. Write it below ``@task``. It returns the function itself.

    Args:
        retries: how many times to retry the task.
        retry_delay: how long to wait before the first retry (default: a minute); doubled for each further retry, up to
            a day.
        on: the exceptions after which to retry it, a class or a tuple of classes. A result that cannot be stored is
            retried only if ``TypeError`` itself is named.

    A task that a user has stopped is not retried. While it waits for its retry, no thread waits with it.

    Raises:
        SingleJobError: an argument is invalid; or what is decorated is a job, or not a function.
    """
    validate_types("retried()", retries=retries)
    validate_durations("retried()", retry_delay=retry_delay)
    if not 0 <= retries <= MOST_ATTEMPTS:
        raise SingleJobError(
            f"retried(): retries is {quoted(retries)}, but must be 0 or more, and {MOST_ATTEMPTS} at most."
        )
    kinds: tuple[Any, ...] = on if isinstance(on, tuple) else (on,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise SingleJobError(
            f"retried(): on is {quoted(on)}, but must be a subclass of Exception, or a tuple of such classes."
        )

    def note(func: F) -> F:
        if isinstance(func, Job):
            raise SingleJobError(
                f"{func.name!r} is a job, which has retries of its own. Remove @retried, and write "
                f"@singleton_job(retries={retries})."
            )
        if not isfunction(func):
            raise SingleJobError(f"@retried decorates a function, and not {quoted(func)}. Write it below @task.")
        vars(func)[RETRIED] = Retries(retries, timedelta(minutes=1) if retry_delay is None else retry_delay, kinds)
        return func

    return note
