from __future__ import annotations

import pytest

from django_singlejob import InvalidSchedule, singleton_job

FIELDS = ("minute", "hour", "day of month", "month", "day of week")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("hour", "22-2,12", "Write '22-23,0-2,12'."),
        ("month", "nov-feb", "Write 'nov-dec,jan-feb'."),
        ("month", "January-March", "Write 'jan-mar'."),
        ("day of week", "5-1", "Write '5-6,0-1'."),
        ("day of week", "Monday,?", "Write 'mon,*'."),
        ("day of month", "1,15w", "The nearest weekday is not supported: run the job on several days, and check the "),
        ("hour", "99", ""),
        ("hour", "5-", ""),
        ("day of month", "L-3", ""),
        ("minute", "*/5-10", ""),
        ("hour", "22-2/2", ""),  # two ranges with this step would leave 22 to 23, or 0, at other times
        ("day of week", "Friday-Monday/2", ""),
        ("day of week", "Monday#1", "Write 'mon#1'."),
        ("day of week", "Monday-Friday/2", "Write 'mon-fri/2'."),
        ("day of week", "FRIL", ""),  # elsewhere, it is the last Friday of the month
        ("month", "Sept", "Write 'sep'."),
        ("month", "Smarch", ""),
    ],
)
def test_what_to_write_instead(field: str, value: str, told: str) -> None:
    schedule = " ".join(value if each == field else "*" for each in FIELDS)
    with pytest.raises(InvalidSchedule) as refusal:
        singleton_job("nightly", schedule=schedule)(print)
    _, _, hint = str(refusal.value).partition(f"the {field} cannot be {value!r}.")
    assert hint.strip().startswith(told)
    assert told or not hint
