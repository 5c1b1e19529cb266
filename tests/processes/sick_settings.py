"""The settings of a server on which no executor gets as far as a job, although the program itself starts."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from django_singlejob import is_executor
from tests.processes.worker_settings import *  # noqa: F403

if is_executor():
    while "WAITS" in os.environ and not Path(os.environ["GO"]).exists():
        time.sleep(0.01)
    raise RuntimeError(f"the port {os.getppid()} is taken")

# Beside a thread, no command forks the process of its run.
threading.Thread(target=threading.Event().wait, daemon=True).start()
