from __future__ import annotations

import pytest


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param("TestCase", marks=pytest.mark.django_db),
        pytest.param("TransactionTestCase", marks=pytest.mark.django_db(transaction=True)),
    ],
)
def kind(request: pytest.FixtureRequest) -> str:
    """Each test is run in the transaction of a `TestCase`, and without one."""
    return str(request.param)
