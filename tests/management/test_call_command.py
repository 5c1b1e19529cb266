"""The commands as code calls them: values of Python mean what the same words mean on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand

from django_singlejob import singleton_job
from django_singlejob.models.one_offs import one_offs
from tests.contract.acts import without_seconds

if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterator

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")

COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_singlejob")

#: Values, and the texts that mean the same.
SECONDS = {0.2: "0.2", 5: "5", timedelta(seconds=0.2): "0.2", timedelta(minutes=2): "120", "0.2": "0.2", 0: "0"}
COUNTS = {0: "0", 7: "7", "7": "7"}
TEXTS = ("queue", "job", "ignore", "task")
NAMES: list[tuple[Any, list[str]]] = [
    ("mail", ["mail"]),
    (["mail"], ["mail"]),
    (["mail", "slow"], ["mail", "slow"]),
    (("mail", "slow"), ["mail", "slow"]),
    ({"mail": 1, "slow": 2}.keys(), ["mail", "slow"]),
    ([], []),
]
INSTANTS: list[tuple[Any, list[str]]] = [
    ("2026-11-22T03:00+01:00", ["2026-11-22T02:00:00+00:00"]),
    (datetime(2026, 11, 22, 2, tzinfo=UTC), ["2026-11-22T02:00Z"]),
    (datetime(2026, 11, 22), ["2026-11-22"]),  # noqa: DTZ001
]
SAMPLES: dict[str, list[tuple[Any, list[str]]]] = {
    **{
        name: [(value, [text]) for value, text in SECONDS.items()]
        for name in ("wait", "grace", "interval", "min_interval", "max_runtime")
    },
    "lease": [(5, ["5"]), (timedelta(minutes=2), ["120"]), ("0.5", ["0.5"])],
    **{
        name: [(value, [text]) for value, text in COUNTS.items()]
        for name in ("threads", "processes", "max_jobs", "keep")
    },
    "days": [(7, ["7"]), ("7", ["7"])],
    "conflict_exit_code": [(75, ["75"]), ("75", ["75"]), (0, ["0"])],
    "args": [
        ([1, "a"], ['[1, "a"]']),
        ((1, "a"), ['[1, "a"]']),
        (([1], {}), ["[[1], {}]"]),
        ({"day": None}, ['{"day": null}']),
        ('{"day": null}', ['{"day": null}']),
        ([], ["[]"]),
    ],
    **dict.fromkeys(TEXTS, NAMES),
    "failures": [(7, ["7"]), ("7", ["7"]), (1, ["1"])],
    "format": [("json", ["json"]), ("text", ["text"])],
    "database": [("default", ["default"])],
    "failed_since": INSTANTS,
    "since": INSTANTS,
    "until": INSTANTS,
    "from": INSTANTS,
    "at": INSTANTS,
    "slot": INSTANTS,
    "because": [("upgrade", ["upgrade"])],
    "time_zone": [("Europe/Rome", ["Europe/Rome"])],
    "force": [("nightly", ["nightly"])],
    "acknowledge": [("nightly", ["nightly"])],
    "alive": [("/tmp/alive", ["/tmp/alive"])],
    "token": [(UUID(int=4711), [str(UUID(int=4711))]), (str(UUID(int=4711)), [UUID(int=4711).hex])],
    "one_off": [(value, [text]) for value, text in COUNTS.items()],
}
NONSENSE: dict[str, list[Any]] = {
    **{
        name: [-1, timedelta(-1), "often", float("nan"), float("inf"), True, [1], b"5"]
        for name in ("wait", "grace", "interval", "min_interval", "max_runtime")
    },
    "lease": [-1, 0, 1e-6, "0.49", timedelta(microseconds=1), float("nan"), float("inf"), True, [1]],
    **{name: [-1, 1.5, "many", "1.5", True, [1]] for name in ("threads", "processes", "max_jobs", "days", "keep")},
    "conflict_exit_code": [256, -1, "some", 1.5, True],
    "args": ["{", "5", 5, {1, 2}, True],
    **{name: [5, [5], [None], True, "a\0", "\ud800", "", " "] for name in TEXTS},
    "failures": [0, -1, 1.5, "many", True, [1]],
    "format": ["xml", 5],
    "database": ["nowhere", 5, True, ["default"]],
    **{
        name: ["yesterday", "", 5, True, timedelta(1)]
        for name in ("failed_since", "since", "until", "from", "at", "slot")
    },
    "time_zone": [5, "", " ", "a\0", ["UTC"]],
    "because": [5, "", " ", "a\0", "x" * 201, ["upgrade"]],
    **{name: [True, 5, ["nightly"], "a\0", "", " "] for name in ("force", "alive", "acknowledge")},
    "token": [True, 5, "nightly", "a\0", "", [UUID(int=4711)]],
    "one_off": [-1, 1.5, "many", True, [1]],
}

FOR_KNOWN = ("--until", "--because")
FOR_LIST = ("--format", "--from", "--days")


def options() -> Iterator[tuple[str, Action]]:
    """Every option of every command, except for Django's own."""
    djangos = BaseCommand().create_parser("manage.py", "")._option_string_actions
    for command in COMMANDS:
        parser = load_command_class("django_singlejob", command).create_parser("manage.py", command)
        for action in parser._actions:
            if action.option_strings and not djangos.keys() & set(action.option_strings):
                yield command, action


