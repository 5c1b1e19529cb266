"""What the commands that cancel and retry have in common; their own tests have the rest."""

from __future__ import annotations

import pytest
from django.core.management import load_command_class

from django_singlejob.management.one_off_choice import OneOffCommand


@pytest.mark.parametrize("name", ["cancel_one_offs", "retry_one_offs"])
def test_both_take_the_same_criteria(name: str) -> None:
    command = load_command_class("django_singlejob", name)
    assert isinstance(command, OneOffCommand)
    given = command.create_parser("manage.py", name).parse_args(["7", "--job=a", "--job=b", "--queue=c", "--task=d"])
    assert (given.ids, given.jobs, given.queues, given.tasks) == ([7], ["a", "b"], ["c"], ["d"])
