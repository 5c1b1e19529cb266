"""The pytest plugin. It has one fixture, and does nothing for tests that do not use that."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_lock_left() -> Iterator[None]:
    """Fail the test if it leaves a lock behind that this process still holds, and release that."""
    yield
    # A process that has not imported it holds no lock. Django may not even be set up.
    at_exit = sys.modules.get("django_singlejob.locking.at_exit")
    if at_exit and at_exit.may_hold_a_lock():
        at_exit.release_at_exit()
        pytest.fail(
            "This test has left a lock behind. Leave each job_lock() block, and end each thread, before it ends."
        )
