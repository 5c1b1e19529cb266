"""What is read of a column that holds what Python cannot."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.utils import timezone

from django_singlejob.clock import CENTURY, DBNow
from django_singlejob.fields import FIRST, LAST
from django_singlejob.models import JobLock, JobRun, JobStatus
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.runs import runs
from tests.contract.acts import gate, lock, start_run
from tests.impossible import any_dates, spoil

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

BEYOND: dict[str, dict[str, Any]] = {
    "sqlite": {"0001-01-01 00:00:00": FIRST, "9999-12-31 23:59:59.999999": LAST, "nonsense": FIRST},
    "postgresql": {
        "0001-01-01 00:00:00": FIRST,
        "0044-03-15 12:00:00 BC": FIRST,
        "-infinity": FIRST,
        "infinity": LAST,
        "294276-12-31 00:00:00": LAST,
    },
    "mysql": {"0001-01-01 00:00:00": FIRST, "9999-12-31 23:59:59.999999": LAST, "0000-00-00 00:00:00": FIRST},
}


@pytest.fixture(autouse=True)
def a_run(fresh_process: None) -> Iterator[None]:  # which comes later otherwise, and forgets nothing held before
    start_run()
    with any_dates():
        yield


def test_an_instant_saturates() -> None:
    for text, instant in BEYOND[connection.vendor].items():
        assert spoil(lock(), "acquired_at", text)
        read = JobLock.objects.get().acquired_at
        assert read == instant, text
        assert list(JobLock.objects.values_list("acquired_at", flat=True)) == [instant]
        # No time zone, and no minute more or less, makes it overflow.
        timezone.localtime(read, timezone.get_fixed_timezone(-14 * 60)), timezone.localtime(read - timedelta(days=1))


def test_one_that_is_missing_stays_missing() -> None:
    assert gate().next_slot is None
    assert list(gates().filter(name="nightly").values_list("next_slot", flat=True)) == [None]
    assert runs().filter(finished_at=None).count() == 1


def test_an_instant_that_makes_sense_stays_as_it_is() -> None:
    JobRun.objects.update(started_at=DBNow())
    with connection.cursor() as cursor:
        cursor.execute("SELECT started_at FROM django_singlejob_jobrun")
        (stored,) = cursor.fetchone()
    read = JobRun.objects.get().started_at
    assert f"{read:%F %T.%f}"[:19] == f"{stored}"[:19]


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_duration_saturates(sign: str) -> None:
    ages = f"{sign}10000 years" if connection.vendor == "postgresql" else int(f"{sign}315576000000000000")
    assert spoil(gate(), "mean_duration", ages)
    assert gate().mean_duration == (-CENTURY if sign else CENTURY)
    assert spoil(gate(), "mean_duration", "1 microsecond" if connection.vendor == "postgresql" else 1)
    assert gate().mean_duration == timedelta(microseconds=1)
    gates().update(mean_duration=None)
    assert gate().mean_duration is None


def test_json_that_python_refuses_is_its_text() -> None:
    number = "1" * 5000
    assert spoil(lock(), "queues", number)
    assert str(lock().queues).strip('"') == number


def test_to_migrations_they_are_djangos_own() -> None:
    for model, name in ((JobLock, "acquired_at"), (JobStatus, "mean_duration"), (JobLock, "queues")):
        _name, path, _args, _kwargs = model._meta.get_field(name).deconstruct()  # type: ignore[union-attr]
        assert path.startswith("django.db.models.")
