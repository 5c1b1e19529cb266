from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from django_singlejob.process.holder import this_process

if TYPE_CHECKING:
    from pytest_django import Settings


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
    raise ZeroDivisionError(arguments)


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
        (f"{__name__}.upper", "/BIN/BACKUP --PASSWORD HUNTER2 ALL"),
        (f"{__name__}.broken", "(RECORD_COMMAND failed: ZeroDivisionError)"),
    ],
)
def test_the_project_may_choose(settings: Settings, choice: str, command: str) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": choice}
    assert this_process(["/bin/backup", "--password", "hunter2", "all"]).command == command


def test_by_default_the_command_is_this_processs_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": " ".join}
    monkeypatch.setattr(sys, "argv", ["manage.py", "shell\n" + "x" * 300])
    assert this_process().command == rf"manage.py shell\n{'x' * 300}"[:255]


@pytest.mark.parametrize("hook", [upper, f"{__name__}.upper"], ids=["function", "path"])
def test_a_hook_gets_the_arguments_and_its_text_is_recorded(settings: Settings, hook: object) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": hook}
    assert this_process(["backup", "a b"]).command == "BACKUP A B"
    assert len(this_process(["x" * 300]).command) == 255


@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        (broken, "ZeroDivisionError"),
        (f"{__name__}.broken", "ZeroDivisionError"),
        (lambda arguments: None, "TypeError"),
        (lambda arguments: arguments, "TypeError"),
        ("shop.no_such_hook", "ModuleNotFoundError"),
        (f"{__name__}.no_such_hook", "ImportError"),
    ],
)
def test_if_a_hook_fails_nothing_is_recorded_and_it_is_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture, hook: object, kind: str
) -> None:
    settings.SINGLEJOB = {"RECORD_COMMAND": hook}
    assert this_process(["backup", "hunter2"]).command == f"(RECORD_COMMAND failed: {kind})"
    (record,) = caplog.records
    assert (record.levelname, record.singlejob_reason) == ("ERROR", kind)  # type: ignore[attr-defined]
    assert "hunter2" not in caplog.text
    assert "backup" not in caplog.text
