"""What to write instead of a schedule, or of a field of a cron expression, that is not valid."""

import re
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from django_singlejob.conf import quoted

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)
#: The first and the last value of each field.
ENDS = dict(zip(FIELDS, [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)], strict=True))
_NAMES = {
    "month": "january february march april may june july august september october november december",
    "day of week": "sunday monday tuesday wednesday thursday friday saturday",
}

_REBOOT = (
    "jobs run at set times, and not when a machine or a worker starts. To start it on every machine, use systemd or "
    "cron; for one copy among them, run_singleton NAME --standby -- COMMAND."
)
_ZONE = r"""(?s)(?:CRON_)?TZ=["']?([^\s"']+)["']?\s+(.+)"""


def only_in_crontab(text: str) -> str:
    """Why only a crontab can have this schedule, and what to do instead; empty if a job can have it, or nobody can."""
    text = text.strip()
    if text == "@reboot":
        return _REBOOT
    # Most projects have no such line, and need not wait until the pattern is compiled.
    if text.startswith(("TZ=", "CRON_TZ=")) and (found := re.fullmatch(_ZONE, text)):
        zone, schedule = map(quoted, found.groups())
        return f"the time zone has a parameter of its own. Write schedule={schedule}, time_zone={zone}."
    return ""


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
        lowest, highest = ENDS[field] if first.isdigit() else (_NAMES[field][:3], _NAMES[field].split()[-1][:3])
        return f"{first}-{highest},{lowest}-{last}"
    return f"{first}{dash}{last}"


def _is_one(field: str, value: str) -> bool:
    """Whether it is a number or a name of this field, and nothing more, such as a step."""
    return is_valid(field, value) and (value.isdigit() or (value.isalpha() and len(value) == 3))


def _short(field: str, value: str) -> str:
    """``mon`` for ``Monday``, and ``mon#1`` for ``Monday#1``."""
    name = value.lower().rstrip("#/0123456789")
    is_long = len(name) > 3 and any(each.startswith(name) for each in _NAMES.get(field, "").split())
    return name[:3] + value[len(name) :] if is_long else value
