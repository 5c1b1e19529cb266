"""What the job and the plain command do."""

from __future__ import annotations

import time
from pathlib import Path

from django.db import connection


def work(file: str) -> None:
    """One statement. If there is a file, say there that it has begun, and wait until somebody deletes it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if file:
        begun = Path(file)
        begun.touch()
        while begun.exists():
            time.sleep(0.05)
