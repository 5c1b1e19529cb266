"""procrastinate's app, with two tasks that do nothing: it awaits the first in its event loop, and calls the second in a
thread."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

# procrastinate is installed for the benchmarks only.
procrastinate: Any = import_module("procrastinate")

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))


@app.task
async def noop_async() -> None:
    pass


@app.task
def noop() -> None:
    pass
