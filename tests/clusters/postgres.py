"""A PostgreSQL primary and its standbys, on free ports in a temporary folder, and how applications reach them."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.clusters.stage import migrate
from tests.databases import Installation, PostgreSQL
from tests.ports import quiet_port
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

BACKLOG = "SELECT count(*) FROM django_singlejob_oneoffjob WHERE status IN ('waiting', 'in_progress')"


class Node(PostgreSQL):
    """One server; `name` is what `synchronous_standby_names` calls it."""

    options = PostgreSQL.options + " -c full_page_writes=off -c wal_receiver_timeout=5s -c wal_sender_timeout=5s"

    def __init__(self, folder: Path, name: str, installation: Installation) -> None:
        folder.mkdir()
        folder.chmod(0o755)
        super().__init__(folder, installation)
        self.port = quiet_port()
        if installation.user:
            shutil.chown(folder, installation.user)
        self.name = name
        self.options += f" -c cluster_name={name}"

    def copy(self, data: Path) -> None:
        """Begin with the data of a stopped server."""
        subprocess.run(["cp", "-a", f"{data}/.", self.data], check=True)

    def follow(self, port: int) -> None:
        """Begin as a standby of the primary at that port."""
        source = f"host=127.0.0.1 port={port} user=postgres"
        self.run(
            "pg_basebackup", f"--pgdata={self.data}", f"--dbname={source}", *["-R", "-X", "stream", "-c", "fast", "-N"]
        )

    def promote(self) -> None:
        self.control("promote")

    def query(self, sql: str) -> Any:
        """The first column of the first row, or `None` if there is no row."""
        with psycopg.connect(self.url, dbname="application", autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql.encode())
            row = cursor.fetchone() if cursor.description else None
            return row and row[0]

    def change(self, name: str, value: str) -> None:
        """Change a setting of the server while it runs."""
        self.query(f"ALTER SYSTEM SET {name} = '{value}'")
        self.query("SELECT pg_reload_conf()")

    # --- faults

    def kill(self) -> None:
        """Kill it at once, with all its processes."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, signum: int) -> None:
        with suppress(FileNotFoundError):
            first = int((self.data / "postmaster.pid").read_text().split()[0])
            # The parent first, so that it starts no others.
            for pid in (first, *children(first)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, _, rest = status.read_text().partition(" ")
            if rest.rpartition(")")[2].split()[1] == str(parent):
                found.append(int(pid))
    return found


class Template:
    """What every cluster begins with: the binaries, and a stopped server with our tables."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.installation = Installation(folder)
        node = Node(folder / "template", "template", self.installation)
        node.create()
        node.start()
        try:
            with psycopg.connect(node.url, autocommit=True) as connection:
                # A role without special rights, like those of applications.
                connection.execute("CREATE ROLE application LOGIN")
                connection.execute("CREATE DATABASE application OWNER application")
            migrate(direct(node), folder)
        finally:
            node.stop("fast")
        self.data = node.data


@cache
def template() -> Template:
    """One template for the whole process, which leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="singlejob-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Template(folder)


class Cluster:
    """A primary and its standbys. Each standby receives its stream through a proxy of its own."""

    def __init__(self, standbys: int = 1) -> None:
        self.standbys: list[Node] = []
        self.streams: list[Proxy] = []
        self._count = standbys
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="singlejob-postgres-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        try:
            self._start(folder)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, folder: Path) -> None:
        installation = template().installation
        self.primary = Node(folder / "primary", "primary", installation)
        self.primary.copy(template().data)
        self._run(self.primary)
        for number in range(self._count):
            stream = self._stack.enter_context(Proxy("127.0.0.1", self.primary.port))
            standby = Node(folder / f"standby{number}", f"standby{number}", installation)
            standby.follow(stream.port)
            self._run(standby)
            self.streams.append(stream)
            self.standbys.append(standby)

    def _run(self, node: Node) -> None:
        self._stack.callback(node.kill)
        node.start()

    @property
    def nodes(self) -> Sequence[Node]:
        return [self.primary, *self.standbys]

    def synchronize(self, names: str) -> None:
        """Make each COMMIT wait for these standbys, in the syntax of `synchronous_standby_names`."""
        self.primary.change("synchronous_standby_names", names)


class Route:
    """How one application reaches the cluster: over a proxy that leads to the primary."""

    def __init__(self, cluster: Cluster) -> None:
        self.proxies = [Proxy("127.0.0.1", node.port) for node in self.ends(cluster)]

    def ends(self, cluster: Cluster) -> Iterable[Node]:
        return [cluster.primary]

    def __enter__(self) -> Self:
        for proxy in self.proxies:
            proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for proxy in self.proxies:
            proxy.go_down()

    @property
    def database(self) -> dict[str, Any]:
        return settings([proxy.port for proxy in self.proxies])

    def fall_silent(self, node: Node) -> None:
        """As when the cable is cut, or the host is gone."""
        for proxy in self._to(node):
            proxy.black_hole()

    def give_up(self, node: Node) -> None:
        """As when keepalives have failed: connections end, and new ones are refused."""
        for proxy in self._to(node):
            proxy.go_down()

    def lead_to(self, node: Node) -> None:
        """Lead new sessions to this node, and end those with any other."""
        (proxy,) = self.proxies
        proxy.go_down()
        proxy.server = ("127.0.0.1", node.port)
        proxy.come_back()

    def _to(self, node: Node) -> list[Proxy]:
        return [proxy for proxy in self.proxies if proxy.server[1] == node.port]


class Hosts(Route):
    """How one application reaches the cluster: by a list of hosts, from which it takes one that can be written to."""

    def ends(self, cluster: Cluster) -> Iterable[Node]:
        return cluster.nodes

    def lead_to(self, node: Node) -> None:
        for proxy in self._to(node):
            proxy.come_back()


def direct(node: Node) -> dict[str, Any]:
    return settings([node.port])


def settings(ports: Sequence[int]) -> dict[str, Any]:
    """Django's settings, with what we recommend for a database that may go away."""
    options: dict[str, Any] = {"connect_timeout": 2, "sslmode": "disable", "gssencmode": "disable"}
    if len(ports) > 1:
        options["target_session_attrs"] = "read-write"
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "application",
        "USER": "application",
        "HOST": ",".join("127.0.0.1" for _ in ports),
        "PORT": ",".join(map(str, ports)),
        "OPTIONS": options,
    }
