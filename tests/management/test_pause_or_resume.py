"""What the commands that pause and resume have in common; their own tests have the rest."""

from __future__ import annotations

import pytest
from django.core.management import load_command_class

from django_singlejob.management.pause_or_resume import GateCommand


@pytest.mark.parametrize("name", ["pause_singletons", "resume_singletons"])
def test_both_take_names_or_all(name: str) -> None:
    command = load_command_class("django_singlejob", name)
    assert isinstance(command, GateCommand)
    parser = command.create_parser("manage.py", name)
    assert parser.parse_args(["nightly", "hourly"]).names == ["nightly", "hourly"]
    assert parser.parse_args(["--all"]).all
