"""What a command writes in each format, and with `-v 0`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import BytesIO, StringIO, TextIOWrapper

import pytest

from django_singlejob.management.arguments import CallableCommand
from django_singlejob.management.output import Output, as_json

FACTS = {"at": datetime(2026, 11, 22, tzinfo=UTC), "took": timedelta(seconds=1.5), "count": 0}
PLAIN = {"at": "2026-11-22T00:00:00+00:00", "took": 1.5, "count": 0}


def written(kind: str, verbosity: int) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    output = Output(CallableCommand(out, err, no_color=True), {"format": kind, "verbosity": verbosity})
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


# --- what a terminal must not get

HOSTILE = "web\x1b[31m\nforged\x7f\u202e\ud800 é"
ESCAPED = r"web\x1b[31m\nforged\x7f\u202e\ud800 é"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_stays_one_line() -> None:
    out, err = StringIO(), StringIO()
    output = Output(CallableCommand(out, err), {"format": "text", "verbosity": 1})
    output.line(HOSTILE)
    output.error(HOSTILE)
    assert (out.getvalue(), err.getvalue()) == (f"{ESCAPED}\n", f"{ESCAPED}\n")


def test_several_lines_stay_lines_and_colours_stay_djangos_own() -> None:
    terminal = Terminal()
    command = CallableCommand(stderr=terminal, force_color=True)
    command.stderr.write(HOSTILE)
    escaped = ESCAPED.replace(r"\n", "\n")
    assert terminal.getvalue() == command.style.ERROR(f"{escaped}\n")
    assert terminal.getvalue() != f"{escaped}\n"


def test_json_comes_back_as_it_was_and_nothing_in_it_acts_on_a_terminal() -> None:
    facts = {"host": HOSTILE, HOSTILE: ["\x85\u2028\U000e0041"]}
    assert json.loads(as_json(facts)) == facts
    assert as_json(facts).replace("\n", "").isprintable()


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", r"h\xe9\u20ac"), ("latin-1", r"hé\u20ac"), ("utf-8", "hé€")])
def test_a_terminal_gets_what_it_can_show(encoding: str, shown: str) -> None:
    raw = BytesIO()
    out = TextIOWrapper(raw, encoding)
    CallableCommand(out).stdout.write("hé€")
    out.flush()
    assert raw.getvalue().decode(encoding) == f"{shown}\n"
