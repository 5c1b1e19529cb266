"""Locks on three Galera nodes: what a fenced block commits, and what happens to processes whose node is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT, Child, Spawn
from tests.clusters.galera import DATABASE, Galera, Node, missing
from tests.clusters.galera_scenarios import FAULTS, PROMISED, Loss
from tests.clusters.report import table
from tests.clusters.scenario import Scenario
from tests.databases import temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.on_database("mysql"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(180),
]

# Its holder sends no heartbeats and gets no news: only the database can stop it. It goes on when a file appears.
FENCED = """
import sys, time
from datetime import timedelta
from pathlib import Path
from tests.app.models import Counter, FencedWrite
from tests.contract.acts import take

lease = take(sys.argv[1], lease=timedelta(seconds=2))
try:
    with lease.atomic():
        FencedWrite.objects.create(lock=lease.name, fence=lease.fence)
        print("inside", flush=True)
        while not Path(sys.argv[2]).exists():
            time.sleep(0.02)
        Counter.objects.update_or_create(name=lease.name, defaults={"value": lease.fence})
    print("committed")
except Exception as error:
    print("raised", type(error).__name__, error)
"""
# The same with heartbeats, for longer than its lease would last without them.
LONG_FENCED = """
import sys, time
from datetime import timedelta
from pathlib import Path
from django_singlejob import job_lock
from tests.app.models import FencedWrite

with job_lock("block", lease=timedelta(seconds=3)) as lease:
    with lease.atomic():
        FencedWrite.objects.create(lock=lease.name, fence=lease.fence)
        print("inside", flush=True)
        while not Path(sys.argv[1]).exists():
            time.sleep(0.02)
    print("committed")
"""
ASKS_AND_ASKS = """
from datetime import timedelta
from tests.contract.acts import ask

print(ask("block", wait=timedelta(seconds=4)).reason.value)
"""
SUCCESSOR = """
import sys
from datetime import timedelta
from tests.app.models import FencedWrite
from tests.contract.acts import take

lease = take(sys.argv[1], wait=timedelta(seconds=20))
with lease.atomic():
    FencedWrite.objects.create(lock=lease.name, fence=lease.fence)
print("granted", lease.fence)
"""

# Statements for a node that has just lost the others, and does not know it yet. It prints each error.
IN_DOUBT = """
import logging, sys, time
from datetime import timedelta
from pathlib import Path
from django_singlejob.database import errors
from tests.contract.acts import gate, take

def judged(error, real=errors.is_connection_lost):
    logging.info("%s", error)
    return real(error)

logging.basicConfig(level="INFO", stream=sys.stdout)

errors.is_connection_lost = judged
lease = take("released", lease=timedelta(seconds=60)) if sys.argv[1] == "releases" else None
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    time.sleep(0.02)
if lease:
    print("released:", lease.release())
else:
    lease = take("granted", wait=timedelta(seconds=40))
    print("granted:", gate("granted").token == lease.token)
"""


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Galera]:
    with Galera(temporary_folder(request.config)) as cluster:
        first = cluster.nodes[0]
        migrate = [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity=0"]
        subprocess.run(migrate, env=os.environ | environment(first), cwd=ROOT, check=True)
        # No other test uses this table.
        first.query("CREATE TABLE ballast (id integer AUTO_INCREMENT PRIMARY KEY)", DATABASE)
        yield cluster


@pytest.fixture
def nodes(cluster: Galera) -> Iterator[list[Node]]:
    yield cluster.nodes
    cluster.heal()


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts processes; `environment(node)` decides which node they use."""
    children = Spawn(dict(os.environ), tmp_path)
    yield children
    children.end()


