"""The check for django-health-check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from asgiref.sync import async_to_sync
from health_check.exceptions import ServiceUnavailable

import django_singlejob
from django_singlejob import singleton_job
from django_singlejob.integrations.health_check import SingleJobs
from django_singlejob.models import JobStatus

if TYPE_CHECKING:
    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True)


def test_what_is_well_or_only_a_warning_passes() -> None:
    singleton_job("nightly", schedule="@daily")(print)
    assert django_singlejob.status().level == "warning"
    SingleJobs().run()


def test_what_is_critical_fails_and_names_nothing() -> None:
    singleton_job("nightly")(print)
    JobStatus.objects.bulk_create([JobStatus(name="nightly", consecutive_failures=1)])
    with pytest.raises(ServiceUnavailable) as failure:
        SingleJobs().run()
    assert failure.value.message == "1 failing"


@committed
def test_a_database_that_is_away_fails(database_away: Away) -> None:
    with database_away(), pytest.raises(ServiceUnavailable, match=r"The database does not answer\."):
        SingleJobs().run()


@committed
def test_it_is_a_check_that_the_library_can_run() -> None:
    result = async_to_sync(SingleJobs().get_result)()
    assert result.error is None
    assert result.check.labels == {"check": "SingleJobs"}
