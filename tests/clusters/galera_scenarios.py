"""What may happen to a Galera cluster while applications on all of its nodes use the same locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.chaos.history import now
from tests.clusters.galera import DATABASE, NODES, Galera, Node, NodeError
from tests.clusters.scenario import ALWAYS, NOTHING_LOST, Scenario
from tests.clusters.stage import Stage, migrate
from tests.clusters.witness import figures
from tests.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clusters.stage import Application

Act = Callable[[Stage, Galera, float], None]

# What runs beside each node. The last one has callers only, because two processors cannot do everything at once.
BESIDE = (("calls", "holds", "works", "lines"), ("holds", "works", "lines"), ("calls",))
# How long a node is away, in seconds: longer than a lease, and than the others take to expel it.
AWAY = 6.0
# How long the workers have for the remaining work at the end, in seconds.
DRAINING = 90.0
# How long it may take until there is a write under each lock again, and how long a crontab line may take, in seconds. A
# line waits for a node that does not answer as long as the driver does, and then retries for five seconds.
GOES_ON = {"goes_on": 20.0, "longest_line": 40.0}


@dataclass
class Server:
    """A process of the application, and its network."""

    application: Application
    proxy: Proxy
    node: Node

    def move_to(self, node: Node) -> None:
        """Move it as a load balancer does: old sessions are ended, and new ones lead to the other node."""
        self.node = node
        self.proxy.server = ("127.0.0.1", node.port)
        self.proxy.go_down()
        self.proxy.come_back()


class Site:
    """The cluster, and the servers of the application beside its nodes."""

    def __init__(self, stage: Stage, cluster: Galera) -> None:
        self.stage = stage
        self.cluster = cluster
        self.servers: list[Server] = []
        self._stack = ExitStack()

    def open(self, *beside: tuple[str, ...]) -> None:
        for node, roles in zip(self.cluster.nodes, beside, strict=True):
            for role in roles:
                proxy = self._stack.enter_context(Proxy("127.0.0.1", node.port))
                self.servers.append(Server(self.stage.start(role, database(proxy.port)), proxy, node))

    def close(self) -> None:
        self._stack.close()

    def node_of(self, number: int) -> Node:
        """The node of the application with this number."""
        return next(server.node for server in self.servers if server.application.number == number)

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.cluster.nodes if other is not node]

    def move(self, victim: Node) -> None:
        """Move all applications away from that node."""
        for server in self.servers:
            if server.node is victim:
                server.move_to(self.others(victim)[0])

    def go_on(self, seconds: float) -> None:
        """Go on for `seconds`, and until there was a write under each lock again."""
        self.stage.wait(seconds)
        self.stage.wait_until(lambda: figures(self.stage.events).goes_on < float("inf"), GOES_ON["goes_on"])

    def finish(self) -> None:
        """End all applications, once the workers have done everything that was enqueued."""
        self.stage.end(*(one for one in self.stage.applications if one.role != "works"))
        self.stage.wait_until(lambda: self.backlog() == 0, DRAINING)
        self.stage.wind_down(self.backlog)

    def backlog(self) -> int:
        """The number of one-offs that are waiting or in progress."""
        sql = "SELECT count(*) FROM django_singlejob_oneoffjob WHERE status IN ('waiting', 'in_progress')"
        try:
            return int(self.cluster.nodes[0].query(sql, DATABASE)[0][0])
        except NodeError:
            return -1


def database(port: int) -> dict[str, Any]:
    """The database as Django's settings describe it."""
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": DATABASE,
        "USER": "root",
        "HOST": "127.0.0.1",
        "PORT": port,
        "OPTIONS": {"connect_timeout": 2, "read_timeout": 10, "write_timeout": 10},
    }


@contextmanager
def opened(stage: Stage, cluster: Galera, *beside: tuple[str, ...]) -> Iterator[Site]:
    """Applications at work. At the end of the block, they have ended."""
    cluster.heal()
    empty(stage, cluster)
    site = Site(stage, cluster)
    try:
        site.open(*beside)
        yield site
        site.finish()
    finally:
        site.close()


def empty(stage: Stage, cluster: Galera) -> None:
    """Empty the tables, and create them if they do not exist."""
    first = cluster.nodes[0]
    if not first.query("SHOW TABLES", DATABASE):
        migrate(database(first.port), stage.folder)
    for (table,) in first.query("SHOW TABLES LIKE 'django\\_singlejob\\_%'", DATABASE):
        first.query(f"DELETE FROM {table}", DATABASE)


# --- scenarios


def contend(stage: Stage, cluster: Galera, seconds: float) -> None:
    """Nothing happens to the nodes."""
    roles = ("calls", "calls", "works")
    with opened(stage, cluster, (*roles, "lines"), roles, roles):
        stage.wait_for_grant("task")
        stage.wait(2 * seconds)
    stage.note("conflicts", number=sum(node.conflicts for node in cluster.nodes))


@dataclass(frozen=True)
class Loss:
    """Nodes are lost one after the other, each with a holder of the long job beside it, and come back.

    `moves`: the applications beside a lost node move to another node; otherwise they wait for it.
    """

    faults: Sequence[Callable[[Node], None]]
    moves: bool = False

    def __call__(self, stage: Stage, cluster: Galera, seconds: float) -> None:
        with opened(stage, cluster, *BESIDE) as site:
            stage.wait_for_grant("long")
            stage.wait(seconds)
            for fault in self.faults:
                self._strike(site, fault)
                site.go_on(seconds)

    def _strike(self, site: Site, fault: Callable[[Node], None]) -> None:
        newest = site.stage.newest_grant("long")
        assert newest
        victim, until = site.node_of(newest["server"] or 0), now() + AWAY
        site.stage.note("fault", name=fault.__name__, node=victim.port)
        fault(victim)
        for other in site.others(victim):
            other.wait_for_size(NODES - 1)
        site.stage.note("whole")
        if self.moves:
            site.move(victim)
        site.stage.wait(until - now())
        site.cluster.heal()


def alone(act: Act, stage: Stage, seconds: float) -> None:
    """On a cluster that is started for this scenario."""
    folder = stage.folder / "cluster"
    folder.mkdir()
    stage.folder.chmod(0o755)  # The nodes do not run as root.
    with Galera(folder) as cluster:
        act(stage, cluster, seconds)


FAULTS: Sequence[Callable[[Node], None]] = (Node.cut_off, Node.pause, Node.kill)
ACTS: dict[str, Act] = {
    "galera-contention": contend,
    "galera-cut-off": Loss([Node.cut_off]),
    "galera-cut-off-moved": Loss([Node.cut_off], moves=True),
    "galera-paused": Loss([Node.pause]),
    "galera-paused-moved": Loss([Node.pause], moves=True),
    "galera-killed": Loss([Node.kill]),
    "galera-killed-moved": Loss([Node.kill], moves=True),
    "galera-losses": Loss(FAULTS),
}
PROMISED = ALWAYS | GOES_ON | NOTHING_LOST
SCENARIOS = [Scenario(name, partial(alone, act), PROMISED) for name, act in ACTS.items()]
