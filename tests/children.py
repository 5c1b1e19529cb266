"""Real processes for tests. `spawn` starts them, and none of them outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import dedent

from django.db import Error, connection

from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parent.parent


class Child(subprocess.Popen[bytes]):
    """A Python process whose output (stdout and stderr combined) can be read while it runs."""

    def __init__(self, arguments: tuple[str, ...], env: dict[str, str], output: Path) -> None:
        self.output_path = output
        with output.open("wb") as stream:
            super().__init__(
                [sys.executable, *arguments],
                env=env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its own children can be killed with it
            )

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Return as soon as the child has printed the text. Fail if it exits first."""
        eventually(partial(self._has_printed, text))

    def _has_printed(self, text: str) -> bool:
        ended = self.poll() is not None  # checked before the output is read, so as not to miss its last words
        printed = self.output
        assert text in printed or not ended, f"The child never printed {text!r}. It printed:\n{printed}"
        return text in printed

    def finish(self, timeout: float = PATIENCE) -> int:
        """Wait until the child exits and return its exit status, or -n if signal n killed it."""
        return self.wait(timeout)

    def kill_all(self) -> None:
        """Kill the child and all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


def kill_alone(child: Child) -> None:
    """Kill a child that is the only other process which uses the test database. What it has sent to the server is
    carried out, or never will be, when this returns."""
    child.kill_all()
    eventually(_is_alone)


def _is_alone() -> bool:
    sessions = {
        "postgresql": "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "mysql": "information_schema.processlist WHERE db = database() AND id <> connection_id()",
    }
    if connection.vendor == "sqlite":
        return True
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT NOT EXISTS (SELECT 1 FROM {sessions[connection.vendor]})")
        (is_alone,) = cursor.fetchone()
    return bool(is_alone)


def end_other_sessions() -> None:
    """End every session with the test database on the server, except our own."""
    if connection.vendor == "sqlite":
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
        for (session,) in cursor.fetchall():
            with suppress(Error):  # such as a heartbeat's, which has just ended by itself
                cursor.execute("KILL %s", [session])


class Spawn:
    """Starts children that use the test database. Keyword arguments extend the child's environment."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env = env
        self.folder = folder
        self.children: list[Child] = []

    def __call__(self, *arguments: str, **env: str) -> Child:
        """Run `python` with these arguments."""
        child = Child(arguments, self.env | env, self.folder / f"child-{len(self.children)}.txt")
        self.children.append(child)
        return child

    def code(self, code: str, *arguments: str, **env: str) -> Child:
        """Run this Python code after `django.setup()`, with the arguments in `sys.argv[1:]`."""
        return self("-c", "import django; django.setup()\n" + dedent(code), *arguments, **env)

    def command(self, *arguments: str, **env: str) -> Child:
        """Run a management command."""
        return self("-m", "django", *arguments, **env)

    def end(self) -> None:
        """Kill the survivors and print what each child printed, so that pytest shows it if the test failed."""
        for child in self.children:
            child.kill_all()
            print(f"--- child {child.pid} ended with {child.returncode}:", child.output, sep="\n")
