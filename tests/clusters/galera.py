"""A MariaDB Galera cluster of our own: three nodes on this machine, which the tests start, torment and stop."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.ports import quiet_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

NODES = 3
DATABASE = "galera"
# Where Debian's galera-4, and other packages, install it.
PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")
PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb", "wsrep_sst_rsync", "rsync")
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
PATIENCE = 60.0
# In seconds. Wide enough for a busy machine: the cluster expels a node that is later than this.
SUSPECT, INACTIVE = 2.0, 4.0


def missing() -> str:
    """What this machine lacks for a cluster, in words; empty if it lacks nothing."""
    programs = [program for program in PROGRAMS if not found(program)]
    libraries = [] if provider() else [PROVIDERS[0]]
    lacking = ", ".join(programs + libraries)
    return lacking and f"A Galera cluster needs {lacking}: `apt-get install mariadb-server galera-4 rsync`."


def found(program: str) -> str | None:
    return shutil.which(program, path=SEARCH_PATH)


def provider() -> str | None:
    return next((path for path in PROVIDERS if Path(path).exists()), None)


def as_whom() -> dict[str, Any]:
    """Arguments that keep a process from running as root, because rsync drops root's rights and then cannot write."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class NodeError(Exception):
    """A node, or the client that asked it, reported an error."""


class Session:
    """A client's connection that stays open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def execute(self, sql: str) -> None:
        """Execute the statement, and return when it is done."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{sql}; SELECT 'done';\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().strip()
        if said != "done":
            raise NodeError(f"{sql}: {said}")


