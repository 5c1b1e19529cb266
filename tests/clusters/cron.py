"""A crontab: starts `run_singleton line` again as soon as the last one has ended, and notes its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tests.chaos.history import History, now

PAUSE = 0.5


def main() -> None:
    history = History(Path(os.environ["CLUSTER_FOLDER"]) / "history.jsonl", server=int(os.environ["CLUSTER_SERVER"]))
    stopped = Stopped()
    signal.signal(signal.SIGTERM, stopped)
    while not stopped.received:
        begun_at = now()
        line = subprocess.Popen([sys.executable, "-m", "django", "run_singleton", "line"])
        stopped.line = line
        status = line.wait()
        if not stopped.received:
            history.note("line", at=begun_at, to=now(), number=status)
            time.sleep(PAUSE)


class Stopped:
    """A handler that passes the signal on to the line that is running."""

    def __init__(self) -> None:
        self.received = 0
        self.line: subprocess.Popen[bytes] | None = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.received += 1
        if self.line is not None:
            self.line.send_signal(signum)


main()
