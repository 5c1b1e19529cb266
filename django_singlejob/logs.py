"""The facts that every log record carries beside its text, so that a machine need not parse the text.

They are flat attributes with a prefix, not one dict: JSON formatters write each as a field of its own, structlog's
``ExtraAdder`` can allow each by name, Sentry's logs can be searched by them, and a format string can name them. The
prefix keeps them apart from the attributes of ``LogRecord`` and from those of other packages.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from django_singlejob.locking.grant import Grant
    from django_singlejob.models import JobLock

PREFIX = "singlejob_"


def about(
    *,
    job: str | None = None,
    lock: str | None = None,
    run: int | None = None,
    fence: int | None = None,
    slot: datetime | None = None,
    reason: str | BaseException | None = None,
    token: "UUID | str | None" = None,
) -> dict[str, Any]:
    """The ``extra`` of a record. Facts that are unknown, or do not apply, have no key.

    ``reason``: a value of ``Reason`` or ``MisfireOutcome``, or the exception, of which the class is recorded.
    """
    facts = {
        "job": job or None,
        "lock": lock or None,
        "run": run,
        "fence": fence,
        "slot": slot and slot.astimezone(UTC).isoformat(),
        "reason": type(reason).__name__ if isinstance(reason, BaseException) else _text(reason),
        "token": _text(token),
    }
    return {PREFIX + name: fact for name, fact in facts.items() if fact is not None}


def _text(value: object) -> str | None:
    return str(value) if value else None


def about_grant(grant: "Grant", *, job: str = "", reason: str | BaseException | None = None) -> dict[str, Any]:
    """The same of our own run or lock. ``job``: what runs under it, if the grant does not know."""
    return about(
        job=job or grant.request.job_name,
        lock=grant.request.name,
        run=grant.entry.pk if grant.entry else None,
        fence=grant.fence,
        slot=grant.slot,
        reason=reason,
        token=grant.token,
    )


def about_lock(lock: "JobLock", *, reason: str | BaseException | None = None) -> dict[str, Any]:
    """The same of a lock that another process holds or held."""
    return about(job=lock.job_name, lock=lock.name, slot=lock.slot, reason=reason, token=lock.token)
