"""The documentation and the code agree: what exists is documented, and what is documented exists."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, get_overloads

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.dispatch import Signal

import django_singlejob
from django_singlejob import (
    CurrentRun,
    InvalidSchedule,
    Lease,
    Outcome,
    Reason,
    conf,
    job_lock,
    models,
    signals,
    singleton_job,
    testing,
)
from django_singlejob.jobs import schedule, slots
from django_singlejob.jobs.names import NAME_LENGTH
from django_singlejob.management import exit_status
from django_singlejob.management.commands import singleton_status
from django_singlejob.monitoring import checks, findings, health, ledger
from django_singlejob.monitoring.causes import Cause
from django_singlejob.process.logs import about
from django_singlejob.running import command, values
from django_singlejob.running.enqueue import Order
from tests import pages
from tests.children import ROOT
from tests.mirror import TESTS
from tests.monitoring import test_verdict
from tests.recipes import snippets
from tests.test_signals import SENDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *(ROOT / ".github").glob("*.md"), *DOCS.rglob("*.md")]
    if path.name not in pages.MADE
)
COMMANDS = [
    "cancel_one_offs",
    "clear_stale_locks",
    "pause_singletons",
    "prune_singletons",
    "resume_singletons",
    "retry_one_offs",
    "run_singleton",
    "singleton_adopt",
    "singleton_ledger",
    "singleton_migrate",
    "singleton_schedule",
    "singleton_status",
    "singleton_stop",
    "singleton_why",
    "singleton_worker",
]

# The README's links are absolute, since the package index shows it too.
_REPOSITORY = "django-singlejob/django-singlejob"
HOMES = [f"https://github.com/{_REPOSITORY}/blob/main/", f"https://raw.githubusercontent.com/{_REPOSITORY}/main/"]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def section(page: str, title: str = "") -> str:
    """The text under a heading of a reference page, up to the next heading. Without a title, the whole page."""
    text = (REFERENCE / page).read_text()
    if not title:
        return text
    found = re.search(rf"^#+ `?{re.escape(title)}`?\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no section {title!r}."
    return found[1]


def table(text: str, title: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    found = re.search(rf"^\| {title} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found, f"There is no table of {title!r}."
    return [[cell.strip() for cell in row.strip("|").split(" |")] for row in found[1].splitlines()]


def names(cells: str) -> list[str]:
    """What is in backquotes."""
    return re.findall(r"`([^`]+)`", cells)


def first_names(text: str, title: str) -> list[str]:
    return [name for row in table(text, title) for name in names(row[0])]


def value(cell: str) -> Any:
    return eval(cell.strip("` "), {"timedelta": timedelta})


def parser_of(name: str) -> Any:
    return load_command_class("django_singlejob", name).create_parser("manage.py", name)


# --- the reference


def test_every_public_name_stands_there_once() -> None:
    exceptions = first_names(section("python.md", "Exceptions"), "Exception")
    documented = [*re.findall(r"^##+ `(\w+)`$", section("python.md"), re.MULTILINE), *exceptions]
    assert sorted(documented) == sorted(django_singlejob.__all__)


def test_every_tool_for_tests_stands_there_with_its_arguments() -> None:
    documented = first_names(section("python.md", "Tests"), "Function")
    tools = {name: getattr(testing, name) for name in testing.__all__}
    called = {name: f"{name}({', '.join(parameters_of(tool))})" for name, tool in tools.items()}
    assert sorted(documented) == sorted(called.values())


def parameters_of(function: Callable[..., Any]) -> Iterator[str]:
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        yield name if default is parameter.empty else f"{name}={default!r}".replace("'", '"')


@pytest.mark.parametrize(
    ("function", "titles"),
    [(get_overloads(singleton_job)[-1], ["Parameter", "Other parameter"]), (job_lock, ["Parameter"])],
    ids=["singleton_job", "job_lock"],
)
def test_every_parameter_stands_there_with_its_default(function: Callable[..., Any], titles: list[str]) -> None:
    rows = [row for title in titles for row in table(section("python.md", function.__name__), title)]
    documented = {name: row[1] for row in rows for name in names(row[0])}
    parameters = inspect.signature(function).parameters
    assert sorted(documented) == sorted(parameters)
    for name, parameter in parameters.items():
        default = value(documented[name]) if documented[name] else inspect.Parameter.empty
        assert default == parameter.default, name


def test_the_everyday_parameters_come_first() -> None:
    everyday = first_names(section("python.md", "singleton_job"), "Parameter")
    others = first_names(section("python.md", "singleton_job"), "Other parameter")
    assert everyday == ["name", "schedule", "lock", "max_runtime", "retries"]
    assert others == [name for name in inspect.signature(get_overloads(singleton_job)[-1]).parameters if name in others]


def test_the_length_of_a_name_is_told() -> None:
    documented = next(row[2] for row in table(section("python.md", "singleton_job"), "Parameter") if "`name`" in row[0])
    assert f"1 to {NAME_LENGTH} " in documented


@pytest.mark.parametrize(("title", "kind"), [("current_run", CurrentRun), ("Outcome", Outcome), ("Order", Order)])
def test_every_attribute_stands_there(title: str, kind: Any) -> None:
    read_later = [name for name, member in vars(kind).items() if isinstance(member, cached_property)]
    documented = first_names(section("python.md", title), "Attribute")
    assert documented == [field.name for field in fields(kind) if field.repr] + read_later


def test_every_reason_stands_there() -> None:
    documented = [value(name) for name in first_names(section("python.md", "Reason"), "Reason")]
    assert sorted(documented) == sorted(Reason.values)


def test_every_member_of_a_lease_that_is_told_exists() -> None:
    documented = {name.removesuffix("()") for name in first_names(section("python.md", "Lease"), "Member")}
    assert documented <= {*dir(Lease), *Lease.__init__.__code__.co_names}


def test_every_setting_stands_there_with_its_default() -> None:
    documented = {names(row[0])[0]: value(row[1]) for row in table(section("settings.md"), "Key")}
    assert documented == {key: getattr(conf.Options(), field) for key, field in conf.KEYS.items()}


def test_every_command_has_a_section() -> None:
    ours = {name for name, app in get_commands().items() if app == "django_singlejob"}
    assert set(re.findall(r"^## `(\w+)`$", section("commands.md"), re.MULTILINE)) == ours == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_there(command: str) -> None:
    documented = {name.split()[0] for name in first_names(section("commands.md", command), "Option")}
    djangos = BaseCommand().create_parser("manage.py", command)._option_string_actions
    assert documented == parser_of(command)._option_string_actions.keys() - djangos.keys()


@pytest.mark.parametrize("command", ["singleton_worker", "run_singleton", "singleton_status"])
def test_the_help_has_the_options_of_every_day_first_too(command: str) -> None:
    documented = [name.split()[0] for name in first_names(section("commands.md", command), "Option")]
    assert documented == [name for name in parser_of(command)._option_string_actions if name in documented]


def test_every_limit_of_what_is_kept_stands_there() -> None:
    documented = str(table((DOCS / "recipes" / "queues.md").read_text(), "Limit"))
    assert f"nested {values.DEPTH} deep" in documented
    assert f"{values.JSON_LENGTH:,} characters of JSON" in documented
    assert f"{sys.int_info.default_max_str_digits:,} digits" in documented


def test_every_exit_status_stands_there() -> None:
    documented = [row[0] for row in table(section("commands.md", "Exit status"), "Status")]
    ours = [status for name, status in vars(exit_status).items() if name.startswith("EX_")]
    assert documented == ["0", *map(str, sorted([*ours, command.NOT_EXECUTABLE, command.NOT_FOUND])), "128+n"]


def test_every_exit_status_of_a_check_stands_there() -> None:
    documented = [row[0] for row in table(section("commands.md", "singleton_status"), "Status")]
    assert documented == [*map(str, [*health.Level, singleton_status.EX_UNKNOWN])]


def test_every_outcome_of_a_slot_stands_there_with_its_exit_status() -> None:
    documented = {names(row[0])[0]: row[2] for row in table(section("commands.md", "singleton_ledger"), "Outcome")}
    statuses = {"twice": "2"} | dict.fromkeys(ledger.MISSED, "1")
    assert [*documented.items()] == [(each, statuses.get(each, "")) for each in ledger.SlotOutcome]


def test_every_state_stands_there_with_its_level() -> None:
    documented = [
        (row[0], row[2].upper()) for row in table((DOCS / "contributors" / "verdict.md").read_text(), "State")
    ]
    assert documented == [(str(state.label), state.level.name) for state in health.State]


def test_every_kind_of_finding_stands_there() -> None:
    told = first_names(section("commands.md", "singleton_status"), "Kind")
    assert sorted(told) == sorted(findings.Trouble.values)


def test_every_cause_stands_there() -> None:
    text = (
        (DOCS / "contributors" / "commands.md").read_text().partition("The causes are ")[2].partition(". The first")[0]
    )
    assert re.findall(r"`(\w+)`", text) == Cause.values


def test_every_key_of_the_status_as_json_stands_there() -> None:
    told = first_names(section("commands.md", "singleton_status"), "Key")
    assert told == ["version", "level", "enabled", "is_cut", "findings", "jobs", "queues", "workers", "servers"]


def test_the_situations_that_need_attention_are_those_that_are_tested() -> None:
    rows = table((DOCS / "contributors" / "verdict.md").read_text(), "If")
    told = {(label.strip("*"), level) for _situation, label, level in rows if label.startswith("*")}
    kinds = {kind.value: str(kind.label) for kind in (*health.State, *findings.Trouble)}
    tested = {
        (kinds[found[0][0]], level.name.lower()) for _happen, level, found in test_verdict.SITUATIONS if len(found) == 1
    }
    assert told == tested
    assert len(rows) >= 15


def test_what_to_do_stands_there_for_each_state_that_needs_attention() -> None:
    rows = table((DOCS / "recipes" / "admin.md").read_text(), "State")
    told = [label for row in rows for label in re.findall(r"\*([^*]+)\*", row[0])]
    kinds = [*health.State, *findings.Trouble]
    assert {str(state.label) for state in health.State if state.level} <= {*told} <= {str(kind.label) for kind in kinds}
    assert len(told) == len({*told})


def test_every_outcome_of_a_misfire_stands_there() -> None:
    assert [value(name) for name in first_names(section("signals.md"), "Reason")] == slots.MisfireOutcome.values


def test_every_nickname_of_a_schedule_stands_there() -> None:
    documented = set(re.findall(r"@\w+", section("python.md", "singleton_job"))) - {"@singleton_job"}
    with pytest.raises(InvalidSchedule) as refusal:
        schedule.parse("@never")
    assert documented == set(re.findall(r"@\w+", str(refusal.value))) - {"@never"}


def test_every_attribute_of_a_log_record_stands_there_with_its_type() -> None:
    documented = {names(row[0])[0]: names(row[1])[0] for row in table(section("logging.md"), "Attribute")}
    facts = about(job="a", lock="a", run=1, fence=1, slot=datetime.now(UTC), reason="held", token="1")
    assert documented == {name: type(fact).__name__ for name, fact in facts.items()}


def test_every_signal_stands_there() -> None:
    ours = [name for name, thing in vars(signals).items() if isinstance(thing, Signal)]
    assert sorted(first_names(section("signals.md"), "Signal")) == sorted(ours)


def test_every_signal_stands_there_with_its_sender() -> None:
    documented = {names(row[0])[0]: names(row[1])[0] for row in table(section("signals.md"), "Signal")}
    assert documented == {name: sender.__name__ for name, sender in SENDERS.items()}


@pytest.mark.parametrize(
    "model",
    [models.JobLock, models.JobStatus, models.JobRun, models.OneOffJob, models.JobNote, models.WorkerPass],
    ids=lambda model: model.__name__,
)
def test_every_field_stands_there(model: Any) -> None:
    documented = first_names(section("models.md", model.__name__), "Field")
    assert documented == [field.name for field in model._meta.get_fields()]


@pytest.mark.parametrize(
    ("model", "field"), [(models.JobRun, "status"), (models.JobRun, "trigger"), (models.OneOffJob, "status")]
)
def test_every_choice_stands_there(model: Any, field: str) -> None:
    rows = table(section("models.md", model.__name__), "Field")
    meaning = next(row[1] for row in rows if names(row[0]) == [field])
    assert {value for value, _ in model._meta.get_field(field).choices} <= set(names(meaning))


def test_every_check_stands_there() -> None:
    # Not imported: the backend is for Django 6.0 and newer.
    sources = [inspect.getsource(checks), (ROOT / "django_singlejob" / "tasks" / "backend.py").read_text()]
    ours = set(re.findall(r"singlejob\.[EW]\d+", "".join(sources)))
    documented = first_names(section("checks.md"), "Id")
    assert documented == sorted(ours)


# --- the snippets


@cache
def run_by_tests() -> frozenset[snippets.Key]:
    return frozenset(key for path in TESTS.rglob("*.py") for key in snippets.run_by(path))


@pytest.mark.parametrize("page", snippets.PAGES)
def test_a_test_runs_every_snippet(page: str) -> None:
    assert not sorted(snippets.snippets(page).keys() - run_by_tests())


def test_no_test_names_a_snippet_that_is_gone() -> None:
    assert not sorted(run_by_tests() - {key for page in snippets.PAGES for key in snippets.snippets(page)})


# --- every page


def blocks(page: Path, language: str) -> Iterator[str]:
    for _, found, text in re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", page.read_text(), re.DOTALL | re.MULTILINE):
        if found == language:
            yield dedent(text)


@every_page
def test_python_compiles_and_imports_what_exists(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, str(page), "exec")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "django_singlejob":
                names: dict[str, Any] = {}
                exec(ast.unparse(node), names)
                assert {alias.asname or alias.name for alias in node.names} <= names.keys()


@every_page
def test_command_lines_can_be_parsed(page: Path) -> None:
    for text in [*blocks(page, "console"), *blocks(page, "text")]:
        for name, arguments in re.findall(rf"manage\.py ({'|'.join(COMMANDS)})\b(.*)", text):
            words = takewhile(lambda word: word not in ("&&", ">"), shlex.split(arguments))
            assert parser_of(name).parse_args(list(words))


#: Those that the pages say a project has.
COMMANDS_OF_PROJECT = {"send_queued_mail"}


@every_page
def test_commands_exist(page: Path) -> None:
    documented = set(re.findall(r"manage\.py ([a-z_]+)", page.read_text()))
    assert documented <= {*get_commands(), *COMMANDS_OF_PROJECT}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        ours = next((target.removeprefix(home) for home in HOMES if target.startswith(home)), None)
        if ours is None and target.startswith(("https://", "http://")):
            continue
        path, _, anchor = (ours or target).partition("#")
        there = ((ROOT if ours else page.parent) / path).resolve() if path else page
        assert there.is_file(), target
        assert not anchor or anchor in anchors(there), target


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())  # type: ignore[index]
    assert set(re.findall(r"(?:^\s*\$ |`)make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets


def test_every_page_of_a_user_is_in_the_navigation() -> None:
    users = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    assert {path for path in users if not path.startswith("contributors/")} == {page.path for page in pages.pages()}
