"""The settings of a server on which no executor gets as far as a job, although the program itself starts."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from django_singlejob import is_executor
from tests.processes.worker_settings import *  # noqa: F403
from tests.waiting import eventually

if is_executor():
    if "WAITS" in os.environ:
        eventually(Path(os.environ["GO"]).exists)
    raise RuntimeError(f"the port {os.getppid()} is taken")

# Beside a thread, no command forks the process of its run.
threading.Thread(target=threading.Event().wait, daemon=True).start()
