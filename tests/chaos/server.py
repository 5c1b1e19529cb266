"""One server: takes the lock, works, gives it back, again and again. Writes down what it believes."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path

import django

django.setup()

from django.db import Error  # noqa: E402

from django_singlejob import SKIPPED, LeaseLost, SingleJobError, current_run, singleton_job  # noqa: E402
from django_singlejob.interrupt import deferred_signals  # noqa: E402
from tests.app.models import FencedWrite  # noqa: E402

LEASE = timedelta(seconds=1.2)


def note(event: str, fence: int) -> None:
    # One small write to a file opened for appending is atomic; the clock is the machine's, the same for all.
    line = json.dumps(
        {"at": time.clock_gettime(time.CLOCK_MONOTONIC), "event": event, "fence": fence, "pid": os.getpid()}
    )
    os.write(history, f"{line}\n".encode())


@singleton_job(lease=LEASE, max_attempts=1000)
def contested() -> None:
    run = current_run()
    assert run is not None
    note("start", run.lease.fence)
    for _ in range(random.randint(1, 5)):
        time.sleep(random.uniform(0, 0.1))
        with run.lease.atomic():
            FencedWrite.objects.create(fence=run.lease.fence)
            time.sleep(random.uniform(0, 0.02))
    run.lease.check()
    note("end", run.lease.fence)


def serve() -> None:
    with deferred_signals() as signals:
        while not signals.received:
            try:
                if contested() is SKIPPED:
                    time.sleep(random.uniform(0, 0.05))
            except LeaseLost:
                note("lost", 0)
            except (Error, SingleJobError) as error:
                print(type(error).__name__, error, flush=True)
                time.sleep(0.1)
            except KeyboardInterrupt:
                note("interrupted", 0)


history = os.open(Path(sys.argv[1]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
serve()