def environment(node: Node) -> dict[str, str]:
    return {
        "DATABASE_URL": node.url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def fenced(spawn: Spawn, node: Node, name: str) -> tuple[Child, Path]:
    """A holder of that lock inside `lease.atomic()`, and the file whose appearance lets it write the counter."""
    word = spawn.folder / f"{name}-goes-on"
    child = spawn.code(FENCED, name, str(word), **environment(node))
    child.wait_for("inside")
    return child, word


def succeed(spawn: Spawn, node: Node, name: str) -> None:
    """Another process is granted that lock, and writes under it."""
    child = spawn.code(SUCCESSOR, name, **environment(node))
    child.wait_for("granted 2")
    assert child.finish() == 0


@contextmanager
def lagging(node: Node, other: Node) -> Iterator[None]:
    """The node does not apply the others' commits yet, as if they queued behind something slow."""
    with node.session() as session:
        session.execute("FLUSH TABLES ballast WITH READ LOCK")
        other.query("INSERT INTO ballast VALUES ()", DATABASE)
        yield
        session.execute("UNLOCK TABLES")


def written(node: Node, name: str) -> list[int]:
    """The fences of the writes under that lock."""
    sql = f"SET SESSION wsrep_sync_wait = 1; SELECT fence FROM test_app_fencedwrite WHERE `lock` = '{name}' ORDER BY 1"
    return [int(fence) for (fence,) in node.query(sql, DATABASE)]


def test_nothing_is_lost_or_doubled_with_a_node(cluster: Galera, tmp_path: Path) -> None:
    """The applications beside it and elsewhere do everything once, and none of them dies or hangs."""
    scenario = Scenario("losses", lambda stage, seconds: Loss(FAULTS)(stage, cluster, seconds), PROMISED)
    seen = scenario.play(tmp_path, seconds=2)
    broken = scenario.broken(seen)
    print(*table({scenario.name: (seen, broken)}), sep="\n")
    assert not broken
    # There was something to judge.
    assert seen.grants > 20
    assert seen.one_offs > 5
    assert seen.slots > 5


def test_a_fenced_block_commits_nothing_behind_its_successors_grant(nodes: list[Node], spawn: Spawn) -> None:
    """Its node does not know of the grant yet, so the gate's row is free there."""
    here, there, third = nodes
    child, word = fenced(spawn, here, "lagging")
    with lagging(here, there):
        succeed(spawn, there, "lagging")
        word.touch()
        here.wait_for_commit()
    child.finish()
    assert written(third, "lagging") == [2]
    assert "raised" in child.output


def test_a_fenced_block_whose_token_is_gone_has_lost_its_lease(nodes: list[Node], spawn: Spawn) -> None:
    """The grant ends the block's transaction: its next statement gets a deadlock error."""
    here, there, third = nodes
    child, word = fenced(spawn, here, "gone")
    succeed(spawn, there, "gone")
    word.touch()
    child.finish()
    assert written(third, "gone") == [2]
    assert "raised LeaseLost" in child.output


def test_another_conflict_in_a_fenced_block_is_raised(nodes: list[Node], spawn: Spawn) -> None:
    """The caller may begin the block again, because the lock was not granted to anybody else."""
    here, there, third = nodes
    here.query("INSERT INTO test_app_counter VALUES ('conflict', 0)", DATABASE)
    child, word = fenced(spawn, here, "conflict")
    with lagging(here, there):
        there.query("UPDATE test_app_counter SET value = 7 WHERE name = 'conflict'", DATABASE)
        word.touch()
        here.wait_for_commit()
    child.finish()
    assert written(third, "conflict") == []
    assert "raised OperationalError (1213" in child.output


def test_a_long_fenced_block_keeps_its_lock_while_others_ask_elsewhere(nodes: list[Node], spawn: Spawn) -> None:
    """Its gate is locked on its own node only, but its heartbeats are seen everywhere."""
    here, there, third = nodes
    word = spawn.folder / "go"
    child = spawn.code(LONG_FENCED, str(word), **environment(here))
    child.wait_for("inside")
    others = [spawn.code(ASKS_AND_ASKS, **environment(node)) for node in (there, third)]
    clearing = spawn.command("clear_stale_locks", **environment(there))
    assert [other.finish() for other in (*others, clearing)] == [0, 0, 0]
    word.touch()
    assert child.finish() == 0
    assert [other.output for other in others] == ["held\n", "held\n"]
    assert "committed" in child.output
    assert written(third, "block") == [1]


def test_a_commit_that_a_lost_node_refuses_is_in_doubt(cluster: Galera, nodes: list[Node], spawn: Spawn) -> None:
    """The error is not taken for a "no": the caller, or the holder that releases, goes on when the node is back."""
    here, *others = nodes
    word = spawn.folder / "go"
    children = [spawn.code(IN_DOUBT, what, str(word), **environment(here)) for what in ("asks", "releases")]
    for child in children:
        child.wait_for("ready")
    for node in others:
        node.pause()
    word.touch()
    here.wait_until_alone()
    for child in children:
        child.wait_for("1180")
    cluster.heal()
    assert [child.finish() for child in children] == [0, 0]
    assert "granted: True" in children[0].output
    assert "released: True" in children[1].output


def test_a_task_that_ends_beside_a_lost_node_is_done(cluster: Galera, nodes: list[Node], spawn: Spawn) -> None:
    """Its worker cannot record that at once, and does so when the node is part of the cluster again."""
    here, *others = nodes
    enqueued = "from tests.app.load import nap; nap.enqueue(2); nap.enqueue(2)"
    assert spawn.code(enqueued, **environment(here)).finish() == 0
    worker = spawn.command("singleton_worker", "--threads=2", "--interval=0.2", **environment(here))
    worker.wait_for("started\nstarted")
    for node in others:
        node.pause()
    worker.wait_for("1180")
    cluster.heal()
    sql = "SELECT status, attempt FROM django_singlejob_oneoffjob WHERE task_path = 'tests.app.load.nap'"
    here.wait_for_rows(sql, [["done", "1"], ["done", "1"]])
    worker.terminate()
    assert worker.finish() == 0
    assert "Traceback" not in worker.output


def test_a_crontab_line_beside_a_lost_node_ends_with_69(nodes: list[Node], spawn: Spawn) -> None:
    here, *_ = nodes
    here.cut_off()
    here.wait_until_alone()
    line = spawn.command("run_singleton", "line", "--", "true", **environment(here))
    assert line.finish() == 69
    assert "1047" in line.output
    assert "Traceback" not in line.output
