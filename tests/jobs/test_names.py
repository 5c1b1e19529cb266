"""Which names jobs and locks may have."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from django_singlejob import InvalidName, job_lock, singleton_job
from django_singlejob.jobs import registry
from django_singlejob.jobs.names import WORKER_LOCK, validate_name, validate_own_name

pytest_plugins = "tests.fixtures"
# No test is marked `django_db`, because registering and discovering jobs uses no database.
pytestmark = pytest.mark.usefixtures("fresh_process")


@given(st.text(max_size=202) | st.from_regex(r"[a-z0-9][a-z0-9_.:-]{0,202}", fullmatch=True))
def test_a_name_is_itself_or_is_refused_with_what_to_do(name: str) -> None:
    if len(name) <= 200 and re.fullmatch(r"[a-z0-9][a-z0-9_.:-]*", name):
        assert validate_name(name) == name
    else:
        with pytest.raises(InvalidName, match="begin with a letter or a digit"):
            validate_name(name)


def test_a_name_without_end_makes_no_message_without_end() -> None:
    with pytest.raises(InvalidName) as refusal:
        validate_name("n" * 1_000_000)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("name", [f"{WORKER_LOCK}.1", "django_singlejob.prune", "django_singlejob.x"])
def test_our_own_names_are_for_nobody_else(name: str) -> None:
    assert validate_name(name) == name
    with pytest.raises(InvalidName, match=r"is reserved: .* Choose another name\."):
        singleton_job(name)(lambda: None)
    with pytest.raises(InvalidName, match="is reserved"):
        singleton_job("mine", lock=name)(lambda: None)
    with pytest.raises(InvalidName, match="is reserved"), job_lock(name):
        pass
    assert [*registry.all_jobs()] == []


def test_a_name_that_only_resembles_ours_is_not_reserved() -> None:
    assert validate_own_name("django_singlejob") == "django_singlejob"