class Node:
    """One server of the cluster. It can be started again after any fault."""

    def __init__(self, number: int, folder: Path, ports: list[int]) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.data = folder / self.name
        self.port, self.group_port, self._ist_port, self._sst_port = ports
        self._log = folder / f"{self.name}.log"
        self._sockets = folder / f"{number}.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def install(self) -> None:
        program = found("mariadb-install-db")
        assert program
        command = [program, *self._basics(), "--auth-root-authentication-method=normal"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **as_whom())
        if done.returncode:
            raise NodeError(f"mariadb-install-db failed: {done.stdout}{done.stderr}")

    def start(self, peers: list[Node], *, is_first: bool = False) -> None:
        """Begin to start it; `wait_until_synced` waits. `is_first`: it founds the cluster."""
        group = "gcomm://" + ",".join(f"127.0.0.1:{peer.group_port}" for peer in peers if not is_first)
        position = [] if is_first else self._recovered_position()
        options = [
            *self._basics(),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self._sockets}",
            f"--pid-file={self.data}/pid",
            "--skip-name-resolve",
            "--max-connections=300",
            "--performance-schema=OFF",
            "--wsrep-on=ON",
            f"--wsrep-provider={provider()}",
            f"--wsrep-cluster-address={group}",
            "--wsrep-cluster-name=singlejob",
            f"--wsrep-node-name={self.name}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-node-incoming-address=127.0.0.1:{self.port}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self._sst_port}",
            f"--wsrep-provider-options={self._provider_options()}",
            *(["--wsrep-new-cluster"] if is_first else []),
            *position,
        ]
        self._is_paused = False
        self._process = self._popen(*options)

    def _basics(self) -> list[str]:
        return [
            "--no-defaults",  # must be the first
            f"--datadir={self.data}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            # The other nodes have what this one loses.
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
        ]

    def _provider_options(self) -> str:
        options = {
            "base_host": "127.0.0.1",
            "base_port": self.group_port,
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self._ist_port}",
            "gcache.size": "32M",
            "gcache.recover": "yes",
            "gmcast.peer_timeout": "PT2S",
            "evs.keepalive_period": "PT0.5S",
            "evs.inactive_check_period": "PT0.25S",
            "evs.suspect_timeout": f"PT{SUSPECT}S",
            "evs.inactive_timeout": f"PT{INACTIVE}S",
            "evs.install_timeout": f"PT{INACTIVE}S",
            "pc.announce_timeout": "PT1S",
        }
        return ";".join(f"{name}={value}" for name, value in options.items())

    def _recovered_position(self) -> list[str]:
        """The position of its own data, found as mariadbd-safe does. Only what comes after it must then be sent."""
        if "seqno:   -1" not in (self.data / "grastate.dat").read_text():
            return []  # It was stopped in order, so it knows.
        before = len(self.log)
        self._popen(*self._basics(), "--wsrep-recover", "--skip-networking", f"--socket={self._sockets}").wait(PATIENCE)
        lines = [line for line in self.log[before:].splitlines() if "Recovered position: " in line]
        return [f"--wsrep-start-position={lines[-1].rpartition(': ')[2].strip()}"] if lines else []

    def _popen(self, *options: str) -> subprocess.Popen[bytes]:
        program = found("mariadbd")
        assert program
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [program, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The scripts that transfer a state are found there.
                env=os.environ | {"PATH": SEARCH_PATH},
                start_new_session=True,  # Ctrl-C is for the tests, which stop it when they are done.
                **as_whom(),
            )

    # --- faults

    def stop(self) -> None:
        """Have it leave the cluster and exit, as when the service is restarted."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, signum: int) -> None:
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signum)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # rsync, if it was sending or receiving

    def pause(self) -> None:
        """Stop it in the middle of whatever it does: it does not answer, and its sockets stay open."""
        assert self._process
        self._is_paused = True
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process and self._is_paused:
            self._is_paused = False
            self._process.send_signal(signal.SIGCONT)

    def cut_off(self) -> None:
        """Have it lose the other nodes. Its clients still reach it, and soon get error 1047."""
        self.query("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")

    def reconnect(self) -> None:
        self.query("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")

    # --- its answers

    def query(self, sql: str, database: str = "") -> list[list[str]]:
        """The rows. Raises `NodeError`."""
        program = found("mariadb")
        assert program
        command = [program, *self._client(), f"--execute={sql}", database]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired as error:
            raise NodeError(f"{self.name} did not answer {sql!r}") from error
        if done.returncode:
            raise NodeError(f"{self.name}: {done.stderr.strip()}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    @contextmanager
    def session(self, database: str = DATABASE) -> Iterator[Session]:
        """Statements in one session; the locks that they take are released at the end of the block."""
        program = found("mariadb")
        assert program
        command = [program, *self._client(), "--unbuffered", database]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            yield Session(process)

    def _client(self) -> list[str]:
        server = ["--host=127.0.0.1", f"--port={self.port}", "--user=root", "--connect-timeout=2"]
        return ["--no-defaults", *server, "--batch", "--skip-column-names"]

    def status(self, name: str) -> str:
        """One of its `wsrep_` variables; empty if it does not answer."""
        try:
            rows = self.query(f"SHOW GLOBAL STATUS LIKE 'wsrep_{name}'")
        except NodeError:
            return ""
        return rows[0][1] if rows else ""

    @property
    def conflicts(self) -> int:
        """How many transactions of its clients it has ended because of another node's commit."""
        return int(self.status("local_bf_aborts") or 0) + int(self.status("local_cert_failures") or 0)

    @property
    def is_synced(self) -> bool:
        return (self.status("cluster_status"), self.status("local_state_comment")) == ("Primary", "Synced")

    def wait_until_synced(self) -> None:
        self._wait_until(lambda: self.is_synced, "part of the cluster")

    def wait_until_alone(self) -> None:
        """Wait until it knows that it has lost the others."""
        self._wait_until(lambda: self.status("cluster_status") == "non-Primary", "cut off")

    def wait_for_size(self, size: int) -> None:
        """Wait until it sees `size` nodes, including itself."""
        self._wait_until(lambda: self.status("cluster_size") == str(size), f"{size} nodes")

    def wait_for_commit(self) -> None:
        """Wait until a session is in its COMMIT."""
        sql = "SELECT id FROM information_schema.processlist WHERE info = 'COMMIT'"
        self._wait_until(lambda: self.query(sql), "a session in a COMMIT")

    def wait_for_rows(self, sql: str, rows: list[list[str]]) -> None:
        """Wait until the query returns these rows."""
        self._wait_until(lambda: self.query(sql, DATABASE) == rows, f"the rows {rows}")

    def _wait_until(self, is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if not self.is_running or time.monotonic() > deadline:
                raise NodeError(
                    f"{self.name} did not reach the state {what!r}. The end of its log:\n{self.log[-20000:]}"
                )
            time.sleep(0.1)


class Galera:
    """The cluster, in an existing folder. At the end of the block, all its processes are ended."""

    def __init__(self, folder: Path) -> None:
        reason = missing()
        if reason:
            raise RuntimeError(reason)
        ports = quiet_ports(4 * NODES)
        self.folder = folder
        self.nodes = [Node(number, folder, ports[4 * number : 4 * number + 4]) for number in range(NODES)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.kill)
            self._install()
            first, *others = self.nodes
            first.start(self.nodes, is_first=True)
            for node in others:
                node.start(self.nodes)
            for node in self.nodes:
                node.wait_until_synced()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _install(self) -> None:
        """All nodes begin with the same data, so none has to be sent it."""
        if as_whom():
            self.folder.chmod(0o755)
            shutil.chown(self.folder, as_whom()["user"])
        first, *others = self.nodes
        first.install()
        first.start([], is_first=True)
        first.wait_until_synced()
        first.query(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        first.stop()
        for node in others:
            subprocess.run(["cp", "-a", first.data, node.data], check=True)

    def start(self, node: Node) -> None:
        """Start the node, and wait until it is part of the cluster."""
        node.start(self.nodes)
        node.wait_until_synced()

    def heal(self) -> None:
        """Undo all faults of the nodes, and wait until all are together again."""
        for node in self.nodes:
            node.resume()
            if node.is_running:
                with suppress(NodeError):
                    node.reconnect()
            else:
                self.start(node)
        for node in self.nodes:
            node.wait_for_size(NODES)
            node.wait_until_synced()
