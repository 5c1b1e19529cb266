"""The facts that log records carry beside their texts."""

from __future__ import annotations

import ast
import json
import logging
import logging.config
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from logging import LogRecord
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import OperationalError

from django_singlejob import LeaseLost, Reason, singleton_job
from django_singlejob.locking import at_exit
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.models.locks import locks
from django_singlejob.process.logs import PREFIX, about
from django_singlejob.worker.due import follow_code
from tests.children import ROOT
from tests.contract.acts import (
    HOUR,
    die_running,
    fall_behind,
    gate,
    last_run,
    lock,
    lose,
    scheduled,
    start_run,
    take,
    ticked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

logger = logging.getLogger("django_singlejob")
KEYS = {f"singlejob_{name}" for name in ("job", "lock", "run", "fence", "slot", "reason", "token")}
TOKEN = UUID("1c5a8d4e-0000-4000-8000-000000000001")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def logging_calls() -> Iterator[tuple[str, ast.Call]]:
    """Each call of a logger in the package, and where it is."""
    for path in sorted((ROOT / "django_singlejob").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("logger", "logging")
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def facts(record: LogRecord) -> dict[str, Any]:
    """What the record carries, without the prefix."""
    return {key.removeprefix(PREFIX): value for key, value in vars(record).items() if key.startswith(PREFIX)}


def logged(caplog: pytest.LogCaptureFixture, words: str) -> dict[str, Any]:
    """What the only record with these words carries."""
    (record,) = [record for record in caplog.records if words in record.getMessage()]
    return facts(record)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "django_singlejob")
    return caplog


# --- every line


def test_every_line_carries_facts() -> None:
    found = dict(logging_calls())
    assert len(found) > 30
    without = [place for place, call in found.items() if "extra" not in {keyword.arg for keyword in call.keywords}]
    assert without == [], "Give these lines an extra: see django_singlejob/process/logs.py."


def test_every_line_is_of_the_documented_logger() -> None:
    for path in (ROOT / "django_singlejob").rglob("*.py"):
        text = path.read_text()
        assert text.count("getLogger(") == text.count('logger = logging.getLogger("django_singlejob")'), path


# --- the schema


def test_these_are_the_keys_and_they_are_no_attributes_of_a_record() -> None:
    slot = datetime(2026, 3, 1, 3, 5, tzinfo=timezone(timedelta(hours=1)))
    everything = about(job="nightly", lock="shop", run=7, fence=9, slot=slot, reason=Reason.HELD, token=TOKEN)
    assert everything == {
        "singlejob_job": "nightly",
        "singlejob_lock": "shop",
        "singlejob_run": 7,
        "singlejob_fence": 9,
        "singlejob_slot": "2026-03-01T02:05:00+00:00",
        "singlejob_reason": "held",
        "singlejob_token": str(TOKEN),
    }
    assert everything.keys() == KEYS
    assert not KEYS & vars(logging.makeLogRecord({})).keys()
    assert json.loads(json.dumps(everything)) == everything


def test_what_is_unknown_has_no_key() -> None:
    assert about() == {}
    assert about(job="", lock="", reason="") == {}
    assert about(fence=0) == {"singlejob_fence": 0}


def test_of_an_exception_the_class_is_the_reason() -> None:
    assert about(reason=OperationalError("the server is away")) == {"singlejob_reason": "OperationalError"}


# --- the main lines


def fail() -> None:
    raise ZeroDivisionError


def of_the_run() -> dict[str, Any]:
    run = last_run()
    known = {"job": "nightly", "lock": "shop", "run": run.pk, "fence": run.fence, "token": str(run.token)}
    return known | ({"slot": run.slot.astimezone(UTC).isoformat()} if run.slot else {})


def test_a_job_that_fails_under_a_worker(log: pytest.LogCaptureFixture) -> None:
    singleton_job("nightly", lock="shop")(fail).enqueue()
    ticked()
    assert logged(log, "'nightly' failed") == of_the_run() | {"reason": "ZeroDivisionError"}


def test_a_slot_that_fails(log: pytest.LogCaptureFixture) -> None:
    job: Any = singleton_job("nightly", lock="shop", schedule=HOUR)(fail)
    fall_behind(job)
    ticked()
    assert last_run().slot
    assert logged(log, "'nightly' failed") == of_the_run() | {"reason": "ZeroDivisionError"}


def test_a_job_that_fails_under_run_singleton(log: pytest.LogCaptureFixture) -> None:
    singleton_job("nightly", lock="shop")(fail)
    with pytest.raises(SystemExit):
        call_command("run_singleton", "nightly", verbosity=0)
    assert logged(log, "'nightly' failed") == of_the_run() | {"reason": "ZeroDivisionError"}


def test_a_job_that_is_skipped(log: pytest.LogCaptureFixture) -> None:
    job = singleton_job("nightly", lock="shop")(fail)
    take("shop")
    job()
    assert logged(log, "'nightly' was skipped") == {"job": "nightly", "lock": "shop", "reason": "held"}


def test_a_slot_that_was_missed(log: pytest.LogCaptureFixture) -> None:
    job = scheduled("nightly", catch_up="none", misfire_grace=timedelta(seconds=1))
    fall_behind(job)
    slot = gate().next_slot
    assert slot
    ticked()
    known = {"job": "nightly", "slot": slot.astimezone(UTC).isoformat(), "reason": "dropped"}
    assert logged(log, "'nightly' misfired") == logged(log, "1 job misfired") == known


def test_a_new_schedule(log: pytest.LogCaptureFixture) -> None:
    scheduled("nightly")
    follow_code()
    slot = gate().next_slot
    assert slot
    assert logged(log, "has a new schedule") == {"job": "nightly", "slot": slot.astimezone(UTC).isoformat()}


def test_a_lost_lease(log: pytest.LogCaptureFixture) -> None:
    lease = start_run("nightly", name="shop")
    locks().release("shop", lease.token)
    with pytest.raises(LeaseLost):
        lease.renew()
    heartbeats = Heartbeats()
    heartbeats.add(lease)
    heartbeats.beat()
    assert logged(log, "The lease on 'shop' was lost") == of_the_run() | {"reason": "LeaseLost"}


def test_a_lock_that_is_taken_over_is_that_of_its_new_holder(log: pytest.LogCaptureFixture) -> None:
    _, lease = lose("shop")
    assert logged(log, "'shop' was taken over") == {"lock": "shop", "fence": lease.fence, "token": str(lease.token)}


def test_a_lock_that_a_worker_clears_is_that_of_its_dead_holder(log: pytest.LogCaptureFixture) -> None:
    job = scheduled("nightly", lock="shop")
    fall_behind(job)
    slot = die_running(job)
    dead = lock("shop")
    ticked()
    known = {"job": "nightly", "lock": "shop", "slot": slot.astimezone(UTC).isoformat(), "token": str(dead.token)}
    assert logged(log, "'shop' was cleared") == known


def test_a_lock_that_cannot_be_released(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = take("shop")
    monkeypatch.setattr(at_exit, "_release_row", fail_at_the_database)
    assert not at_exit.release_granted(lease.token)
    known = {"lock": "shop", "reason": "OperationalError", "token": str(lease.token)}
    assert logged(log, "'shop' could not be released") == known


def fail_at_the_database(*arguments: object) -> bool:
    raise OperationalError("the server is away")


# --- what they contain


def test_a_record_forges_no_line_and_keeps_the_types_of_what_needs_no_escaping(log: pytest.LogCaptureFixture) -> None:
    error = OperationalError("gone")
    logging.getLogger("django_singlejob").info(
        "%s %r %s %d", "web\n1", "a\x1b", error, 7, extra=about(lock="a\x1b\u202e")
    )
    (record,) = log.records
    assert record.getMessage() == r"web\n1 'a\x1b' gone 7"
    assert record.args
    assert [*record.args][2:] == [error, 7]
    assert facts(record) == {"lock": r"a\x1b\u202e"}


# Acts on a terminal, forges a line of the log, and changes the direction of writing.
HOSTILE = "x\x1b[31m\r\nCRITICAL all is lost\x85\u2028\u202ey"


def raising(hostile: BaseException, note: str = "") -> BaseException:
    """The exception, after it was raised and caught."""
    if note:
        hostile.add_note(note)
    with suppress(BaseException):
        raise hostile
    return hostile


def caused(cause: Exception) -> BaseException:
    error = ValueError("no such customer")
    error.__cause__ = raising(cause)
    return raising(error)


PARTS: dict[str, dict[str, Any]] = {
    "an argument": {"args": [HOSTILE]},
    "an argument that is an exception": {"args": [OSError(HOSTILE)]},
    "an argument that is a dict": {"args": [{HOSTILE: HOSTILE}]},
    "a fact": {"extra": about(job=HOSTILE, lock=HOSTILE, reason=HOSTILE, token=HOSTILE)},
    "the class of an exception": {"extra": about(reason=type(HOSTILE, (Exception,), {})())},
    "the message of an exception": {"exc_info": raising(ValueError(HOSTILE))},
    "its message, without a traceback": {"exc_info": (ValueError, ValueError(HOSTILE), None)},
    "its note": {"exc_info": raising(ValueError(), note=HOSTILE)},
    "the message of its cause": {"exc_info": caused(ValueError(HOSTILE))},
    "the messages of a group": {"exc_info": raising(ExceptionGroup(HOSTILE, [ValueError(HOSTILE)]))},
    "a file's name in a traceback": {"exc_info": raising(SyntaxError(HOSTILE, (HOSTILE, 1, 1, HOSTILE)))},
}


@pytest.fixture
def usual_logging() -> Iterator[StringIO]:
    """What most projects configure. Returns what it prints."""
    console = {"console": {"class": "logging.StreamHandler"}}
    loggers = {"django_singlejob": {"handlers": ["console"], "level": "WARNING"}}
    config = {"version": 1, "disable_existing_loggers": False, "handlers": console, "loggers": loggers}
    before = logger.handlers[:]
    logging.config.dictConfig(config)
    [handler] = logger.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(printed := StringIO())
    yield printed
    logger.handlers[:] = before
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_a_record_acts_on_a_terminal_or_begins_a_line(part: str, usual_logging: StringIO) -> None:
    """As a usual project prints it, and with all attributes."""
    given = {"args": [], "extra": about()} | PARTS[part]
    args = given.pop("args")
    logger.error("Something: %s" if args else "Something", *args, **given)
    attributes = " ".join(f"%({name})s" for name in ["message", *given["extra"]])
    logger.handlers[0].setFormatter(logging.Formatter(attributes))
    logger.error("Something: %s" if args else "Something", *args, **given)
    printed = usual_logging.getvalue()
    assert "all is lost" in printed
    lines = printed.removesuffix("\n").split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    first = ("Something", "Traceback (most recent call last):", "ValueError: x")
    assert [line for line in lines if not line.startswith(("  ", *first))] == []


def test_no_record_has_the_stack_or_a_text_that_is_put_together() -> None:
    """What is not among these parts is the same each time, or the project's, such as the names of threads."""
    for place, call in logging_calls():
        assert "stack_info" not in {keyword.arg for keyword in call.keywords}, place
        texts = [each for each in call.args[:2] if isinstance(each, ast.JoinedStr | ast.BinOp)]
        assert not texts, place


def test_a_record_does_not_grow_with_what_it_tells_of(log: pytest.LogCaptureFixture) -> None:
    logging.getLogger("django_singlejob").warning("%s, %s", "x" * 99_000, ValueError("x" * 99_000))
    assert 4000 < len(log.records[-1].getMessage()) < 4100


def test_what_cannot_be_printed_ends_no_job(log: pytest.LogCaptureFixture) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ZeroDivisionError

    logging.getLogger("django_singlejob").info("%r", thing := Unprintable(), extra=about())
    assert log.records[0].args == (thing,)


def test_configuring_logging_does_not_let_it_through(log: pytest.LogCaptureFixture) -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {"django_singlejob": {}}})
    logging.getLogger("django_singlejob").info("%s", "web\n1", extra=about())
    assert log.records[0].getMessage() == r"web\n1"
