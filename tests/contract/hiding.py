"""What the processes of ``test_hidden_meanwhile`` do: some use three locks, others hide them."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from django_singlejob import LockHeld, job_lock
from django_singlejob.control.pausing import at_the_gate
from django_singlejob.models.jobs import gates
from django_singlejob.process.clock import local_now, sleep

NAMES = ("north", "south", "west")


def use_each() -> None:
    for name in NAMES:
        with job_lock(name):
            pass


def use_and_note(ledger: str, seconds: float) -> None:
    """Acquire locks, and note each fence while the lock is held, so that the notes of a name are in order."""
    file = os.open(Path(ledger), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    until, count = local_now() + seconds, 0
    while local_now() < until or not count:
        name = random.choice(NAMES)
        with suppress(LockHeld), job_lock(name, wait=timedelta(seconds=2)) as lease:
            os.write(file, f"{name} {lease.fence}\n".encode())
            count += 1
    print(json.dumps({"count": count}))


def hide_all_the_time(seconds: float) -> None:
    until, count = local_now() + seconds, 0
    # SQLite keeps no queue: by its defaults, a process may find it busy until the others have ended.
    while local_now() < until or not count:
        name = random.choice(NAMES)
        count += bool(at_the_gate(name, partial(gates().hide, name)))
        sleep(0.01)
    print(json.dumps({"count": count}))
