"""``resume_singletons``: see ``test_pause_singletons`` for the two together."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from django_singlejob.models.jobs import gates
from tests.contract.acts import start_run

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def test_only_what_was_paused_is_changed() -> None:
    for name in "nightly", "hourly":
        start_run(name).release()
    gates().pause("hourly")
    said = StringIO()
    call_command("resume_singletons", "hourly", "nightly", stdout=said)
    assert said.getvalue() == "Resumed 'hourly'.\n'nightly' was not paused.\n"
    assert not gates().filter(paused=True).exists()
