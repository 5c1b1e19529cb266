"""The benchmarks, on the database in DATABASE_URL, or else on a SQLite and a PostgreSQL of their own, and in a database
of their own on the server in MYSQL_URL."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import django
import psycopg
from django.core.management import call_command
from django.db import connection, connections
from django.utils.module_loading import import_string

from tests.benchmarks.servers import DurablePostgreSQL, running

#: What fills the table, in its order: a few minutes for each database.
ROWS = ("cost", "waits", "instructions", "race", "latency", "endurance")
#: What prints a table of its own. All of them take many minutes. Some are for PostgreSQL, some need django.tasks.
TABLES = ("processes", "enqueue", "throughput", "crowded", "soak", "curves")
FOR_POSTGRESQL = ("enqueue", "crowded", "soak")
WITH_TASKS = ("enqueue", "throughput", "crowded", "soak")
PARTS, DEFAULT = ", ".join([*ROWS, *TABLES]), ", ".join(ROWS)
#: Only as a process that a part starts.
COUNTED = "counted"


def main() -> None:
    arguments = parse()
    url = os.environ.get("DATABASE_URL")
    if not url:
        measure_on_our_own()
    elif "bench" not in urlsplit(url).path:
        sys.exit("The benchmarks write to their database: set DATABASE_URL to one whose name contains 'bench'.")
    else:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.benchmarks.settings")
        django.setup()
        measure(arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{PARTS} (default: {DEFAULT})")
    parser.add_argument("--cycles", type=int, default=2000, help="of endurance and soak (default: 2000)")
    parser.add_argument("--plots", help="the folder to draw plots into")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - {*ROWS, *TABLES, COUNTED}:
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {PARTS}")
    return arguments


def measure_on_our_own() -> None:
    with tempfile.TemporaryDirectory(prefix="singlejob-") as folder:
        measure_in_a_process(f"sqlite:///{folder}/bench.sqlite3")
    with running(DurablePostgreSQL) as server:
        with psycopg.connect(server.url, autocommit=True) as server_connection:
            server_connection.execute("CREATE DATABASE bench")
        measure_in_a_process(with_database(server.url, "bench"))
    if url := os.environ.get("MYSQL_URL"):
        with mysql_database(url) as own:
            measure_in_a_process(own)


@contextmanager
def mysql_database(url: str) -> Iterator[str]:
    """A new database on a server that is not ours."""
    driver: Any = import_module("MySQLdb")
    server, name = urlsplit(url), f"bench_{os.getpid()}"
    account = {"user": server.username or "root", "password": server.password or ""}
    with closing(driver.connect(host=server.hostname, port=server.port or 3306, **account)) as server_connection:
        cursor = server_connection.cursor()
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        try:
            yield with_database(url, name)
        finally:
            cursor.execute(f"DROP DATABASE {name}")


def with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def measure_in_a_process(url: str) -> None:
    command = [sys.executable, "-m", "tests.benchmarks", *sys.argv[1:]]
    subprocess.run(command, env=os.environ | {"DATABASE_URL": url}, check=True)


# --- on one database


def measure(arguments: argparse.Namespace) -> None:
    if arguments.parts == [COUNTED]:
        import_string("tests.benchmarks.counted.report")()
        return
    call_command("migrate", run_syncdb=True, verbosity=0)
    print(f"\n=== {server()}, Django {django.__version__}, Python {platform.python_version()}")
    parts = arguments.parts or ROWS
    if rows := [part for part in parts if part in ROWS]:
        fill_table(rows, arguments)
    for part in parts:
        if part in TABLES and can_run(part):
            import_string(f"tests.benchmarks.{part}.compare")(*arguments_of(part, arguments))


def arguments_of(part: str, arguments: argparse.Namespace) -> list[Any]:
    if part == "curves":
        return [new_plotter(arguments)]
    return [arguments.cycles] if part == "soak" else []


def server() -> str:
    version = ".".join(map(str, connection.get_database_version()))
    return f"{connection.display_name} {version}"


def fill_table(parts: Iterable[str], arguments: argparse.Namespace) -> None:
    table = import_string("tests.benchmarks.candidates.new_table")(connection.display_name)
    plotter = new_plotter(arguments)
    options = {"race": [plotter], "latency": [plotter], "endurance": [plotter, arguments.cycles]}
    for part in parts:
        import_string(f"tests.benchmarks.{part}.fill")(table, *options.get(part, []))
        connections.close_all()


def new_plotter(arguments: argparse.Namespace) -> Any:
    return import_string("tests.benchmarks.plots.Plotter")(arguments.plots)


def can_run(part: str) -> bool:
    if part in FOR_POSTGRESQL and connection.vendor != "postgresql":
        return False
    if part in WITH_TASKS and not import_string("tests.benchmarks.settings.HAS_TASKS"):
        print(f"\nMeasuring {part} needs Django 6.0 or newer, and so Python 3.12 or newer.")
        return False
    return True


if __name__ == "__main__":
    main()
