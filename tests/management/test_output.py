"""What a command writes in each format, and with `-v 0`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management.base import BaseCommand

from django_singlejob.management.output import Output

FACTS = {"at": datetime(2026, 11, 22, tzinfo=UTC), "took": timedelta(seconds=1.5), "count": 0}
PLAIN = {"at": "2026-11-22T00:00:00+00:00", "took": 1.5, "count": 0}


def written(kind: str, verbosity: int) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    output = Output(BaseCommand(out, err, no_color=True), {"format": kind, "verbosity": verbosity})
    output.line("Done.")
    output.error("Not done.")
    output.end(FACTS)
    return out.getvalue(), err.getvalue()


def test_text_has_the_lines() -> None:
    assert written("text", 1) == ("Done.\n", "Not done.\n")


def test_json_is_one_object() -> None:
    out, err = written("json", 1)
    assert (json.loads(out), err) == (PLAIN, "Not done.\n")


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_quiet_command_writes_only_errors(kind: str) -> None:
    assert written(kind, 0) == ("", "Not done.\n")
