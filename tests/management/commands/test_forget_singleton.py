"""``forget_singleton``: its output and its exit status."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_singlejob import job_lock, singleton_job
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE
from django_singlejob.querysets.jobs import gates
from tests.contract.acts import take

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]


def forget(*names: str, **options: Any) -> tuple[int, str, str]:
    """The exit status, standard output and standard error."""
    out, err = StringIO(), StringIO()
    try:
        call_command("forget_singleton", *names, stdout=out, stderr=err, no_color=True, **options)
    except SystemExit as done:
        return int(str(done.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def use(*names: str) -> None:
    for name in names:
        with job_lock(name):
            pass


def test_names_are_forgotten() -> None:
    use("pipe", "pipe2")
    assert forget("pipe", "pipe2") == (0, "Forgot 'pipe'.\nForgot 'pipe2'.\n", "")
    assert not gates().filter(name__startswith="pipe").exists()


def test_it_can_be_quiet() -> None:
    use("pipe")
    assert forget("pipe", verbosity=0) == (0, "", "")


def test_json_has_it_all() -> None:
    use("pipe")
    status, out, err = forget("pipe", "pipe2", format="json")
    (error,) = (facts := json.loads(out)).pop("errors")
    assert (status, facts) == (EX_USAGE, {"forgotten": ["pipe"]})
    assert (error["name"], error["reason"], f"{error['message']}\n") == ("pipe2", "unknown", err)


def test_a_name_that_nobody_knows_is_an_error() -> None:
    status, out, err = forget("pipe")
    assert (status, out) == (EX_USAGE, "")
    assert err == "'pipe' was not forgotten: no job or lock has this name (singleton_status lists the names).\n"


def test_a_job_of_the_code_is_an_error() -> None:
    singleton_job("nightly")(lambda: None)()
    status, _, err = forget("nightly")
    assert status == EX_USAGE
    assert "remove it from the code first, or pause it" in err


def test_what_is_held_is_left_and_the_others_are_forgotten() -> None:
    use("pipe")
    lease = take("busy")
    status, out, err = forget("busy", "pipe")
    assert (status, out) == (EX_TEMPFAIL, "Forgot 'pipe'.\n")
    assert err == "'busy' was not forgotten: its lock is held (wait until it is released, or clear it).\n"
    lease.release()
