from __future__ import annotations

import pytest
from django.db import IntegrityError, OperationalError, connection

from django_singlejob import JobInterrupted, JobTimeout, LeaseLost
from django_singlejob.database.errors import interrupt_behind

pytestmark = pytest.mark.django_db


def raised_during(*earlier: BaseException, error: BaseException) -> BaseException:
    """The error, which was raised while those before it were handled."""
    for context, each in zip(earlier, [*earlier[1:], error], strict=True):
        each.__context__ = context
    return error


@pytest.mark.parametrize("interrupt", [JobInterrupted(15), JobTimeout(), LeaseLost()], ids=repr)
def test_a_driver_whose_statement_was_cut_off_does_not_hide_why(interrupt: BaseException) -> None:
    error = raised_during(interrupt, ValueError(), error=OperationalError("cancelled"))
    assert interrupt_behind(error) is interrupt


def test_nor_does_the_drivers_own_error() -> None:
    connection.ensure_connection()
    own = connection.Database.OperationalError("cancelled")  # type: ignore[attr-defined]
    interrupt = JobInterrupted(15)
    assert interrupt_behind(raised_during(interrupt, error=own)) is interrupt


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("it is away"),
        raised_during(KeyError(), error=IntegrityError()),
        raised_during(JobInterrupted(15), error=ValueError("while it cleaned up")),
        JobInterrupted(15),
    ],
    ids=repr,
)
def test_any_other_error_is_what_it_is(error: BaseException) -> None:
    assert interrupt_behind(error) is None
