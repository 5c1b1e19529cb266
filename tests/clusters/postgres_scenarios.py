"""What may happen to a PostgreSQL primary and its standbys while applications work."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.history import now
from tests.clusters import LEASE
from tests.clusters.postgres import BACKLOG, Cluster, Hosts, Node, Route, direct
from tests.clusters.scenario import ALWAYS, NOTHING_LOST, Scenario
from tests.clusters.witness import figures

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from tests.clusters.stage import Stage

# The role of each application. If the network is split, those with an even number are on one side.
ROLES = ("calls", "calls", "holds", "holds", "works", "works", "lines")
# How long a run of the long job counts as new, in seconds.
FRESH = 2.0
# How long it takes until a lost primary is noticed and the standby promoted, in seconds.
NOTICED = 2.0
# How long TCP waits for a host that does not answer, by `tcp_user_timeout` and keepalives, in seconds.
SILENCE = 3.0
# How long it takes at least to lose a lease, have the lock taken over, and write under it, in seconds.
AFTERMATH = 2 * LEASE.total_seconds()
# How long it may take until there is a write under each lock again, and how long a crontab line may take, in seconds.
GOES_ON = {"goes_on": 20.0, "longest_line": 40.0}


class Site:
    """A cluster and its applications, each with its own way to reach it."""

    def __init__(self, stage: Stage, cluster: Cluster, route: type[Route]) -> None:
        self.stage = stage
        self.cluster = cluster
        self.routes: list[Route] = []
        self._route = route
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.cluster)
        for _ in ROLES:
            self.routes.append(self._stack.enter_context(self._route(self.cluster)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def work(self, seconds: float) -> None:
        """Start the applications, and let them work for `seconds`."""
        for role, route in zip(ROLES, self.routes, strict=True):
            self.stage.start(role, route.database)
        self.stage.wait_for_grant("long")
        self.stage.wait(seconds)

    def wait_for_long_job(self) -> int:
        """Wait until it has been running for a moment, with some time left. Returns the number of its holder."""
        self.stage.wait(random.uniform(0, 1))
        newest = self.stage.newest_grant("long")
        if newest is None or now() - newest["at"] > FRESH:
            number = self.stage.wait_for_grant("long")
            self.stage.wait(random.uniform(0.5, FRESH))
            return number
        return newest["server"] or 0

    def lose_grants(self) -> None:
        """Keep from the standby everything that happens from now on. On it, nobody has the lock of the long job."""
        holders = [one for one in self.stage.applications if one.role == "holds"]
        self.stage.end(*holders)
        self.stage.wait(0.5)
        for stream in self.cluster.streams:
            stream.black_hole()
        for application in holders:
            self.stage.start_again(application)
        self.stage.wait_for_grant("long")
        self.stage.wait(random.uniform(0.5, FRESH))

    def fail_over(self, standby: Node, routes: Iterable[Route]) -> None:
        standby.promote()
        self.stage.note("survivor", node=standby.port)
        for route in routes:
            route.lead_to(standby)
        self.stage.note("whole")

    def go_on(self, seconds: float = 0.0) -> None:
        """Go on for `seconds` at least, until there was a write under each lock again and a crontab line has run."""
        whole_at = max(event["at"] for event in self.stage.events if event["event"] == "whole")
        self.stage.wait(seconds)
        self.stage.wait_until(lambda: figures(self.stage.events).goes_on < float("inf"), GOES_ON["goes_on"])
        self.stage.wait_until(lambda: any(line["at"] > whole_at for line in self.stage.lines(0)))

    def wind_down(self, primary: Node) -> None:
        self.stage.wind_down(lambda: int(primary.query(BACKLOG)))


# --- the primary is lost


def killed(site: Site) -> list[Route]:
    """The server dies. Returns the routes on the standby's side."""
    site.cluster.primary.kill()
    site.stage.wait(NOTICED)
    return site.routes


def killed_for_long(site: Site) -> list[Route]:
    """The server stays dead until a crontab line reports that no database answers."""
    begun_at = now()
    site.cluster.primary.kill()
    site.stage.wait_until(lambda: any(one["at"] > begun_at for one in site.stage.lines(69)))
    return site.routes


def paused(site: Site) -> list[Route]:
    """As on a machine that is suspended. It goes on after the failover."""
    site.cluster.primary.pause()
    site.stage.wait(NOTICED)
    return site.routes


def cut_off(site: Site) -> list[Route]:
    """No application and no standby reaches it, and it does not know."""
    return _cut_off(site, site.routes)


def split(site: Site) -> list[Route]:
    """It lives on, and so do the applications on its side, including the holder of the long job."""
    side = site.wait_for_long_job() % 2
    return _cut_off(site, [route for number, route in enumerate(site.routes) if number % 2 != side])


def _cut_off(site: Site, routes: list[Route]) -> list[Route]:
    primary, *standbys = site.cluster.nodes
    for stream in site.cluster.streams:
        stream.black_hole()
    for route in routes:
        route.fall_silent(primary)
    for route in site.routes:
        if route not in routes:
            for standby in standbys:
                route.give_up(standby)
    site.stage.wait(SILENCE)
    for route in routes:
        route.give_up(primary)
    return routes


