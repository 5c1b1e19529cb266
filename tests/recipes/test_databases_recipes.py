"""The recipes for the database: each snippet is part of a project's settings, and jobs run with them."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from django_singlejob import current_run
from django_singlejob.models import JobRun, OneOffJob
from tests.databases import APPS, named
from tests.monitoring.test_checks import PATIENT
from tests.processes.set_ups import execute
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.children import Child, Spawn
    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.modules"]
pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

on_sqlite = pytest.mark.on_database("sqlite")
on_postgresql = pytest.mark.on_database("postgresql")
on_mysql = pytest.mark.on_database("mysql")

#: The settings of the page, for the database of the tests.
SETTINGS = """
from tests.settings import *
from tests.settings import DATABASES, env
usual = DATABASES["default"]
{snippet}
given = DATABASES["default"]
assert given["ENGINE"] == usual["ENGINE"]
where = {{key: usual[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT") if key in usual}}
DATABASES["default"] = {{**usual, **given, **where, "OPTIONS": usual["OPTIONS"] | given.get("OPTIONS", {{}})}}
"""
#: Run a job, and print what the project has of a setting.
RUN = """
from django.core.checks import run_checks
from django.db import connection
from tests.app.jobs import quick

assert quick() == "done"
with connection.cursor() as cursor:
    print({what})
"""


def run_with(spawn: Spawn, text: str, what: str) -> str:
    """Run a job in a process with these settings, and return what it prints."""
    (spawn.folder / "settings_of_page.py").write_text(SETTINGS.format(snippet=text))
    child = spawn.code(RUN.format(what=what), **settings_in(spawn.folder, "settings_of_page"))
    assert child.finish() == 0, child.output
    return child.output.split("quick ran\n")[1].strip()


def settings_in(folder: Path, name: str) -> dict[str, str]:
    return {"DJANGO_SETTINGS_MODULE": name, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def asking(sql: str) -> str:
    """The expression for the only value that this query finds."""
    return f"cursor.execute({sql!r}) and 0 or cursor.fetchone()[-1]"


@on_postgresql
def test_pgbouncer(spawn: Spawn) -> None:
    what = "connection.settings_dict['DISABLE_SERVER_SIDE_CURSORS']"
    assert run_with(spawn, snippet("recipes/databases.md", "PgBouncer"), what) == "True"


@on_postgresql
def test_psycopgs_pool(spawn: Spawn) -> None:
    what = "connection.pool.min_size, connection.pool.max_size"
    assert run_with(spawn, snippet("recipes/databases.md", "psycopg's pool"), what) == "2 10"


def run(text: str, **names: Any) -> dict[str, Any]:
    exec(text, names)
    return names


@on_sqlite
def test_sqlite(spawn: Spawn) -> None:
    text = snippet("recipes/databases.md", "SQLite")
    complaints = "[found.id for found in run_checks() if not found.is_silenced()]"
    what = f"cursor.execute('PRAGMA journal_mode').fetchone()[0], {complaints}"
    assert run_with(spawn, text, what) == "wal []"


@on_postgresql
def test_time_outs_for_postgresql(spawn: Spawn) -> None:
    text = snippet("recipes/databases.md", "Time-outs for PostgreSQL")
    assert run_with(spawn, text, "connection.get_connection_params()['tcp_user_timeout']") == "10000"
    assert run(text)["DATABASES"]["default"]["OPTIONS"] == PATIENT["postgresql"]


@on_mysql
def test_time_outs_for_mysql(spawn: Spawn) -> None:
    text = snippet("recipes/databases.md", "Time-outs for MariaDB and MySQL")
    assert run_with(spawn, text, "connection.get_connection_params()['read_timeout']") == "60"
    assert run(text)["DATABASES"]["default"]["OPTIONS"] == PATIENT["mysql"]


@on_sqlite
def test_a_database_of_its_own_for_the_locks(spawn: Spawn) -> None:
    folder = spawn.folder
    (folder / "shop").mkdir()
    (folder / "shop" / "routers.py").write_text(
        snippet("recipes/databases.md", "A database of its own for the locks", number=2)
    )
    alias = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "locks.sqlite3")}
    (folder / "two_databases.py").write_text(
        "from tests.settings import *\n"
        f"DATABASES['locks'] = {alias}\n" + snippet("recipes/databases.md", "A database of its own for the locks")
    )
    (line,) = snippet("recipes/databases.md", "A database of its own for the locks", "console").splitlines()
    for words in shlex.split(line)[3:], ["run_singleton", "quick", "--now"]:
        succeeds(spawn.command(*words, **settings_in(folder, "two_databases")))
    with sqlite3.connect(folder / "locks.sqlite3") as locks:
        assert locks.execute("SELECT job_name, status FROM django_singlejob_jobrun").fetchall() == [
            ("quick", "successful")
        ]
        tables = {name for (name,) in locks.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    locks.close()
    assert {name.partition("_")[0] for name in tables} == {"django", "sqlite"}
    assert not JobRun.objects.exists()


def succeeds(child: Child) -> None:
    assert child.finish() == 0, child.output


# --- django-tenants


@pytest.fixture
def entered(modules: Modules) -> list[str]:
    """The schemas that jobs enter, with a stand-in for django-tenants. The tests need not install it."""
    schemas: list[str] = []

    @contextmanager
    def schema_context(name: str) -> Iterator[None]:
        schemas.append(name)
        yield

    class Tenants:
        def exclude(self, *, schema_name: str) -> list[Tenant]:
            return [Tenant(name) for name in ("public", "acme", "bolt") if name != schema_name]

    class Tenant:
        objects = Tenants()

        def __init__(self, schema_name: str) -> None:
            self.schema_name = schema_name

    modules(
        "django_tenants.utils",
        get_public_schema_name=lambda: "public",
        get_tenant_model=lambda: Tenant,
        schema_context=schema_context,
    )
    return schemas


@on_sqlite
def test_a_job_for_each_tenant(entered: list[str]) -> None:
    send_all_invoices = run(snippet("recipes/databases.md", "Run a job for each tenant"))["send_all_invoices"]
    send_all_invoices()
    for one_off in OneOffJob.objects.waiting():
        assert one_off.job_name == "send_invoices"
        call_command(
            "run_singleton", "send_invoices", "--now", "--inline", "--args", str(one_off.args).replace("'", '"')
        )
    assert entered == ["acme", "bolt"]
    assert current_run() is None


#: A project with a table for each tenant. Its job is that of the page, with a body.
PROJECT = {
    "settings_with_tenants.py": """
from tests.settings import *
from tests.settings import DATABASES
{snippet}
SHARED_APPS += ["django.contrib.contenttypes"]
INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
MIDDLEWARE, TASKS, ROOT_URLCONF = [], {{}}, "shop.urls"
SINGLEJOB = {{"LEASE": __import__("datetime").timedelta(seconds=6)}}
TENANT_MODEL, TENANT_DOMAIN_MODEL = "customers.Customer", "customers.Domain"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
DATABASES["default"] |= {{"ENGINE": "django_tenants.postgresql_backend", "NAME": "{name}"}}
""",
    "customers/__init__.py": "",
    "customers/models.py": """
from django_tenants.models import DomainMixin, TenantMixin

class Customer(TenantMixin):
    auto_create_schema = True

class Domain(DomainMixin): ...
""",
    "shop/__init__.py": "",
    "shop/urls.py": "urlpatterns = []",
    "shop/models.py": """
from django.db import models

class Invoice(models.Model):
    text = models.TextField()
""",
    "shop/jobs.py": "{job}",
}
BODY = """
        from django.db import connection
        from django_singlejob import current_run
        from shop.models import Invoice
        with current_run().lease.atomic():
            Invoice.objects.create(text=connection.schema_name)
"""
IN_A_TENANT = """
from customers.models import Customer
from django_singlejob.models import JobRun, OneOffJob
from django_tenants.utils import schema_context
from shop.jobs import send_all_invoices, send_invoices
from shop.models import Invoice
from django.core.management import call_command

for name in "public", "acme", "bolt":
    Customer(schema_name=name).save(verbosity=0)
with schema_context("acme"):
    send_all_invoices()
    send_invoices("bolt")
call_command("singleton_worker", "--drain")
for name in "acme", "bolt":
    with schema_context(name):
        done = JobRun.objects.filter(status="successful")
        print(name, [invoice.text for invoice in Invoice.objects.all()], done.count())
"""


@pytest.fixture
def name_of_tenants(django_db_setup: None) -> Iterator[str]:
    pytest.importorskip("django_tenants")
    name = named("tenants")
    execute(f"CREATE DATABASE {name}")
    yield name
    execute(f"DROP DATABASE {name} WITH (FORCE)")


@on_postgresql
def test_django_tenants(spawn: Spawn, name_of_tenants: str) -> None:
    job = snippet("recipes/databases.md", "Run a job for each tenant").replace("        ...", BODY)
    for name, text in PROJECT.items():
        path = spawn.folder / name
        path.parent.mkdir(exist_ok=True)
        settings = snippet("recipes/databases.md", "django-tenants")
        path.write_text(text.format(snippet=settings, job=job, name=name_of_tenants))
    env = settings_in(spawn.folder, "settings_with_tenants")
    for words in ["makemigrations", "customers", "shop"], ["singleton_migrate"]:
        succeeds(spawn.command(*words, **env))
    child = spawn.code(IN_A_TENANT, **env)
    succeeds(child)
    assert child.output.splitlines()[-2:] == ["acme ['acme'] 5", "bolt ['bolt', 'bolt'] 5"]
