"""One record for all the slots that a command finds missed. After an outage, a record for each job would be as many
lines in a mail."""

import logging
from typing import Any, Self

from django_singlejob.jobs.slots import Misfires
from django_singlejob.locking.position import in_words
from django_singlejob.process.logs import about
from django_singlejob.signals import slot_misfired

logger = logging.getLogger("django_singlejob")

# A record names no more jobs than this.
_MOST_NAMES = 20


class MissedSlots:
    """The misfires that this process has reported since the last record. Use it as a context manager, which logs those
    that are left at its end."""

    def __init__(self) -> None:
        self._missed: dict[str, list[Misfires]] = {}

    def __enter__(self) -> Self:
        slot_misfired.connect(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        slot_misfired.disconnect(self._note)
        self.log()

    def _note(self, *, name: str, slot: Any, first: Any, count: int, reason: Any, **_: Any) -> None:
        self._missed.setdefault(name, []).append(Misfires(first, slot, count, reason))

    def log(self) -> None:
        """Log a warning, if a slot was missed since the last one."""
        missed, self._missed = self._missed, {}
        if len(missed) == 1:
            ((name, series),) = missed.items()
            extra = about(job=name, slot=series[-1].last, reason=series[-1].outcome)
            logger.warning("1 job misfired: %s (%s).", name, "; ".join(map(in_words, series)), extra=extra)
        elif missed:
            counts = {name: sum(each.number for each in series) for name, series in missed.items()}
            named = [f"{name} ({count})" for name, count in sorted(counts.items())[:_MOST_NAMES]]
            more = [f"and {len(counts) - _MOST_NAMES} more"] if len(counts) > _MOST_NAMES else []
            words = "%d jobs misfired, %d slots in all: %s."
            logger.warning(words, len(counts), sum(counts.values()), ", ".join([*named, *more]), extra=about())
