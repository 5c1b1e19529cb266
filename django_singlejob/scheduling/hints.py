"""What to write instead of a field of a cron expression that is not valid."""

import re
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)
# The first and the last value of each field.
_ENDS = dict(zip(FIELDS, [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)], strict=True))
_NAMES = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "day of week": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}


def is_valid(field: str, value: str) -> bool:
    """Whether the field may have this value in some month."""
    try:
        CronSim(" ".join(value if each == field else "*" for each in FIELDS), _SOME_DAY)
    except CronSimError:
        return False
    return True


def hint(field: str, value: str) -> str:
    """A sentence that says what to write instead; empty if nothing is known."""
    terms = value.split(",")
    instead = ",".join(_instead(field, term) for term in terms)
    if instead != value and is_valid(field, instead):
        return f"Write {instead!r}."
    if field == "day of month" and any(re.fullmatch(r"\d+W", term.upper()) for term in terms):
        return "The nearest weekday is not supported: run the job on several days, and check the date in it."
    return ""


def _instead(field: str, term: str) -> str:
    if term == "?":
        return "*"
    first, dash, last = term.partition("-")
    first, last = _short(field, first), _short(field, last)
    is_range = dash and _is_one(field, first) and _is_one(field, last)
    if is_range and not is_valid(field, f"{first}-{last}"):  # it goes backwards
        lowest, highest = _ENDS[field] if first.isdigit() else (_NAMES[field][0], _NAMES[field][-1])
        return f"{first}-{highest},{lowest}-{last}"
    return f"{first}{dash}{last}"


def _is_one(field: str, value: str) -> bool:
    """Whether it is a number or a name of this field, and nothing more, such as a step."""
    return is_valid(field, value) and (value.isdigit() or value.lower() in _NAMES.get(field, ()))


def _short(field: str, name: str) -> str:
    """``mon`` for ``Monday``."""
    is_long = len(name) > 3 and name[:3].lower() in _NAMES.get(field, ())
    return name[:3].lower() if is_long else name
