"""All benchmarks, on the database in DATABASE_URL, or else on a SQLite and a PostgreSQL of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import django
import psycopg
from django.core.management import call_command
from django.db import connection
from django.utils.module_loading import import_string

from tests.databases import PostgreSQL


class DurablePostgreSQL(PostgreSQL):
    """A server that keeps what was committed, unlike the one of the tests."""

    def start(self) -> None:
        super().start()
        options = f"-h 127.0.0.1 -p {self.port} -k ''"
        self.run("pg_ctl", "restart", "--wait", f"--log={self.data / 'log'}", f"--options={options}")


def main() -> None:
    if url := os.environ.get("DATABASE_URL"):
        if "bench" not in urlsplit(url).path:
            sys.exit("The benchmarks write to their database: set DATABASE_URL to one whose name contains 'bench'.")
        measure_all(url)
    else:
        with tempfile.TemporaryDirectory(prefix="singlejob-") as folder:
            measure_on(f"sqlite:///{folder}/bench.sqlite3")
            server = DurablePostgreSQL(Path(folder))
            server.start()
            try:
                with psycopg.connect(server.url, autocommit=True) as server_connection:
                    server_connection.execute("CREATE DATABASE bench")
                measure_on(urlsplit(server.url)._replace(path="/bench").geturl())
            finally:
                server.stop()


def measure_on(url: str) -> None:
    subprocess.run([sys.executable, "-m", "tests.benchmarks"], env=os.environ | {"DATABASE_URL": url}, check=True)


def measure_all(url: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.benchmarks.settings")
    django.setup()
    print(f"\n=== {urlsplit(url).scheme}, Django {django.__version__}, Python {platform.python_version()}")
    call_command("migrate", run_syncdb=True, verbosity=0)
    import_string("tests.benchmarks.cost.compare")()
    if connection.vendor == "postgresql":
        import_string("tests.benchmarks.admin.compare")()
    if not import_string("tests.benchmarks.settings.HAS_TASKS"):
        print("\nMeasuring tasks needs Django 6.0 or newer, and so Python 3.12 or newer.")
        return
    import_string("tests.benchmarks.throughput.compare")()
    if connection.vendor == "postgresql":
        import_string("tests.benchmarks.crowded.compare")()


if __name__ == "__main__":
    main()
