"""procrastinate's app, with tasks that do nothing: it awaits the first in its event loop, and calls the other in a
thread."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

# It is installed for the benchmarks only.
procrastinate: Any = import_module("procrastinate")

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))


@app.task
async def noop_async() -> None:
    pass


@app.task
def noop() -> None:
    pass
