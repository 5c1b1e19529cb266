"""The least grants in the documentation suffice: the tests execute the statements of that page, as they stand there."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import get_commands
from django.db import Error, connection, connections
from django.test import Client
from django.urls import reverse

from django_singlejob import singleton_job
from django_singlejob.database import errors
from django_singlejob.exceptions import Lack
from django_singlejob.models import JobRun, OneOffJob
from tests.admin.pages import Page, address, begin, clear_page, list_of, shown, stop_page
from tests.admin.test_admin_permissions import ACTIONS, ASKING, MATRIX, choose
from tests.children import ROOT, Child, Spawn, kill_alone
from tests.contract.acts import expire, start_run
from tests.databases import named
from tests.processes.every_command import exit_status_of, said, start
from tests.processes.set_ups import GRANT, as_user, execute
from tests.processes.workers import all_are_done, enqueue
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import DjangoDbBlocker

pytest_plugins = ["tests.fixtures"]
pytestmark = [
    pytest.mark.on_database("postgresql", "mysql"),
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
]

PAGE = ROOT / "docs" / "contributors" / "least-grants.md"
TITLES = {"postgresql": "Grants on PostgreSQL", "mysql": "Grants on MariaDB and MySQL"}
TABLES = ("jobalert", "joblock", "jobnote", "jobrun", "jobstatus", "oneoffjob", "workerpass")
OURS = [f"django_singlejob_{name}" for name in TABLES]
REFUSED = re.compile(r"denied|refuse|must be owner|does not allow|Traceback \(", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """A database, its owner, and the user with the least grants."""

    name: str
    owner: str
    user: str
    passwords: dict[str, str] = field(repr=False)

    def documented(self) -> list[list[str]]:
        """The statements of each block of SQL on the page, with these names."""
        page = PAGE.read_text()
        (section,) = re.findall(rf"^## {TITLES[connection.vendor]}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
        blocks = re.findall(r"^```sql\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        return [[part.strip() for part in self.renamed(block).split(";") if part.strip()] for block in blocks]

    def renamed(self, sql: str) -> str:
        names = {"shop_owner": self.owner, "shop": self.user}
        names |= {"<password of the owner>": self.passwords[self.owner], "<password>": self.passwords[self.user]}
        return re.sub(r"\bshop_owner\b|\bshop\b|<password.*?>", lambda found: names[found[0]], sql)

    def url(self, user: str) -> str:
        there = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{self.name}").geturl()
        return as_user(there, user, self.passwords[user])

    @contextmanager
    def entered(self, user: str | None = None) -> Iterator[None]:
        """Inside, this thread works in that database: as that user, or as the administrator."""
        differences = {"NAME": self.name}
        if user:
            differences |= {"USER": user, "PASSWORD": self.passwords[user]}
        connection.close()
        with pytest.MonkeyPatch.context() as patch:
            for key, value in differences.items():
                patch.setitem(connection.settings_dict, key, value)
            try:
                yield
            finally:
                connection.close()

    def create(self, spawn: Spawn) -> None:
        first, *then, by_table, for_the_admin = self.documented()
        execute(*first)
        with self.entered():
            if connection.vendor == "postgresql":
                execute(*[f"ALTER ROLE {user} PASSWORD '{word}'" for user, word in self.passwords.items()])
            for statements in then:
                execute(*statements)
            migrate = spawn.command("migrate", DATABASE_URL=self.url(self.owner))
            assert migrate.finish() == 0, migrate.output
            execute(*by_table, *for_the_admin)

    def drop(self) -> None:
        kind, force = ("ROLE", " WITH (FORCE)") if connection.vendor == "postgresql" else ("USER", "")
        execute(f"DROP DATABASE IF EXISTS {self.name}{force}")
        execute(*[f"DROP {kind} IF EXISTS {user}" for user in (self.owner, self.user)])


@pytest.fixture(scope="module")
def place(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    if pytestconfig.getoption("--database") == "sqlite":
        pytest.skip("SQLite has no users")
    name, owner = named("shop"), named("owner")
    place = Place(name, owner, name, {owner: secrets.token_hex(16), name: secrets.token_hex(16)})
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)}
    spawn = Spawn(env, tmp_path_factory.mktemp("owner"))
    with django_db_blocker.unblock(), ExitStack() as undo:
        undo.callback(place.drop)
        undo.callback(spawn.end)
        place.create(spawn)
        yield place


@pytest.fixture(autouse=True)
def emptied(place: Place) -> Iterator[None]:
    """Nobody else empties the tables of that database."""
    yield
    with place.entered():
        execute(*[f"DELETE FROM {table}" for table in [*OURS, "django_admin_log", "django_session", "auth_user"]])


@pytest.fixture
def as_the_user(place: Place) -> Iterator[Place]:
    """The test, and the processes that it starts, have the least grants."""
    with place.entered(place.user):
        yield place


@pytest.fixture
def child_env(child_env: dict[str, str], place: Place) -> dict[str, str]:
    return child_env | {"DATABASE_URL": place.url(place.user)}


def is_allowed(child: Child) -> None:
    assert child.finish() == 0, child.output
    assert not REFUSED.search(child.output), child.output


# --- what it may do


def test_every_table_is_in_the_documentation(place: Place) -> None:
    granted = " ".join(statement for block in place.documented() for statement in block)
    models = apps.get_app_config("django_singlejob").get_models()
    assert {model._meta.db_table for model in models} == {*OURS} == {*re.findall(r"django_singlejob_\w+", granted)}


def nothing() -> None:
    pass


def something_due() -> None:
    enqueue("quick")


def something_that_failed() -> None:
    enqueue("quick")
    OneOffJob.objects.waiting().update(status="failed")


def something_that_runs() -> None:
    start_run("quick", heartbeat_interval=timedelta(seconds=20))


def something_that_ran() -> None:
    start_run("quick").release()
    JobRun.objects.update(status="successful")


#: What to do before each command, and the command, in this order.
LINES: list[tuple[Callable[[], None], str]] = [
    (nothing, "run_singleton quick --now"),
    (nothing, "run_singleton backup -- true"),
    (nothing, "run_singleton --list"),
    (something_due, "singleton_worker --once"),
    (something_due, "singleton_worker --drain"),
    (something_due, "singleton_worker --max-jobs 1 --interval 0.05"),
    (nothing, "singleton_status"),
    (nothing, "singleton_status --check"),
    (nothing, "singleton_why quick"),
    (nothing, "singleton_ledger"),
    (nothing, "singleton_adopt /dev/null"),
    (nothing, "singleton_schedule quick --reset"),
    (nothing, "pause_singletons quick"),
    (nothing, "resume_singletons quick"),
    (something_due, "cancel_one_offs --job quick"),
    (something_that_failed, "retry_one_offs --job quick"),
    (something_that_runs, "singleton_stop quick"),
    (nothing, "clear_stale_locks --force quick --overrunning"),
    (nothing, "singleton_migrate"),  # if nothing is left; otherwise its user has to own the tables
    (nothing, "prune_singletons --days 0"),
]


def test_it_may_run_every_command(as_the_user: Place, spawn: Spawn) -> None:
    ours = {name for name, app in get_commands().items() if app == "django_singlejob"}
    assert {line.split()[0] for _, line in LINES} == ours
    child = spawn.code("from tests.processes.test_least_grants import run_lines; run_lines()")
    is_allowed(child)
    assert json.loads(child.output) == {line: 0 for _, line in LINES}
    assert not JobRun.objects.exists()  # pruned


def run_lines() -> None:
    """Run them one after the other, and print the exit status of each, or what it printed if it was refused.

    Each has a process of its own, which is forked, because starting fourteen from scratch would take many seconds.
    """
    answers: dict[str, object] = {}
    for prepare, line in LINES:
        prepare()
        connections.close_all()
        with tempfile.TemporaryFile() as output:
            status = exit_status_of(start(line.split(), output))
            text = said(output)
        answers[line] = text if status or REFUSED.search(text) else status
    print(json.dumps(answers))


def test_it_may_check_the_deployment_and_see_the_migrations(as_the_user: Place, spawn: Spawn) -> None:
    checked = spawn.command("check", "--deploy", "--database", "default")
    is_allowed(checked)
    assert "singlejob." not in checked.output
    is_allowed(spawn.command("migrate", "--check"))


def test_it_may_take_over_from_the_dead(as_the_user: Place, spawn: Spawn) -> None:
    for line in ["clear_stale_locks"], ["run_singleton", "nap", "--now", "--args", "[0]", "--wait", "600"]:
        dead = spawn.command("run_singleton", "nap", "--now", "--lease", "6")
        dead.wait_for("attempt")
        kill_alone(dead)
        expire("nap")
        is_allowed(spawn.command(*line))
    assert list(JobRun.objects.order_by("pk").values_list("status", flat=True))[-2:] == ["abandoned", "successful"]


def test_it_may_call_lock_and_enqueue(as_the_user: Place, spawn: Spawn) -> None:
    is_allowed(
        spawn.code("""
            from django.db import transaction
            from django_singlejob import job_lock
            from tests.app.jobs import quick

            assert quick() == "done"
            with job_lock("block") as lease, lease.atomic():
                quick.enqueue()
            with transaction.atomic():
                quick.using(priority=5).enqueue()
        """)
    )
    is_allowed(spawn.command("singleton_worker", "--drain"))
    eventually(all_are_done)


def test_it_may_enqueue_tasks_and_read_their_results(as_the_user: Place, spawn: Spawn) -> None:
    enqueued = spawn.code("from tests.app.django_tasks import plain; print(plain.enqueue(2).id)")
    is_allowed(enqueued)
    is_allowed(spawn.command("singleton_worker", "--drain"))
    read = spawn.code(
        "import sys; from tests.app.django_tasks import plain; print(plain.get_result(sys.argv[1]).return_value)",
        enqueued.output.strip(),
    )
    is_allowed(read)
    assert read.output == "[[2], {}]\n"


@pytest.fixture
def superuser(place: Place) -> User:
    """The owner creates it."""
    with place.entered(place.owner):
        return User.objects.create(username="admin", is_staff=True, is_superuser=True)


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.django_db(transaction=True)
def test_it_may_use_the_admin(superuser: User, as_the_user: Place) -> None:
    client = Client()
    client.force_login(superuser)
    singleton_job("nightly", schedule="@hourly")(nothing)
    begin("nightly")
    assert client.get(reverse("admin:index")).status_code == 200
    for name, seen in MATRIX.items():
        assert client.get(address(name)).status_code == seen[-1], name
    for name, (prepare, is_done, _) in ACTIONS.items():
        OneOffJob.objects.exclude(pk=OneOffJob.objects.earliest("pk").pk).delete()  # what another action enqueued
        prepare()
        assert choose(client, name) in (200, 302), name
        assert is_done() or name.split()[1] in ASKING, name
    for model in "joblock", "jobstatus", "jobrun", "oneoffjob":
        assert client.get(list_of(model, "?q=nightly")).status_code == 200
    sent = {"job_name": "nightly", "args": "[]", "kwargs": "{}", "priority": "0", "queue_name": "default"}
    forms: dict[str, dict[str, Any]] = {reverse("admin:django_singlejob_oneoffjob_add"): sent}
    forms[clear_page("nightly")] = Page(shown(client, clear_page("nightly"))).fields | {"force": "nightly"}
    start_run("quick", heartbeat_interval=timedelta(seconds=20))
    forms[stop_page("quick")] = Page(shown(client, stop_page("quick"))).fields
    for url, fields in forms.items():
        assert client.post(url, fields).status_code == 302, url
    client.logout()


# --- what it may not do

FORBIDDEN = [
    "CREATE TABLE mine (number integer)",
    "CREATE TEMPORARY TABLE mine (number integer)",
    "CREATE DATABASE mine_{name}",
    "CREATE INDEX mine ON django_singlejob_jobrun (pid)",
    "ALTER TABLE django_singlejob_jobrun ADD COLUMN mine integer",
    "TRUNCATE TABLE django_singlejob_jobrun",
    "DROP TABLE django_singlejob_jobrun",
    "DELETE FROM django_migrations",
    "INSERT INTO auth_group (name) VALUES ('mine')",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_it_may_not_change_a_table_or_what_is_not_its_own(as_the_user: Place, statement: str) -> None:
    with pytest.raises(Error) as refused:
        execute(statement.format(name=as_the_user.name))
    assert errors.lack(refused.value) is Lack.RIGHTS


def test_it_may_not_migrate(as_the_user: Place, spawn: Spawn) -> None:
    migrate = spawn.command("migrate", "django_singlejob", "zero")
    assert migrate.finish() == 1
    assert REFUSED.search(migrate.output)
    is_allowed(spawn.command("migrate", "--check"))


# --- if a grant is missing


@contextmanager
def revoked(place: Place, verb: str, table: str) -> Iterator[None]:
    where = table if connection.vendor == "postgresql" else f"{place.name}.{table}"
    with place.entered():
        execute(f"REVOKE {verb} ON {where} FROM {place.user}")
    try:
        yield
    finally:
        with place.entered():
            execute(f"GRANT {verb} ON {where} TO {place.user}")


@pytest.mark.parametrize(
    ("verb", "table", "prepare", "line"),
    [
        ("SELECT", "django_singlejob_joblock", nothing, "singleton_status"),
        ("SELECT", "django_singlejob_workerpass", nothing, "singleton_status"),
        ("INSERT", "django_singlejob_joblock", nothing, "run_singleton quick --now"),
        ("INSERT", "django_singlejob_jobstatus", nothing, "pause_singletons quick"),
        ("UPDATE", "django_singlejob_jobstatus", nothing, "run_singleton quick --now"),
        ("UPDATE", "django_singlejob_oneoffjob", something_due, "singleton_worker --drain"),
        ("DELETE", "django_singlejob_jobrun", something_that_ran, "prune_singletons --days 0"),
    ],
)
def test_a_missing_grant_is_reported_with_its_table(
    place: Place, spawn: Spawn, verb: str, table: str, prepare: Callable[[], None], line: str
) -> None:
    with place.entered():
        prepare()
    with revoked(place, verb, table):
        child = spawn.command(*line.split())
        assert child.finish() == 77, child.output
    assert any(re.search(GRANT, said) and table in said for said in child.output.splitlines())


@pytest.mark.parametrize("verb", ["INSERT", "UPDATE"])
def test_without_the_history_jobs_run_and_the_log_names_its_table(place: Place, spawn: Spawn, verb: str) -> None:
    with revoked(place, verb, "django_singlejob_jobrun"):
        child = spawn.command("run_singleton", "quick", "--now")
        assert child.finish() == 0, child.output
    assert "quick ran" in child.output
    assert "denied" in child.output
    assert "django_singlejob_jobrun" in child.output
