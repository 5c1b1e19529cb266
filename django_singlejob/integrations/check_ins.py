"""Check-ins: how Sentry's monitors hear that the run of a slot begins and ends.

A thread sends them, see ``outbox``.
"""

import logging
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db.models import Subquery
from sentry_sdk.crons import capture_checkin

from django_singlejob.integrations.cut_off import is_taken_up_again, job_of
from django_singlejob.integrations.outbox import Outbox
from django_singlejob.integrations.sentry import monitor_config, monitor_slug
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.recording import HistoryFailed, alone
from django_singlejob.models.runs import runs
from django_singlejob.process.logs import about
from django_singlejob.running.current_run import CurrentRun

if TYPE_CHECKING:
    from uuid import UUID

    from django_singlejob.models import JobLock

logger = logging.getLogger("django_singlejob")


def check_in(*, run: CurrentRun, **kwargs: Any) -> None:
    """Receive ``job_started``."""
    _put(run.job, run.lease.grant, "in_progress", is_start=True)


def check_out(*, run: CurrentRun, status: str, duration: timedelta, error: BaseException | None, **kwargs: Any) -> None:
    """Receive ``job_finished``."""
    if not is_taken_up_again(run, error):
        said = "ok" if status in ("successful", "skipped") else "error"
        _put(run.job, run.lease.grant, said, duration.total_seconds())


def check_out_dead(*, lock: "JobLock", **kwargs: Any) -> None:
    """Receive ``lock_taken_over``: its former holder will not check in any more."""
    if lock.slot and (job := job_of(lock)):
        _put(job, lock, "error")


def _put(
    job: Job, of: "Grant | JobLock", status: str, duration: float | None = None, *, is_start: bool = False
) -> None:
    """Check in. The SDK has a thread, which begins after a fork: this is why the outbox does it."""
    if of.slot and (config := monitor_config(job)):
        send = partial(
            capture_checkin,
            monitor_slug=monitor_slug(job.name),
            check_in_id=_first_token(job.name, of).hex,
            status=status,
            duration=duration,
            monitor_config=config,
        )
        _outbox.put(send, _give_up, is_start=is_start)


_outbox = Outbox("check-ins")


def _give_up(why: str) -> None:
    logger.warning("A check-in was not passed to Sentry: %s", why, extra=about())


def _first_token(job_name: str, of: "Grant | JobLock") -> "UUID":
    """The token of the run that has begun the check-in. That is another one if a signal has cut it off, without a
    word to Sentry, and this run takes up its slot. If the history does not say so, Sentry itself ends the other
    check-in when its ``max_runtime`` is over."""
    if of.attempt > 1:
        with suppress(HistoryFailed):
            return alone(partial(_token_before, job_name, of)) or of.token
    return of.token


def _token_before(job_name: str, of: "Grant | JobLock") -> "UUID | None":
    """``None`` if the run before this one was not cut off, or if its end was reported."""
    began = Subquery(runs().filter(token=of.token).values("started_at"))
    earlier = runs().filter(job_name=job_name, started_at__lt=began).order_by("-started_at")
    found = [*earlier.values_list("slot", "status", "token")[:2]]
    # The second interruption in a row was reported.
    if [status == "interrupted" for _, status, _ in found] not in ([True], [True, False]):
        return None
    slot, _, token = found[0]
    return token if slot == of.slot else None
