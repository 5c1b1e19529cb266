"""The facts that every log record carries beside its text, so that a machine need not parse the text.

They are flat attributes with a prefix, not one dict: JSON formatters write each as a field of its own, structlog's
``ExtraAdder`` can allow each by name, Sentry's logs can be searched by them, and a format string can name them. The
prefix keeps them apart from the attributes of ``LogRecord`` and from those of other packages.
"""

import logging
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.utils.translation import override

from django_singlejob.process.escaping import cut, shown

if TYPE_CHECKING:
    from uuid import UUID

logger = logging.getLogger("django_singlejob")

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
        "job": _text(job),
        "lock": _text(lock),
        "run": run,
        "fence": fence,
        "slot": slot and slot.astimezone(UTC).isoformat(),
        "reason": _text(type(reason).__name__ if isinstance(reason, BaseException) else reason),
        "token": _text(token),
    }
    return {PREFIX + name: fact for name, fact in facts.items() if fact is not None}


def _text(value: object) -> str | None:
    return shown(value) if value else None


def in_english(text: object) -> str:
    """A text that is translated elsewhere. Logs and commands are the same in all languages, for programs read them."""
    with override(None):
        return str(text)


def all_loggers() -> dict[str, logging.Logger]:
    """The loggers of this process, by name. The root's name is empty."""
    others = logging.root.manager.loggerDict.items()
    return {"": logging.root, **{name: logger for name, logger in others if isinstance(logger, logging.Logger)}}


def flush_handlers() -> None:
    """Have the handlers of all loggers write what they still have."""
    for handler in {handler for logger in all_loggers().values() for handler in logger.handlers}:
        with suppress(Exception):  # it may be in any state
            handler.flush()


class _Shown:
    """An argument of a record, as text that cannot forge a line of the log, nor fill it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return shown(cut(str(self._value)))

    def __repr__(self) -> str:
        return shown(cut(repr(self._value)))


def escape(record: logging.LogRecord) -> bool:
    """Escape what the record's arguments contain, such as a host name from the database, and the traceback, with the
    messages and notes of exceptions. A filter: always ``True``."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_harmless, record.args))
    if record.exc_info and not record.exc_text:
        with suppress(Exception):  # it may be too deep
            lines = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            # No further line begins as a record does. A formatter prints this, and not what it would make itself.
            record.exc_text = shown(lines, keep="\n").replace("\n", "\n  ")
    return True


def _harmless(value: object) -> object:
    """The value itself if it needs no escaping: Sentry and others want to know its type."""
    try:
        is_harmless = all(shown(cut(text)) == text for text in (str(value), repr(value)))
    except Exception:  # what cannot be printed is up to the handler
        return value
    return value if is_harmless else _Shown(value)


# A filter of the logger, not of a handler: the project chooses the handlers. Configuring logging does not remove it.
logger.addFilter(escape)
