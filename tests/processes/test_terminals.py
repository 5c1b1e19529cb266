"""A terminal that has few characters, and rows that have many."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from tests.contract.acts import HOUR, expire, start_run
from tests.databases import APPS
from tests.selection import sampled

if TYPE_CHECKING:
    from tests.children import Spawn

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]

HOST = "héro-夜\u202e\x1b[31m"
ENCODINGS = sampled(["ascii", "latin-1", "utf-8"])
COMMANDS = [
    ["singleton_status"],
    ["singleton_status", "--format", "json"],
    ["run_singleton", "--list"],
    ["run_singleton", "held", "--", "true"],
    ["run_singleton", "夜間"],
    ["clear_stale_locks", "--dry-run"],
    ["clear_stale_locks", "--force", "夜間"],
    ["pause_singletons", "夜間"],
    ["resume_singletons", "夜間"],
    ["cancel_one_offs", "--job", "夜間"],
    ["retry_one_offs", "--queue", "夜間"],
    ["prune_singletons"],
    ["singleton_worker", "--once"],
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_command_fails_because_a_terminal_lacks_a_character(spawn: Spawn, encoding: str) -> None:
    start_run("held", lease=HOUR)
    start_run("stale")
    expire("stale")
    locks().update(hostname=HOST, command=HOST)
    gates().create(name="夜間")
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    children = [spawn.command(*words, **env) for words in COMMANDS]
    for words, child in zip(COMMANDS, children, strict=True):
        assert child.finish() in (0, 2), (words, child.output)
        said = child.output_path.read_bytes().decode(encoding)
        assert "Error:" not in said.replace("CommandError:", ""), words
        assert said.replace("\n", "").isprintable(), words
        if "json" in words:
            assert HOST in {job["holder"]["hostname"] for job in json.loads(said)["jobs"] if job["holder"]}
