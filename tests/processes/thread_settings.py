"""The settings of a project that has a thread. Beside it, no command forks the process of its run."""

from __future__ import annotations

import threading

from tests.settings import *  # noqa: F403

threading.Thread(target=threading.Event().wait, daemon=True).start()
