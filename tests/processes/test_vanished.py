"""A machine that vanishes in the middle of a short transaction: its session keeps the gate's row locked, and no packet
ever tells the server that it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobStatus
from tests.databases import APPS
from tests.processes.witness import ends

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn
    from tests.proxy import Proxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("postgresql", "mysql"),
]

Env = dict[str, str]

# The server ends such a session after 10 seconds. Some more for the start of a process on a busy machine; without a
# limit, it would be hours.
BOUND = 40.0


def test_in_a_grant_it_keeps_others_out_only_for_a_moment(spawn: Spawn, proxy: Proxy, through_proxy: Env) -> None:
    JobStatus.objects.create(name="quick")  # so that the lock's row is the first that is inserted
    proxy.fall_silent_at(b"INSERT")
    vanished = spawn.command("run_singleton", "quick", **through_proxy)
    assert proxy.fell_silent.wait(30)
    vanished.kill_all()
    assert spawn.command("run_singleton", "quick", "--wait", "300").finish(BOUND) == 0
    assert ends("quick") == ["successful"]


def test_in_a_release_it_keeps_others_out_only_for_a_moment(
    spawn: Spawn, proxy: Proxy, through_proxy: Env, go: Path
) -> None:
    vanished = spawn.command("run_singleton", "until_told", **through_proxy)
    vanished.wait_for("started")
    proxy.fall_silent_at(b"DELETE")
    go.touch()
    assert proxy.fell_silent.wait(30)
    vanished.kill_all()
    assert spawn.command("run_singleton", "until_told", "--wait", "300").finish(BOUND) == 0
    assert ends("until_told") == ["abandoned", "successful"]
