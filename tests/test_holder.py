from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from django_singlejob.holder import printable, redact, this_process

if TYPE_CHECKING:
    from pytest_django import Settings

anything = st.text(st.characters()) | st.binary() | st.integers() | st.none()


@given(anything, st.integers(0, 300))
def test_whatever_it_is_can_be_stored_and_printed(text: object, length: int) -> None:
    shown = printable(text, length)
    assert len(shown) <= length
    assert shown.isprintable()
    assert max(map(ord, shown), default=0) <= 0xFFFF
    assert shown.encode().decode() == shown


@given(st.text(st.characters(max_codepoint=0xFFFF, categories=["L", "N", "P", "S"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert printable(text, len(text)) == text


def test_nothing_forges_a_line_or_a_page() -> None:
    assert printable("web\0-1\r\nERROR all is lost\x1b[31m", 100) == r"web\x00-1\r\nERROR all is lost\x1b[31m"
    assert printable("\ud800 \N{RIGHT-TO-LEFT OVERRIDE} \N{PILE OF POO}", 100) == r"\ud800 \u202e \U0001f4a9"


def test_what_is_to_be_kept_is_kept() -> None:
    assert printable("two\nlines\t", 100, keep="\n") == "two\nlines\\t"


def test_it_is_cut_before_it_costs_time() -> None:
    begun_at = time.process_time()
    assert len(printable("\0" * 50_000_000, 10)) == 10
    assert time.process_time() - begun_at < 1


def test_this_process_is_who_it_is() -> None:
    holder = this_process()
    assert (holder.hostname, holder.pid) == (socket.gethostname(), os.getpid())
    assert this_process(["backup.sh"]).command == "backup.sh"


def test_the_host_can_be_named(settings: Settings) -> None:
    settings.SINGLEJOB = {"HOSTNAME": "web\n1" + "x" * 300}
    assert this_process().hostname.startswith(r"web\n1xxx")
    assert len(this_process().hostname) == 255


# --- what is recorded of the command


def upper(arguments: list[str]) -> str:
    return " ".join(arguments).upper()


def broken(arguments: list[str]) -> str:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/usr/bin/backup", "--all", "hunter2"], "backup"),
        (["/srv/shop/manage.py", "run_singleton", "nightly", "hunter2"], "manage.py run_singleton"),
        (["django-admin", "migrate"], "django-admin migrate"),
        (["/usr/lib/python/django/__main__.py", "shell"], "__main__.py shell"),
        (["manage.py"], "manage.py"),
        (["sh", "-c", "echo hunter2"], "sh"),
        ([""], ""),
        ([], ""),
    ],
)
def test_usually_only_the_programs_name_is(arguments: list[str], name: str) -> None:
    assert this_process(arguments).command == name


@pytest.mark.parametrize(
    ("choice", "command"),
    [
        ("none", ""),
        ("name", "backup"),
        ("full", "/bin/backup --password *** all"),
        (f"{__name__}.upper", "/BIN/BACKUP --PASSWORD HUNTER2 ALL"),
        (f"{__name__}.broken", "(RECORD_COMMAND failed: ZeroDivisionError)"),
    ],
)
def test_the_project_may_choose(settings: Settings, choice: str, command: str) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": choice}
    assert this_process(["/bin/backup", "--password", "hunter2", "all"]).command == command


def test_by_default_the_command_is_this_processs_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": "full"}
    monkeypatch.setattr(sys, "argv", ["manage.py", "shell\n" + "x" * 300])
    assert this_process().command == rf"manage.py shell\n{'x' * 300}"[:255]


def test_a_hook_that_cannot_be_imported_costs_no_job(settings: Settings) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": "shop.no_such_hook"}
    assert this_process(["backup"]).command == "(RECORD_COMMAND failed: ModuleNotFoundError)"


# --- secrets

SECRETIVE = {
    "--password hunter2": "--password ***",
    "--password=hunter2": "--password=***",
    "--DB-Password=hunter2": "--DB-Password=***",
    "--password-file hunter2 rest": "--password-file *** rest",
    "-p hunter2 rest": "-p *** rest",
    "-phunter2 rest": "-p*** rest",
    "--token hunter2 --verbose": "--token *** --verbose",
    "--api-key=hunter2": "--api-key=***",
    "--client_secret hunter2": "--client_secret ***",
    "TOKEN=hunter2 backup": "TOKEN=*** backup",
    "PGPASSWORD=hunter2 MYSQL_PWD=hunter2 backup": "PGPASSWORD=*** MYSQL_PWD=*** backup",
    "env AWS_SECRET_ACCESS_KEY=hunter2/+= backup": "env AWS_SECRET_ACCESS_KEY=*** backup",
    "postgres://shop:hunter2@db/shop": "postgres://***@db/shop",
    "redis://:hunter2@db:6379/0": "redis://***@db:6379/0",
    "backup --to=sftp://shop:hunter2@files:22/x rest": "backup --to=sftp://***@files:22/x rest",
}
IN_SCRIPTS = SECRETIVE | {
    "Authorization: Bearer hunter2": "Authorization: Bearer ***",
    "X-Api-Key: hunter2": "X-Api-Key: ***",
    "mysqldump --password 'hunter2 hunter2' shop": "mysqldump --password *** shop",
    'export PGPASSWORD="hunter2 hunter2"; backup': "export PGPASSWORD=***; backup",
    "curl -H 'X-Token: hunter2'": "curl -H 'X-Token: ***",
}
LEAKS = {
    "a value with a space": ["mysqldump", "--password=hunter hunter2"],
    "JSON, as in --args": ["run_singleton", "sync", "--args", '{"password": "hunter2"}'],
    "a password with an @": ["postgres://shop:hunter@hunter2@db/shop"],
    "a password with a /": ["postgres://shop:hunter/hunter2@db/shop"],
    "behind a semicolon": ["sh", "-c", "cd /;PASSWORD=hunter2 backup"],
    "behind a bracket": ["sh", "-c", "(PASSWORD=hunter2 backup)"],
}


@pytest.mark.parametrize("command", SECRETIVE)
def test_a_secret_is_masked(command: str) -> None:
    assert redact(command.split(" ")) == SECRETIVE[command]


@pytest.mark.parametrize("script", IN_SCRIPTS)
def test_a_secret_in_a_shells_script_is_masked(script: str) -> None:
    assert redact(["sh", "-c", script, "done"]) == f"sh -c {IN_SCRIPTS[script]} done"


@pytest.mark.parametrize(
    "command",
    [
        "rsync -a /srv/shop backup:/srv",
        "pg_dump --port 5432 --file=shop.sql",
        "sh -c 'date; echo 12:30'",
        "tar -cpf x y",
    ],
)
def test_what_is_no_secret_is_shown(command: str) -> None:
    assert redact(command.split(" ")) == command


@pytest.mark.parametrize("leak", LEAKS)
def test_these_secrets_are_masked_too(leak: str) -> None:
    assert "hunter2" not in redact(LEAKS[leak])


@given(st.lists(st.text(st.characters(), max_size=50), max_size=5))
def test_redacting_never_raises(arguments: list[str]) -> None:
    assert isinstance(redact(arguments), str)


@pytest.mark.parametrize("argument", ["-" * 3_000, "x" * 10_000, "pass" * 2_500], ids=["-", "x", "pass"])
def test_redacting_takes_no_time(argument: str) -> None:
    begun_at = time.process_time()
    redact([argument])
    assert time.process_time() - begun_at < 0.5
