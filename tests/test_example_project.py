"""The example project: its crontab line runs its jobs, and each round of its race has one winner. If not, the race
reports it."""

from __future__ import annotations

import os
import re
import signal
import socket
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob
from django_singlejob.process.clock import DBNow
from tests.children import ROOT, Child, Spawn
from tests.ports import quiet_port
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Manage = Callable[..., Child]

pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLE = ROOT / "example_project"
# make_history starts five more, one after the other. Seconds.
SIX_PROCESSES = 3 * PATIENCE


@pytest.fixture
def manage(spawn: Spawn) -> Manage:
    """The example's manage.py, on the test database."""
    return partial(spawn, str(EXAMPLE / "manage.py"), DJANGO_SETTINGS_MODULE="example_project.settings")


def said(child: Child, status: int = 0, patience: float = PATIENCE) -> str:
    assert child.finish(patience) == status, child.output
    return child.output


def test_the_example_is_in_order(manage: Manage) -> None:
    assert "no issues" in said(manage("check", "--fail-level", "WARNING"))
    assert "No changes" in said(manage("makemigrations", "--check", "--dry-run"))


def test_an_address_that_is_no_url_is_explained(manage: Manage) -> None:
    text = said(manage("check", DATABASE_URL="localhost:5432/shop"), status=1)
    assert "DATABASE_URL must look like postgres://user:password@host:5432/name." in text


# --- the shop


@pytest.fixture
def shop(manage: Manage) -> Iterator[Manage]:
    """The example's manage.py, with its own tables and those of the tests."""
    said(manage("migrate"))
    yield manage
    for app in "shop", "freeze":
        unmigrate(app)


def unmigrate(app: str) -> None:
    """As `migrate shop zero` does, which would be one more process in each test."""
    with connection.constraint_checks_disabled(), connection.schema_editor() as editor:
        for table in connection.introspection.table_names():
            if table.startswith(f"{app}_"):
                editor.execute(editor.sql_delete_table % {"table": editor.quote_name(table)})
    MigrationRecorder.Migration.objects.filter(app=app).delete()


def test_the_jobs_of_the_shop_run_from_the_crontab_line(shop: Manage) -> None:
    said(shop("seed"))
    assert said(shop("singleton_worker", "--once")) == ""  # they start at their next slots
    an_hour_late("sales_report")
    report = said(shop("singleton_worker", "--once", "-v", "2"))
    assert ": 20 orders, " in report
    assert "sales_report" not in said(shop("singleton_worker", "--once"))
    assert "Deleted 32 abandoned carts." in said(shop("run_singleton", "clean_up_carts", "--now"))


def test_an_order_is_confirmed_by_mail_once(shop: Manage) -> None:
    assert "Order 1 is placed." in said(shop("place_order", "ada@example.com", "12.5"))
    confirmed = said(shop("singleton_worker", "--once", "-v", "2"))
    assert "Mail to ada@example.com: Order 1 of 12.50 has arrived." in confirmed
    assert said(shop("singleton_worker", "--once")) == ""


def test_a_customer_is_forgotten_at_night(shop: Manage) -> None:
    said(shop("place_order", "ada@example.com", "12.5"))
    assert " 03:00 UTC" in said(shop("forget_customer", "ada@example.com"))
    assert "delete_customer" not in said(shop("singleton_worker", "--once"))
    OneOffJob.objects.waiting().update(run_after=DBNow())
    assert "delete_customer: ran" in said(shop("singleton_worker", "--once", "-v", "2"))
    assert OneOffJob.objects.get(job_name="delete_customer").result == {"carts": 0, "orders": 1}


def an_hour_late(name: str) -> None:
    """No server ran its last slot."""
    status = JobStatus.objects.get(name=name)
    assert status.next_slot
    JobStatus.objects.filter(name=name).update(next_slot=status.next_slot - timedelta(hours=1))


# --- what `make demo` suggests, and what `make serve` shows