@dataclass(frozen=True)
class FailOver:
    """The primary is lost, and a standby promoted."""

    strike: Callable[[Site], list[Route]]
    route: type[Route] = Route
    is_synchronous: bool = False
    #: Whether the standby is cut off for a while before.
    lags: bool = False
    #: The `synchronous_commit` setting of the applications' role.
    commit: str = "on"

    def __call__(self, stage: Stage, seconds: float) -> None:
        with Site(stage, Cluster(), self.route) as site:
            self._prepare(site.cluster)
            site.work(seconds)
            self._strike(site)
            stage.wait(max(seconds, AFTERMATH))
            self._rejoin(site)
            site.go_on()
            site.wind_down(site.cluster.standbys[0])

    def _prepare(self, cluster: Cluster) -> None:
        cluster.primary.query(f"ALTER ROLE application SET synchronous_commit = {self.commit}")
        if self.is_synchronous:
            cluster.synchronize("standby0")

    def _strike(self, site: Site) -> None:
        if self.lags:
            site.lose_grants()
        elif self.strike is not split:
            site.wait_for_long_job()
        site.stage.note("fault", name=self.strike.__name__)
        site.fail_over(site.cluster.standbys[0], self.strike(site))

    def _rejoin(self, site: Site) -> None:
        """Deal with the old primary, and lead the applications on its side to the new one."""
        primary, standby = site.cluster.nodes
        if self.strike is paused:
            primary.go_on()
            site.stage.wait(2)
        if self.strike in (split, cut_off):
            primary.kill()
            for route in site.routes:
                route.lead_to(standby)
            site.stage.wait(LEASE.total_seconds())


# --- a standby is lost, or the primary for a moment


def standby_lost(stage: Stage, seconds: float) -> None:
    """The only synchronous standby dies, and everything waits for it. Some processes get SIGTERM meanwhile, twice."""
    with Site(stage, Cluster(), Route) as site:
        (standby,) = site.cluster.standbys
        site.cluster.synchronize("standby0")
        keeper = stage.start("keeps", direct(site.cluster.primary))
        site.work(seconds)
        holder = stage.applications[site.wait_for_long_job()]
        stage.note("fault", name="standby lost")
        standby.kill()
        stage.wait(1)
        works = next(one for one in stage.applications if one.role == "works")
        stage.end(keeper, holder, stage.applications[1], works, signals=2)
        stage.wait(LEASE.total_seconds())
        standby.start()
        stage.note("whole")
        site.go_on(max(seconds, AFTERMATH))
        site.wind_down(site.cluster.primary)


def one_of_two(stage: Stage, seconds: float) -> None:
    """Of two standbys one is enough: it dies, and nothing waits. Then the primary dies, and the other is promoted."""
    with Site(stage, Cluster(standbys=2), Hosts) as site:
        site.cluster.synchronize("ANY 1 (standby0, standby1)")
        site.work(seconds)
        site.cluster.standbys[0].kill()
        stage.wait(LEASE.total_seconds())
        site.wait_for_long_job()
        stage.note("fault", name="killed")
        site.fail_over(site.cluster.standbys[1], killed(site))
        site.go_on(max(seconds, AFTERMATH))
        site.wind_down(site.cluster.standbys[1])


def paused_and_back(stage: Stage, seconds: float) -> None:
    """The primary is suspended for longer than a lease, and nobody is promoted."""
    with Site(stage, Cluster(standbys=0), Route) as site:
        site.work(seconds)
        site.wait_for_long_job()
        stage.note("fault", name="paused")
        site.cluster.primary.pause()
        stage.wait(2 * LEASE.total_seconds())
        site.cluster.primary.go_on()
        stage.note("whole")
        site.go_on(max(seconds, AFTERMATH))
        site.wind_down(site.cluster.primary)


# --- promises

# Even for what is lost with the old primary.
IN_ANY_CASE = ALWAYS | GOES_ON | {"fences_repeated": 0, "fences_back": 0}
ONE_AT_A_TIME = {"at_once": 1, "overlap": 0, "fenced_apart": 0}
EVERYTHING = ALWAYS | GOES_ON | NOTHING_LOST

SCENARIOS = [
    Scenario("asynchronous", FailOver(killed), IN_ANY_CASE | ONE_AT_A_TIME),
    Scenario("asynchronous-hosts", FailOver(killed_for_long, Hosts), IN_ANY_CASE | ONE_AT_A_TIME),
    Scenario("asynchronous-lag", FailOver(killed, lags=True), IN_ANY_CASE | ONE_AT_A_TIME),
    Scenario("asynchronous-split", FailOver(split), IN_ANY_CASE),
    Scenario("asynchronous-paused", FailOver(paused), IN_ANY_CASE | ONE_AT_A_TIME),
    Scenario("synchronous", FailOver(killed, is_synchronous=True), EVERYTHING),
    Scenario("synchronous-hosts", FailOver(killed_for_long, Hosts, is_synchronous=True), EVERYTHING),
    Scenario("synchronous-cut-off", FailOver(cut_off, Hosts, is_synchronous=True), EVERYTHING),
    Scenario("synchronous-paused", FailOver(paused, is_synchronous=True), EVERYTHING),
    Scenario("synchronous-split", FailOver(split, is_synchronous=True), EVERYTHING),
    Scenario("synchronous-split-off", FailOver(split, Hosts, is_synchronous=True, commit="off"), EVERYTHING),
    Scenario("standby-lost", standby_lost, EVERYTHING),
    Scenario("one-of-two", one_of_two, EVERYTHING),
    Scenario("paused-and-back", paused_and_back, EVERYTHING),
]