def keyword(action: Action) -> str:
    """The name by which `call_command` takes it."""
    return min(action.option_strings).lstrip("-").replace("-", "_")


# Not --no-input of migrate, which call_command(no_input=True) would turn into its opposite.
FLAGS = [(command, action) for command, action in options() if action.nargs == 0 and action.const is True]
OTHERS = [(command, action) for command, action in options() if action.nargs != 0]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that the commands receive; they do nothing with them."""
    found: list[dict[str, Any]] = []
    for name in COMMANDS:
        command = type(load_command_class("django_singlejob", name))
        monkeypatch.setattr(command, "handle", lambda self, **options: found.append(options))
    return found


def called(command: str, *words: str, **values: Any) -> None:
    words = (*arguments(command, words, values), *words)
    if "-o" in words or values.get("close"):
        words += ("--", "true")
    call_command(command, *words, stdout=StringIO(), stderr=StringIO(), no_color=True, **values)


def arguments(command: str, words: tuple[str, ...], values: dict[str, Any]) -> tuple[str, ...]:
    """What the command cannot do without."""
    match command:
        case "singleton_status" if any(map(values.get, ("until", "because"))) or "".join(words).startswith(FOR_KNOWN):
            return ("--acknowledge=nightly",)
        case "run_singleton" if "".join(words).startswith(FOR_LIST) or any(map(values.get, ("format", "from", "days"))):
            return ("--list",)
        case "pause_singletons" | "resume_singletons" | "cancel_one_offs" if "--all" in words or values.get("all"):
            return ()
        case "singleton_stop" if values.get("one_off") is not None or any("--one-off" in word for word in words):
            return ()
        case "run_singleton" | "pause_singletons" | "resume_singletons" | "singleton_stop" | "singleton_why":
            return ("nightly",)
        case "singleton_schedule":
            wanted = () if "--reset" in words or values.get("reset") else ("@daily",)
            return ("nightly", *wanted)
        case "cancel_one_offs" | "retry_one_offs":
            return ("7",)
    return ()


def heeded(given: list[dict[str, Any]], command: str, *words: str, **values: Any) -> dict[str, Any]:
    """The options that the command receives for these words and values."""
    called(command, *words, **values)
    return {name: value for name, value in given.pop().items() if name not in ("stdout", "stderr")}


@pytest.mark.parametrize(
    ("command", "action", "value", "texts"),
    [(command, action, *sample) for command, action in OTHERS for sample in SAMPLES[keyword(action)]],
    ids=lambda each: getattr(each, "dest", None) or (each if isinstance(each, str) else repr(each)),
)
def test_a_value_means_what_its_text_means(
    given: list[dict[str, Any]], command: str, action: Action, value: Any, texts: list[str]
) -> None:
    words = [f"{action.option_strings[-1]}={text}" for text in texts]
    meaning = heeded(given, command, *words)
    assert heeded(given, command, **{keyword(action): value}) == meaning
    assert heeded(given, command, **{action.dest: value}) == meaning


@pytest.mark.parametrize(("command", "action"), OTHERS, ids=lambda each: getattr(each, "dest", each))
def test_none_is_what_is_not_given(given: list[dict[str, Any]], command: str, action: Action) -> None:
    assert heeded(given, command, **{keyword(action): None}) == heeded(given, command)


@pytest.mark.parametrize(("command", "action"), FLAGS, ids=lambda each: getattr(each, "dest", each))
def test_a_flag_is_up_or_down(given: list[dict[str, Any]], command: str, action: Action) -> None:
    flag = keyword(action)
    up = heeded(given, command, action.option_strings[0])
    assert up[action.dest] is True
    assert heeded(given, command, **{flag: True}) == up
    assert heeded(given, command, **{flag: False}) == heeded(given, command)
    assert heeded(given, command, **{flag: None}) == heeded(given, command)
    with pytest.raises(CommandError, match=f"argument {'/'.join(action.option_strings)}: 'no' is not a boolean"):
        heeded(given, command, **{flag: "no"})


def test_what_is_for_shell_commands_is_refused_without_one(given: list[dict[str, Any]]) -> None:
    with pytest.raises(CommandError, match="--close is only for shell commands"):
        call_command("run_singleton", "nightly", close=True)
    assert not given


@pytest.mark.parametrize(
    ("command", "action", "value"),
    [(command, action, value) for command, action in OTHERS for value in NONSENSE[keyword(action)]],
    ids=lambda each: getattr(each, "dest", None) or str(each)[:20],
)
def test_nonsense_is_refused_as_on_the_command_line(
    given: list[dict[str, Any]], command: str, action: Action, value: Any
) -> None:
    with pytest.raises(CommandError, match=f"Error: argument {'/'.join(action.option_strings)}: "):
        heeded(given, command, **{keyword(action): value})
    assert not given


@pytest.mark.parametrize(
    ("command", "action"),
    [(command, action) for command, action in OTHERS if keyword(action) in (*TEXTS, "force", "alive")],
    ids=lambda each: getattr(each, "dest", each),
)
def test_blank_text_is_refused(given: list[dict[str, Any]], command: str, action: Action) -> None:
    """For example, of a variable of the shell that is not set."""
    with pytest.raises(CommandError, match=f"Error: argument {action.option_strings[0]}: '' is blank"):
        heeded(given, command, f"{action.option_strings[0]}=")
    assert not given


def test_no_option_that_was_not_given_is_changed_by_another(given: list[dict[str, Any]]) -> None:
    assert heeded(given, "singleton_worker", queue="mail")["queues"] == ["mail"]
    assert heeded(given, "singleton_worker")["queues"] == []


@pytest.mark.parametrize("values", [{"name": "nightly"}, {"list": True}], ids=str)
def test_a_name_or_a_list_may_be_a_keyword(given: list[dict[str, Any]], values: dict[str, Any]) -> None:
    call_command("run_singleton", **values)
    assert values.items() <= given[0].items()


def test_what_does_not_go_together_is_refused_for_keywords_too(given: list[dict[str, Any]]) -> None:
    with pytest.raises(CommandError, match="Name a job or a command"):
        call_command("run_singleton", list=False)
    for arguments in ([1], []):
        with pytest.raises(CommandError, match="--args is only for jobs"):
            call_command("run_singleton", "nightly", "--", "true", args=arguments)
    assert not given


# --- and the commands heed them


@pytest.mark.django_db
@pytest.mark.parametrize("values", [{"once": True}, {"interval": 0.2, "grace": 1, "threads": 1, "max_jobs": 1}])
def test_a_worker_runs_what_is_in_the_queue_that_it_is_given(values: dict[str, Any]) -> None:
    singleton_job("mail")(len).enqueue("hello")
    said = StringIO()
    call_command("singleton_worker", queue="default", stdout=said, verbosity=2, **values)
    assert without_seconds(said.getvalue()).endswith("mail: ran in 0.0 s.\n")
    assert one_offs().get().status == "done"


@pytest.mark.django_db
@pytest.mark.parametrize("values", [[5, "a"], (5, "a"), {"number": 5, "letter": "a"}])
def test_a_job_is_called_with_python_values(values: Any) -> None:
    calls: list[object] = []

    @singleton_job
    def nightly(number: int, letter: str) -> None:
        calls.append((number, letter))

    call_command("run_singleton", "nightly", args=values, wait=0, lease=90, min_interval=0.5, stdout=StringIO())
    assert calls == [(5, "a")]


@pytest.mark.parametrize("value", ["loud", [1], 9])
def test_so_it_is_with_an_option_of_all_commands(given: list[dict[str, Any]], value: object) -> None:
    with pytest.raises(CommandError, match="argument -v/--verbosity: "):
        heeded(given, "singleton_worker", verbosity=value)


# --- ranges


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["prune_singletons", "--keep", "9" * 20], "is too large. Use at most 2147483647."),
        (["prune_singletons", "--days", "9" * 5000], "is too large. Use at most 2147483647."),
        (["cancel_one_offs", str(2**63)], "is too large. Use at most 9223372036854775807."),
        (
            ["retry_one_offs", "--failed-since", "0001-01-01T00:00+14:00"],
            "is not an instant of the years 1000 to",
        ),
        (
            ["retry_one_offs", "--failed-since", "1000-01-01T00:00+14:00"],
            "is not an instant of the years 1000 to",
        ),
        (
            ["retry_one_offs", "--failed-since", "9999-12-31T23:59-12:00"],
            "is not an instant of the years 1000 to",
        ),
        (["singleton_worker", "--drain", "--max-jobs", "9" * 20], "is too large"),
        (["singleton_worker", "--drain", "--queue", "mail,media"], "has a comma. Give the option once for each queue."),
        (["singleton_worker", "--drain", "--queue", "*"], "leave the option out for all queues."),
        (["singleton_status", "--queue", "*"], "leave the option out for all queues."),
        (["cancel_one_offs", "--queue", "mail,media"], "has a comma. Give the option once for each queue."),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_what_is_out_of_range_is_one_line(line: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=re.escape(message)) as refusal:
        call_command(*line)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.django_db
def test_the_number_of_a_row_may_be_large() -> None:
    with pytest.raises(SystemExit):
        call_command("cancel_one_offs", str(2**63 - 1))
