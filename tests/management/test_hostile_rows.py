"""Rows that somebody else wrote: whatever their texts contain, a command and the log print it escaped.

Text from the database can come from a host name, from a job's error message, or from anybody with access to a table. A
terminal obeys control characters, a log reader believes line ends, and marks of the writing direction reorder a line.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command, get_commands
from django.db import connection, models

from django_singlejob import singleton_job
from django_singlejob.exceptions import SingleJobError
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow, utc_now
from tests.contract.acts import ask, expire, start_run, ticked

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process", "log"), pytest.mark.django_db]

#: Each of these is forbidden in what a command writes and in what is logged.
BAD = [
    *("\x1b", "\x07", "\x08", "\x7f", "\x85", "\x9b", "\r", "\t"),
    *("\u061c", "\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202d", "\u202e"),
    *("\u2066", "\u2067", "\u2068", "\u2069", "\u2028", "\u2029", "\u200b", "\u2060", "\ufeff", "\U000e0041"),
]
#: A colour, a line that is not ours, and everything else.
HOSTILE = f"x\x1b[31m\nforged: all is well\r\n{''.join(BAD)}y"
COLUMNS = (models.CharField, models.TextField, models.JSONField)
COMMANDS = {name for name, app in get_commands().items() if app == "django_singlejob"}

FORMATS = [["--format", "text"], ["--format", "json"]]
RUNNING = {"run_singleton", "singleton_worker"}
CALLS = {
    "cancel_one_offs": [["--job", HOSTILE], ["--queue", HOSTILE, "--dry-run"], ["--task", HOSTILE], ["1"]],
    "clear_stale_locks": [[], ["--dry-run", "--overrunning"], ["--force", HOSTILE], ["--force", "unknown"]],
    "pause_singletons": [["--all"], [HOSTILE, "unknown"]],
    "prune_singletons": [[], ["--days", "0", "--keep", "0"], ["--dry-run"]],
    "resume_singletons": [["--all"], [HOSTILE]],
    "retry_one_offs": [["--job", HOSTILE], ["--queue", HOSTILE], ["--task", HOSTILE, "--dry-run"], ["1", "2"]],
    "run_singleton": [["--list"], ["nightly"], ["nightly", "--now"], [HOSTILE], ["other"], ["shell", "--", "true"]],
    "singleton_migrate": [[], ["--plan"], ["--prune", "contenttypes"]],
    "singleton_status": [[], ["--check"], ["--job", HOSTILE], ["--queue", HOSTILE], ["--check", "--failures", "2"]],
    "singleton_stop": [["nightly"], [HOSTILE], ["lost"], ["nightly", "--token", str(UUID(int=1))], ["--one-off", "1"]],
    "singleton_ledger": [[], ["nightly", HOSTILE], ["lost", "--since", "2026-11-22 03:00"]],
    "singleton_adopt": [["/dev/null"]],
    "singleton_schedule": [["nightly"], ["nightly", "@daily", "--because", HOSTILE], ["nightly", "--reset"]],
    "singleton_why": [["nightly"], [HOSTILE], ["lost"], ["nightly", "--at", "2026-11-22 03:00"]],
    "singleton_worker": [["--once"], ["--drain"], ["--once", "--queue", HOSTILE]],
}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "django_singlejob")
    return caplog


def text_columns(model: type[models.Model]) -> list[models.Field[Any, Any]]:
    """Every column that may contain text, so that a new one is covered too."""
    fields = model._meta.concrete_fields
    return [field for field in fields if isinstance(field, COLUMNS) and not (field.generated or field.choices)]


def hostile(field: models.Field[Any, Any]) -> Any:
    if isinstance(field, models.JSONField):
        return [HOSTILE] if field.default is list or field.null else {HOSTILE: [HOSTILE]}
    return HOSTILE[: field.max_length] if field.max_length and field.max_length < len(HOSTILE) else HOSTILE


NOW = utc_now()
SOON = timedelta(minutes=1)
HOLDER = {"hostname": "web-1", "pid": 4711}
#: A row that the commands do show, by model. Its texts are replaced.
SHOWN: dict[str, list[dict[str, Any]]] = {
    "JobLock": [
        {"name": "lost", "job_name": "lost", **HOLDER, "acquired_at": NOW, "sent_at": NOW},
        {"name": "django_singlejob.worker.9", **HOLDER, "acquired_at": NOW, "sent_at": NOW},
    ],
    "JobStatus": [{"name": "lost", "next_slot": NOW - timedelta(days=1), "consecutive_failures": 3}],
    "JobRun": [{"job_name": "lost", **HOLDER, "fence": 1, "status": "failed", "trigger": "call", "started_at": NOW}],
    "OneOffJob": [
        {"job_name": "lost", "run_after": NOW, "created_at": NOW},
        {"task_path": "shop.lost", "run_after": NOW, "created_at": NOW},
        {"job_name": "nightly", "run_after": NOW, "created_at": NOW},
        {"job_name": "lost", "run_after": NOW, "created_at": NOW, "finished_at": NOW, "status": "failed", "attempt": 1},
    ],
    "JobAlert": [{"subject": "lost", "kind": "failing", "acknowledged_until": NOW}],
    "JobNote": [{"job_name": "lost", "kind": "paused", "at": NOW}],
    "WorkerPass": [{"key": "somewhere", **HOLDER, "first_seen_at": NOW, "seen_at": NOW}],
}


def tables() -> list[type[models.Model]]:
    return [model for model in apps.get_app_config("django_singlejob").get_models() if not model._meta.proxy]


def insert(model: type[models.Model], values: dict[str, Any]) -> None:
    names = {field.name for field in model._meta.concrete_fields}
    if "token" in names:
        values = {"token": uuid4(), **values}
    if model.__name__ == "JobAlert":  # one row for each subject and kind
        model._base_manager.filter(subject=values["subject"], kind=values["kind"]).delete()
    if values.get("unique_key"):  # of those that nobody has touched, one waits
        values = {"version": 1, **values}
    if model.__name__ == "JobLock":
        last = NOW - timedelta(hours=1)
        values = {"heartbeat_at": last, "expires_at": last + SOON, **values}
    model._base_manager.create(**values)


def as_another(model: type[models.Model], values: dict[str, Any]) -> dict[str, Any]:
    """The values, with a primary key that no other row has."""
    key = model._meta.pk
    if key.name not in values:
        return values
    names = (f"{values[key.name][: (key.max_length or 0) - 3]}{number}" for number in range(100))
    free = (name for name in [values[key.name], *names] if not model._base_manager.filter(pk=name).exists())
    return values | {key.name: next(free)}


@pytest.fixture
def hostile_rows(fresh_process: None) -> None:
    """Of each model, rows with one hostile text each, and rows whose texts are all hostile."""
    singleton_job("nightly", schedule="@daily", min_interval=timedelta())(print)
    singleton_job("other")(print)
    start_run("nightly")
    start_run("other")
    start_run("shell")
    for name in "nightly", "other", "shell":
        locks().filter(name=name).update(hostname=HOSTILE[:255], command=HOSTILE[:255])
    start_run("stale")
    expire("stale")
    locks().filter(name="stale").update(hostname=HOSTILE[:255], command=HOSTILE[:255], job_name=HOSTILE[:200])
    gates().filter(name="nightly").update(next_slot=DBNow() - SOON)
    for model in tables():
        for usual in SHOWN[model.__name__]:
            texts = {field.name: hostile(field) for field in text_columns(model)}
            for variant in [{}, *({name: text} for name, text in texts.items()), texts]:
                insert(model, as_another(model, usual | variant))


def raw(text: str, *, lines: bool) -> list[str]:
    """The characters that must not be there. ``lines``: whether our own line ends are allowed."""
    text = re.sub(r"\x1b\[[0-9;]*m\Z", "", text)
    bad = {character for character in text if not character.isprintable() and character not in "\u200c\u200d"}
    return sorted(bad - ({"\n"} if lines else set()))


def check(text: str) -> None:
    assert raw(text, lines=True) == [], text
    assert not re.search(r"^forged", text, re.MULTILINE), text


def check_log(caplog: pytest.LogCaptureFixture) -> None:
    for record in caplog.records:
        if record.name.startswith("django_singlejob"):
            assert raw(record.getMessage(), lines=False) == [], record.getMessage()
            facts = [value for key, value in vars(record).items() if key.startswith("singlejob_")]
            assert raw("".join(map(str, facts)), lines=False) == [], facts


def written(*words: str) -> tuple[str, str]:
    """What the command wrote to standard output, and to standard error."""
    out, err = StringIO(), StringIO()
    try:
        call_command(*words, stdout=out, stderr=err, no_color=True)
    except CommandError as error:  # Django prints it
        err.write(f"{type(error).__name__}: {error}\n")
    except SystemExit:
        pass
    return out.getvalue(), err.getvalue()


def test_every_command_is_called() -> None:
    assert CALLS.keys() == COMMANDS


def test_every_model_has_rows() -> None:
    assert SHOWN.keys() == {model.__name__ for model in tables()}


def calls() -> list[list[str]]:
    """Each call in each format. What runs something has only one."""
    several = [(command, words) for command, calls in CALLS.items() for words in calls]
    return [
        [command, *kind, *words]
        for command, words in several
        for kind in (FORMATS if command not in RUNNING or "--list" in words else [[]])
    ]


@pytest.mark.usefixtures("hostile_rows")
@pytest.mark.parametrize("call", calls(), ids=lambda call: " ".join(call).replace(HOSTILE, "HOSTILE"))
def test_no_command_writes_or_logs_it_raw(call: list[str], log: pytest.LogCaptureFixture) -> None:
    command, *words = call
    for verbosity in range(4) if command not in RUNNING else [3]:
        out, err = written(command, "-v", str(verbosity), *words)
        check(out)
        check(err)
        if "json" in words and out:
            assert isinstance(json.loads(out), dict)
    check_log(log)


@pytest.mark.usefixtures("hostile_rows")
def test_text_shows_them_escaped_and_json_has_them_as_they_are() -> None:
    text, _ = written("singleton_status")
    assert r"x\x1b[31m\nforged: all is well\r\n" in text
    facts = json.loads(written("singleton_status", "--format", "json")[0])
    assert {job["holder"]["hostname"] for job in facts["jobs"] if job["name"] == "nightly"} == {HOSTILE[:255]}
    assert HOSTILE[:200] in {job["name"] for job in facts["jobs"]}


@pytest.mark.usefixtures("hostile_rows")
def test_the_log_of_a_worker_shows_them_escaped(log: pytest.LogCaptureFixture) -> None:
    ticked()
    check_log(log)
    assert r"\x1b[31m\nforged" in log.text


def test_the_log_of_a_takeover_shows_it_escaped(log: pytest.LogCaptureFixture) -> None:
    start_run()
    expire()
    locks().update(hostname=HOSTILE)
    ask()
    check_log(log)
    assert r"was taken over from x\x1b[31m\nforged: all is well\r\n" in log.text


@pytest.mark.parametrize("on_held", ["skip", "raise"])
def test_the_log_of_a_call_that_is_skipped_shows_it_escaped(
    log: pytest.LogCaptureFixture, on_held: Literal["skip", "raise"]
) -> None:
    job = singleton_job("nightly", on_held=on_held)(print)
    start_run()
    locks().update(hostname=HOSTILE)
    with suppress(SingleJobError):
        job()
    check_log(log)


@pytest.mark.on_database("sqlite")
def test_a_lone_surrogate_and_nul_are_escaped_too() -> None:
    start_run()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_singlejob_joblock SET hostname = %s", ["nul\0nul"])
    assert r"nul\x00nul" in written("singleton_status")[0]
    one_offs().model._base_manager.create(
        job_name="nightly", run_after=NOW, created_at=NOW, status="failed", error="x", args=["\ud800"]
    )
    check(written("retry_one_offs", "1")[0])
