"""A lock works whatever surrounds it: a dead database, a replica, other apps' receivers, or strange names."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.models.signals import post_delete, pre_delete

from django_singlejob import SKIPPED, current_run, singleton_job
from django_singlejob.locking.clear import clear, dead_locks
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process.holder import this_process
from tests.contract.acts import ask, expire, is_free, last_run, lock, lose, start_run, take
from tests.databases import APPS
from tests.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pytest_django import Settings

    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


def nowhere(database_url: str) -> str:
    url = urlsplit(database_url)
    if url.scheme == "sqlite":
        return "sqlite:////there/is/no/such.sqlite3"
    return url._replace(netloc=f"{url.username}@127.0.0.1:{quiet_port()}").geturl()


def test_a_database_that_is_down_is_an_error_and_not_held(spawn: Spawn, database_url: str) -> None:
    child = spawn.code(
        """
        from django.db import OperationalError
        from django_singlejob.locking import acquire
        from django_singlejob import job_lock, singleton_job
        from django_singlejob.process.clock import local_now

        acquire.PERSEVERANCE = 0.5
        job = singleton_job("nightly")(lambda: print("it ran"))
        for attempt in job, job.run, job_lock("nightly").__enter__:
            asked_at = local_now()
            try:
                print("it was", attempt())
            except OperationalError as error:
                print(type(error).__name__, "at once" if local_now() - asked_at < 0.5 else "after a while")
        """,
        DATABASE_URL=nowhere(database_url),
    )
    assert child.finish() == 0
    assert child.output.splitlines() == ["DatabaseUnreachable after a while"] * 3


EMPTY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}


class ReadsFromReplica:
    def db_for_read(self, model: object, **hints: object) -> str:
        return "replica"

    def db_for_write(self, model: object, **hints: object) -> str:
        return "default"


@pytest.fixture
def replica(settings: Settings) -> Iterator[None]:
    """It lags so far behind that it does not even have the tables."""
    connections["replica"] = DatabaseWrapper(connection.settings_dict | EMPTY, "replica")
    settings.DATABASE_ROUTERS = [ReadsFromReplica()]
    yield
    connections["replica"].close()
    del connections["replica"]


@pytest.mark.usefixtures("replica")
def test_a_replica_for_reads_breaks_no_lock() -> None:
    lease = take()
    ask()
    lease.renew()
    with lease.atomic():
        pass
    expire()
    assert [lock.name for lock in dead_locks()] == ["nightly"]
    zombie, successor = lose("hourly")
    assert not zombie.release()
    assert successor.release()
    assert clear(lock())
    assert not lease.release()


@pytest.mark.usefixtures("replica")
def test_a_replica_for_reads_breaks_no_job() -> None:
    @singleton_job
    def nightly() -> object:
        run = current_run()
        assert run is not None
        assert run.run is not None
        assert run.run.status == "running"
        return nightly()

    outcome = nightly.run()
    assert outcome.value is SKIPPED
    assert outcome.run is not None
    assert outcome.run.status == "successful"


@pytest.fixture
def handed_over() -> Iterator[list[object]]:
    """A project that listens to every deletion, and a successor between Django's SELECT and its DELETE."""
    seen: list[object] = []

    def hand_over(instance: object, **_: Any) -> None:
        locks().update(hostname="successor")
        seen.append(instance)

    pre_delete.connect(hand_over)
    post_delete.connect(hand_over)
    yield seen
    pre_delete.disconnect(hand_over)
    post_delete.disconnect(hand_over)


def test_a_release_is_one_statement_whoever_listens(handed_over: list[object]) -> None:
    assert take().release()
    assert is_free()
    assert handed_over == []


@pytest.mark.parametrize("force", [True, False])
def test_a_clearing_is_one_statement_whoever_listens(handed_over: list[object], force: bool) -> None:
    start_run()
    expire()
    assert clear(lock(), force=force)
    assert is_free()
    assert last_run().status == "abandoned"
    assert handed_over == []


def test_a_pruning_is_one_statement_whoever_listens(handed_over: list[object]) -> None:
    start_run().release()
    assert runs().prune() == 1
    assert handed_over == []


HOSTILE = [
    *("nul\0nul", "\ud800surrogate\udfff", "one\ntwo\r\nthree\N{LINE SEPARATOR}", "\N{PILE OF POO}" * 3, "x" * 10_000),
    *("\N{PILE OF POO}" * 10_000, "\0" * 10_000, "<script>", "'; DROP TABLE", "%s %(a)s {}", "\x1b[31m", " ", "\\"),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_of_hosts_and_commands_fail_nothing(
    text: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "HOSTNAME": text, "RECORD_COMMAND": " ".join}
    monkeypatch.setattr(sys, "argv", [text, text])

    @singleton_job(heartbeat=False)
    def nightly() -> None:
        assert (lock().hostname, lock().command) == (this_process().hostname, this_process().command)
        assert f"{lock().holder} {lock().command}".isprintable()
        expire()
        start_run()
        raise RuntimeError(text)

    with pytest.raises(RuntimeError):
        nightly()
    assert [run.status for run in runs().order_by("pk")] == ["abandoned", "running"]
    assert runs().earliest("pk").error.isprintable()


def test_a_host_without_a_name_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    monkeypatch.setattr(sys, "argv", [])
    assert take().release()
