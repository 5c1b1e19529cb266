"""The jobs of this project, which share a lock. With `OVERLAP_THREAD`, the project has a thread, as with tracing.
`OVERLAP_LEASE`: their lease, in seconds."""

from __future__ import annotations

import os
from datetime import timedelta
from threading import Event, Thread

from django_singlejob import singleton_job
from tests.overlap.bodies import BODIES
from tests.overlap.report import report

if "OVERLAP_THREAD" in os.environ:
    Thread(target=Event().wait, name="tracing", daemon=True).start()

# Four thirds of it after the last heartbeat of a dead holder, another one may have the lock.
LEASE = timedelta(seconds=int(os.environ["OVERLAP_LEASE"]))


@singleton_job(lease=LEASE)
def overlap(body: str) -> None:
    BODIES[body].run()


@singleton_job(lock="overlap", lease=LEASE)
def successor() -> None:
    report("successor")
