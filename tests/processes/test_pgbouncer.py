"""Nothing is kept in the session: a pooler may run each transaction in another one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from django_singlejob.models import JobLock
from tests.databases import APPS
from tests.ports import quiet_port
from tests.processes.witness import ends
from tests.processes.workers import all_are_done, attempts, end, enqueue_noted, jobs_and_tasks, notes, worker
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.children import Spawn

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("postgresql"),
    pytest.mark.usefixtures("single_statement"),
]

# Fewer sessions than threads, so that they have to share.
SETTINGS = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
ignore_startup_parameters = extra_float_digits
"""


@pytest.fixture
def pooled(database_url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that reaches the database through a pooler."""
    program = shutil.which("pgbouncer") or there_is_none()
    url, own_port = urlsplit(database_url), quiet_port()
    settings = tmp_path / "pgbouncer.ini"
    # If no password is needed, any will do, but an empty one is a syntax error.
    login = {"user": url.username, "password": url.password or "none"}
    settings.write_text(SETTINGS.format(host=url.hostname, port=url.port or 5432, own_port=own_port, **login))
    # It refuses to run as root.
    user = ["--user", "nobody"] if os.geteuid() == 0 else []
    with (tmp_path / "pgbouncer.log").open("w") as log:
        pooler = subprocess.Popen([program, *user, str(settings)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        eventually(partial(listens, own_port))
        netloc = f"{url.netloc.rpartition('@')[0]}@127.0.0.1:{own_port}"
        yield {"DATABASE_URL": url._replace(netloc=netloc, query="DISABLE_SERVER_SIDE_CURSORS=True").geturl()}
    finally:
        pooler.kill()
        pooler.wait()


def there_is_none() -> str:
    reason = "There is no pooler: apt-get install pgbouncer"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@jobs_and_tasks
def test_workers_that_share_sessions_run_each_one_off_once(spawn: Spawn, pooled: dict[str, str], kind: str) -> None:
    enqueue_noted(kind, range(60), 0.02)
    workers = [worker(spawn, "--threads", "5", "-v", "0", **pooled) for _ in range(2)]
    eventually(all_are_done)
    end(*workers)
    assert notes() == [(number, 1) for number in range(60)]
    assert set(attempts().values()) == {1}
    assert not JobLock.objects.exists()
    assert not any("Traceback" in child.output for child in workers)


def test_a_job_sends_its_heartbeats_through_them_and_is_interrupted(spawn: Spawn, pooled: dict[str, str]) -> None:
    child = spawn.command("run_singleton", "nap", "--lease", "6", **pooled)
    eventually(lambda: JobLock.objects.filter(name="nap", heartbeats__gte=2).exists())
    child.send_signal(signal.SIGTERM)
    child.finish()
    assert ends("nap") == ["interrupted"]
    assert not JobLock.objects.exists()
