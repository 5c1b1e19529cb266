"""``H`` in a cron expression, as in Jenkins: a value that a hash of the job's name chooses."""

import re
from hashlib import sha256

from django_singlejob.conf import quoted
from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.hints import ENDS, FIELDS

# What an H alone may stand for, if that is less than the field allows: a day that each month has, and Sunday once.
_USUAL_ENDS = ENDS | {"day of month": (1, 28)}
_EXPLICIT_ENDS = ENDS | {"day of week": (0, 7)}
_H = r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?"
# An H that is not part of a name, such as MARCH.
_ANY_H = r"(?<![a-z])H(?![a-z])"


def without_h(text: str, name: str) -> str:
    """The cron expression of the job with that name, in which each ``H`` is replaced by what it stands for.

    Raises ``InvalidSchedule`` if an ``H`` is where it cannot be.
    """
    fields = text.split()
    # Most projects have no H, and need not wait until the patterns are compiled.
    if len(fields) != len(FIELDS) or "H" not in text.upper() or not _has_h(text):
        return text
    return " ".join(_field(text, name, *each) for each in zip(FIELDS, fields, strict=True))


def _field(text: str, name: str, field: str, value: str) -> str:
    return ",".join(_term(text, name, field, term) if _has_h(term) else term for term in value.split(","))


def _has_h(text: str) -> bool:
    return re.search(_ANY_H, text, re.IGNORECASE) is not None


def _term(text: str, name: str, field: str, term: str) -> str:
    found = re.fullmatch(_H, term, re.IGNORECASE)
    if found is None:
        raise _invalid(text, field, term)
    usual_low, usual_high = _USUAL_ENDS[field]
    low, high = int(found[1] or usual_low), int(found[2] or usual_high)
    size = high - low + 1
    step = int(found[3] or size)
    lowest, highest = _EXPLICIT_ENDS[field]
    if not (lowest <= low <= high <= highest and 1 <= step <= size):
        raise _invalid(text, field, term)
    first = low + _number(name, field) % step
    return f"{first}-{high}/{step}" if first + step <= high else str(first)


def _number(name: str, field: str) -> int:
    # Not hash(), which differs from process to process. The fields of a job do not depend on each other.
    return int.from_bytes(sha256(f"{name}\n{field}".encode()).digest()[:8])


def _invalid(text: str, field: str, term: str) -> InvalidSchedule:
    low, high = _EXPLICIT_ENDS[field]
    return InvalidSchedule(
        f"{quoted(text)} is not a valid schedule: the {field} cannot be {quoted(term)}. Write H, H/2, H({low}-{high}) "
        f"or H({low}-{high})/2, with other numbers in that range: H stands alone, or in a list."
    )
