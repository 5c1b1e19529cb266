"""A person at a terminal, who types what a page says and compares what is printed with what the page shows."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tests.waiting import PATIENCE, eventually

BIN = Path(sys.executable).parent
# Which the environment of a new user does not have.
OURS = ("DJANGO_", "COV_", "PYTHON", "SINGLEJOB_", "DATABASE_URL")


class Command(subprocess.Popen[bytes]):
    """A command line at a terminal of its own, and what it has printed there so far."""

    def __init__(self, line: str, folder: Path, env: dict[str, str]) -> None:
        self._read_so_far = b""
        ours, theirs = pty.openpty()
        super().__init__(
            ["bash", "-c", line],
            cwd=folder,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = Thread(target=self._read, args=(ours,))
        self._reader.start()

    @property
    def printed(self) -> str:
        return self._read_so_far.decode(errors="replace").replace("\r\n", "\n")

    def _read(self, terminal: int) -> None:
        # Linux says that everybody has closed the terminal by an error.
        with suppress(OSError), open(terminal, "rb", buffering=0) as stream:
            while found := stream.read(4096):
                self._read_so_far += found  # it may end within a letter, or within the end of a line

    def finish(self) -> int:
        """Its exit status, once all that it printed is known."""
        status = self.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def kill_all(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.finish()


class Session:
    """What a person does in a folder, with the Python of these tests and nothing of their settings and database."""

    def __init__(self, folder: Path, package: Path, **env: str) -> None:
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.env |= {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(package), "DJANGO_COLORS": "nocolor"}
        self.env |= env
        self.folder = folder
        self.commands: list[Command] = []
        self._status = 0

    def type(self, session: str) -> str:
        """Run each command of the session to its end, and compare what it prints with what follows it there.

        None may fail. The page may show only the beginning. Returns what the last one printed.
        """
        printed = ""
        for line, expected in steps(session):
            command = self._run(f"(exit {self._status}); {line}")
            self._status = command.finish()
            printed = command.printed
            assert self._status == 0, f"{line}\n{printed}"
            assert re.match(pattern(expected), printed), f"{line}\n{printed}\ninstead of\n{expected}"
        return printed

    def start(self, session: str) -> Command:
        """Start the session's only command, and return it when it has printed what follows it there."""
        [(line, expected)] = steps(session)
        command = self._run(f"exec {line}")
        eventually(lambda: re.match(pattern(expected), command.printed))
        return command

    def _run(self, line: str) -> Command:
        command = Command(line, self.folder, self.env)
        self.commands.append(command)
        return command

    def close(self) -> None:
        for command in self.commands:
            command.kill_all()


def steps(session: str) -> list[tuple[str, str]]:
    """The commands of a console session, each with what it prints."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)
    assert parts[0] == "", "The session does not begin with a command."
    return list(zip(parts[1::2], parts[2::2], strict=True))


def pattern(expected: str) -> str:
    """It fits the same text with the name of another host, other process ids, and other durations."""
    varying = r"\bserver\b|(?<=pid )\d+|\d+\.\d+(?= s\b)|\d+(?= seconds\b)"
    return r"[\w.-]+".join(map(re.escape, re.split(varying, expected)))