def test_each_suggested_run_begins(shop: Manage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    lines = [line.split() for line in import_module("race.report").next_steps("manage.py").splitlines()]
    suggested = [words[1:] for words in lines if words[:2] == ["manage.py", "run_singleton"]]
    assert [job for _, job, *_ in suggested] == ["sales_report", "import_catalogue"]
    begun = [": 0 orders, 0.00 in all.", "Attempt 1: 50 products."]
    for words, what in zip(suggested, begun, strict=True):
        shop(*words).wait_for(what)


def test_the_shop_has_a_history_to_show(shop: Manage) -> None:
    said(shop("make_history"), patience=SIX_PROCESSES)
    assert sorted(JobRun.objects.values_list("job_name", "status")) == [
        ("clean_up_carts", "successful"),
        *[("confirm_order", status) for status in ["failed", *["successful"] * 3]],
        ("delete_customer", "successful"),
        ("import_catalogue", "running"),
        *[("sales_report", "successful")] * 2,
    ]
    assert set(JobRun.objects.values_list("hostname", flat=True)) == {"web-1", "web-2", "web-3"}
    assert sorted(OneOffJob.objects.values_list("status", flat=True)) == [
        "cancelled", *["done"] * 4, *["waiting"] * 2
    ]  # fmt: skip
    assert JobLock.objects.get().name == "import_catalogue"
    started = [*JobRun.objects.order_by("started_at").values_list("started_at", flat=True)]
    assert started[-1] - started[0] > timedelta(hours=4)
    # It is made once.
    before = JobRun.objects.count()
    assert said(shop("make_history")) == ""
    assert JobRun.objects.count() == before


def test_the_password_of_its_admin_is_a_new_one_each_time(manage: Manage) -> None:
    port = str(quiet_port())
    printed = [said(manage("create_admin", "--port", port)) for _ in range(2)]
    assert all(f"http://127.0.0.1:{port}/admin/" in text for text in printed)
    first, second = (re.search(r"password: (\S+)", text)[1] for text in printed)  # type: ignore[index]
    assert not authenticate(username="admin", password=first)
    admin = authenticate(username="admin", password=second)
    assert admin
    assert admin.is_superuser


def test_a_server_has_no_key_that_everybody_knows(manage: Manage) -> None:
    assert "Set the SECRET_KEY environment variable" in said(manage("check", DEBUG="0"), status=1)


def test_no_password_is_set_if_the_port_is_in_use(manage: Manage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = said(manage("create_admin", "--port", str(port)), status=1)
    assert f"Port {port} is in use. Choose another one: make serve PORT={port + 1}" in text
    assert not User.objects.exists()


def test_no_password_is_printed_on_a_server(manage: Manage) -> None:
    server = {"DEBUG": "0", "ALLOWED_HOSTS": "*", "SECRET_KEY": "another"}
    assert "works only with DEBUG = True" in said(manage("create_admin", **server), status=1)
    assert not User.objects.exists()


# --- the race


@pytest.mark.parametrize("kind", ["--processes", "--threads"])
def test_each_round_of_a_race_has_one_winner(manage: Manage, kind: str) -> None:
    output = said(manage("race", "--servers", "3", "--rounds", "5", kind))
    assert "Exactly one winner in each of 5 rounds." in output
    assert JobRun.objects.filter(job_name="race", status="successful").count() == 5
    report = output[output.index("3 servers") : output.index("What to try next")]
    assert max(map(len, report.splitlines())) <= 80


def test_a_race_that_loses_a_server_is_given_up(manage: Manage) -> None:
    child = manage("race", "--servers", "2", "--rounds", "100000")
    os.kill(pid_of_a_winner(), signal.SIGKILL)
    assert "has died" in said(child, status=1)


def test_a_race_can_be_stopped(manage: Manage) -> None:
    child = manage("race", "--servers", "2", "--rounds", "100000")
    pid_of_a_winner()
    os.killpg(child.pid, signal.SIGINT)
    assert said(child, status=130).endswith("The race was stopped.\n")
    assert not JobRun.objects.running().exists()


def pid_of_a_winner() -> int:
    pids: list[int] = eventually(lambda: [*JobRun.objects.values_list("pid", flat=True)[:1]])
    return pids[0]


# --- its verdict


class Verdict:
    """Invents races, and returns what is wrong with them. Times are in seconds."""

    def __init__(self) -> None:
        self.results: Any = import_module("race.results")
        self.faults: Any = import_module("race.verdict").faults

    def won(self, server: str, run: int, entered_at: float, left_at: float) -> Any:
        visit = self.results.Visit(entered_at, left_at)
        return self.results.Answer(server=server, win=self.results.Win(run=run, lock_cost=0.01, visit=visit))

    def lost(self, server: str, **why: str) -> Any:
        return self.results.Answer(server=server, **why)

    def on(self, *rounds: list[Any], history: list[int]) -> list[str]:
        faults: list[str] = self.faults([self.results.Round(*each) for each in enumerate(rounds, 1)], history)
        return faults


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Verdict:
    monkeypatch.syspath_prepend(EXAMPLE)
    return Verdict()


def test_a_good_race_has_no_faults(verdict: Verdict) -> None:
    first = [verdict.won("A", 1, 0.0, 0.1), verdict.lost("B", refusal="held")]
    second = [verdict.lost("A", refusal="already_ran"), verdict.won("B", 2, 0.2, 0.3)]
    assert verdict.on(first, second, history=[1, 2]) == []


def test_two_winners_of_a_round_are_a_fault_even_one_after_the_other(verdict: Verdict) -> None:
    both = [verdict.won("A", 1, 0.0, 0.1), verdict.won("B", 2, 0.2, 0.3)]
    assert verdict.on(both, history=[1, 2]) == ["Round 1 had 2 winners: A, B."]


def test_no_winner_is_a_fault(verdict: Verdict) -> None:
    assert verdict.on([verdict.lost("A", refusal="paused")], history=[]) == ["Round 1 had no winner: paused."]


def test_two_servers_inside_the_job_together_are_a_fault_even_in_different_rounds(verdict: Verdict) -> None:
    rounds = [verdict.won("A", 1, 0.0, 0.3)], [verdict.won("B", 2, 0.25, 0.26)]
    assert verdict.on(*rounds, history=[1, 2]) == [
        "A (round 1) and B (round 2) were inside the job together for 10.0 ms."
    ]


@pytest.mark.parametrize("history", [[], [1, 2], [2], [1, 1]])
def test_a_history_that_differs_from_the_wins_is_a_fault(verdict: Verdict, history: list[int]) -> None:
    (fault,) = verdict.on([verdict.won("A", 1, 0.0, 0.1)], history=history)
    assert fault.startswith(f"Wins: 1, runs in the history: {len(history)} ")


def test_a_call_that_failed_is_a_fault(verdict: Verdict) -> None:
    race = [verdict.won("A", 1, 0.0, 0.1), verdict.lost("B", error="OperationalError: no")]
    assert verdict.on(race, history=[1]) == ["Round 1: B failed, OperationalError: no"]


# --- the freeze


@pytest.fixture
def freeze(shop: Manage) -> Manage:
    """Freezes a worker. An invoice takes no time."""
    return partial(shop, "freeze", "--pace", "0")


def test_a_worker_that_was_frozen_writes_with_a_plain_lock_but_not_with_ours(freeze: Manage) -> None:
    output = said(freeze())
    assert all(figures in output for figures in FIGURES), output
    assert [output.count(what) for what in ("kill -STOP", "kill -CONT", "AGAIN", "is refused")] == [2, 2, 7, 1]
    assert "is refused customer 4's invoice: LeaseLost" in output
    assert max(map(len, output[output.index("A job writes") :].splitlines())) <= 80
    assert invoices() == {
        ("a plain lock", 1): [*range(1, 11)],
        ("a plain lock", 2): [*range(4, 11)],
        ("django-singlejob", 1): [1, 2, 3],
        ("django-singlejob", 2): [*range(4, 11)],
    }
    assert not JobLock.objects.exists()


FIGURES = [
    "written by worker 1, before it was frozen                 3                 3",
    "written by worker 2, which took over                      7                 7",
    "written by worker 1, after it woke                        7                 0",
    "invoices for 10 customers                                17                10",
    "customers with two invoices                               7                 0",
    "how worker 1 ended                                 no error         LeaseLost",
]


def invoices() -> dict[tuple[str, int], list[int]]:
    """The customers for whom each worker has written an invoice."""
    found: dict[tuple[str, int], list[int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {connection.ops.quote_name('lock')}, worker, customer FROM freeze_invoice ORDER BY id")
        for lock, worker, customer in cursor.fetchall():
            found.setdefault((lock, worker), []).append(customer)
    return found


IN_A_TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, *sys.argv[1:]])))
"""


@pytest.mark.usefixtures("freeze")
def test_in_a_terminal_it_is_a_table_that_changes_in_place(spawn: Spawn) -> None:
    command = [str(EXAMPLE / "manage.py"), "freeze", "--pace", "0", "--no-color"]
    env = {"DJANGO_SETTINGS_MODULE": "example_project.settings", "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    output = said(spawn("-c", IN_A_TERMINAL, *command, **env))
    assert all(figures in output for figures in FIGURES), output
    last = [line.rstrip() for line in output.rpartition("\x1b[14F")[2].splitlines()]
    assert max(map(len, last)) <= 80
    assert last[1:3] == [
        "              worker 1       worker 2       worker 1       worker 2",
        "              done           done           LeaseLost      done",
    ]
    assert last[6:9] == [
        "  customer  3 invoice                       invoice",
        "  customer  4 INVOICE AGAIN  invoice        refused        invoice",
        "  customer  5 INVOICE AGAIN  invoice                       invoice",
    ]


def test_a_freeze_that_is_stopped_leaves_nobody_frozen(freeze: Manage) -> None:
    child = freeze()
    child.wait_for("kill -STOP")
    os.killpg(child.pid, signal.SIGINT)
    output = said(child, status=130)
    assert output.endswith("The comparison was stopped.\n")
    for pid in re.findall(r"kill -STOP (\d+)", output):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert not JobLock.objects.exists()
