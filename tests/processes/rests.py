"""What a shell command leaves behind: processes that print their pid and do not outlive their test.

Start them with `sh $REST` and the like. Their output goes to the test's `Child`.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.processes.witness import is_alive
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Child, Spawn

SCRIPTS = {
    # Runs until `$GO` exists; on SIGTERM it only prints a line.
    "REST": """
        trap 'echo rest was signalled' TERM
        echo rest is $$
        touch "$GO.started"
        until [ -e "$GO" ]; do sleep 0.05; done
        echo rest has ended
    """,
    "ENDS_ON_SIGTERM": """
        trap 'echo rest was signalled; exit' TERM
        echo rest is $$
        while :; do sleep 0.05; done
    """,
    "ENDS_SLOWLY": """
        trap '' HUP
        trap 'sleep 1; echo rest has ended; exit' TERM
        echo rest is $$
        while :; do sleep 0.05; done
    """,
}


def write_scripts(folder: Path) -> dict[str, str]:
    """The environment in which the names of the scripts are their paths."""
    for name, script in SCRIPTS.items():
        (folder / name).write_text(script)
    return {name: str(folder / name) for name in SCRIPTS}


def pid(whose: str, child: Child) -> int:
    """The pid of the "command" or of its "rest", as soon as it is printed."""
    child.wait_for(f"{whose} is ")
    return eventually(lambda: pids(whose, child))[0]


def pids(whose: str, child: Child) -> list[int]:
    return [int(number) for number in re.findall(rf"{whose} is (\d+)\n", child.output)]


def end(spawn: Spawn) -> None:
    """Kill what the test left behind: it is in groups of its own."""
    for child in spawn.children:
        child.kill_all()
        for number in pids("(?:command|rest)", child):
            if is_alive(number):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
