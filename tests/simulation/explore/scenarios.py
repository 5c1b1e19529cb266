"""The scenarios of exhaustive simulation: short, so that all their schedules can be carried out."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps

from django_singlejob import Job, current_run
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.clear import clear, dead_locks
from django_singlejob.locking.heartbeat import renewing
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process import clock
from django_singlejob.process.holder import this_process
from django_singlejob.running import runner
from django_singlejob.running.enqueue import Order
from django_singlejob.worker.due_run import one_off_of
from tests.simulation import world
from tests.simulation.baton import Killed
from tests.simulation.faults import PAUSE, Fault
from tests.simulation.scenarios import Actor, Scenario
from tests.simulation.stage import ALIAS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from django_singlejob import Lease
    from tests.simulation.explore.observed import ObservedWorld

#: A heartbeat each second, so a takeover comes after 8 seconds.
LEASE = timedelta(seconds=6)
LOCK = "explored"
#: When a contender begins to watch a holder that stalls.
WATCH_FROM = 6.0


def _here() -> ObservedWorld:
    here: Any = world.current
    assert here is not None
    return here  # type: ignore[no-any-return]


def _told(act: Callable[[], object]) -> None:
    """Do it, and report how it ended."""
    try:
        _here().report(str(act()))
    except Killed:
        raise
    except BaseException as error:
        _here().report(type(error).__name__)


def _asked(actor: Actor, wait: float = 0.0, *, beats: bool = True) -> Lease | None:
    """Ask for the lock."""
    _here().report("asks")
    since = actor.world.scheduler.steps
    request = LockRequest.of(
        LOCK, lease=LEASE, heartbeat=beats, wait=timedelta(seconds=wait), holder=this_process(["explored"])
    )
    answer = acquire(request)
    if isinstance(answer, Refusal):
        _here().report(str(answer.reason))
        if answer.reason == Reason.HELD:
            actor.world.oracle.refused_as_held(actor.process, LOCK, since)
        return None
    _here().report(f"fence {answer.fence}")
    return answer


def _write(lease: Lease) -> None:
    writes = apps.get_model("test_app", "FencedWrite")._default_manager.using(ALIAS)
    with lease.atomic():
        writes.bulk_create([writes.model(lock=lease.name, fence=lease.fence)])


def _hold(actor: Actor, work: Callable[[Lease], object], wait: float = 0.0) -> None:
    """Acquire the lock, work with heartbeats, and release it."""
    if lease := _asked(actor, wait):
        try:
            with renewing(lease):
                work(lease)
        finally:
            _here().report(f"released {lease.finish()}")


def _take(actor: Actor, wait: float = 0.0) -> None:
    """Acquire the lock, and release it. Its body is a single step, so that the oracle sees it trust itself."""
    if lease := _asked(actor, wait):
        clock.sleep(0.0)
        _here().report(f"released {lease.finish()}")


def _contend(actor: Actor) -> None:
    _told(lambda: _take(actor))


def _hold_for_a_beat(actor: Actor) -> None:
    """Its first heartbeat and its release come at the same instant."""
    _told(lambda: _hold(actor, lambda lease: clock.sleep(1.0)))


def _contend_at_the_beat(actor: Actor) -> None:
    clock.sleep(1.0)
    _told(lambda: _take(actor))


def _wait_for_it(actor: Actor) -> None:
    clock.sleep(0.5)
    _told(lambda: _take(actor, wait=20.0))


def _hold_and_write(actor: Actor) -> None:
    _told(lambda: _hold(actor, _write))


def _hold_without_beats_and_write(actor: Actor) -> None:
    def hold() -> None:
        if lease := _asked(actor):
            _write(lease)
            _here().report(f"released {lease.finish()}")

    _told(hold)


def _instant_of_takeover() -> float:
    """When a contender that watches has looked for long enough: it looks again after growing pauses."""
    now, pause = WATCH_FROM, 0.05
    while now < LEASE.total_seconds() + 2.0:
        now += min(pause, 0.25)
        pause *= 1.6
    return now


def _stall(actor: Actor) -> None:
    """The process stops inside its body, and goes on at the instant of a takeover."""

    def work(lease: Lease) -> None:
        actor.process.stopped_until = _instant_of_takeover()
        _here().fired.append(Fault(PAUSE, actor.process.number))
        clock.sleep(0.0)
        _told(lambda: _write(lease))

    _told(lambda: _hold(actor, work))


def _watch_it(actor: Actor) -> None:
    clock.sleep(WATCH_FROM)
    _told(lambda: _take(actor, wait=20.0))


def _clear_it(actor: Actor) -> None:
    def clear_it() -> None:
        for lock in locks().survey():
            _here().report(f"cleared {clear(lock, force=True)}")

    _told(clear_it)


def _clear_if_dead(actor: Actor) -> None:
    def clear_them() -> None:
        for lock in dead_locks():
            _here().report(f"cleared {clear(lock)}")

    clock.sleep(WATCH_FROM)
    _told(clear_them)


def _body() -> None:
    run = current_run()
    assert run is not None
    one_off = run.lease.grant.request.one_off
    key: object = run.slot or (one_off and one_off.pk)
    here = _here()
    here.report(f"begins attempt {run.attempt} with fence {run.lease.fence}")
    here.oracle.body_started(here.here, run.lease, run.job.name, key, run.attempt, 1)


SCHEDULED = Job(name="slotted", func=_body, lease=LEASE, schedule=timedelta(seconds=30), max_attempts=1)
ONCE = Job(name="once", func=_body, lease=LEASE, max_attempts=1)


def _run_slot(actor: Actor) -> None:
    clock.sleep(30.0)
    _told(lambda: runner.run(SCHEDULED, trigger="schedule").reason)


def _run_one_off(actor: Actor) -> None:
    def run() -> object:
        row = one_offs().exclusive().next_due()
        return row and one_off_of(ONCE, row)().reason

    _told(run)


def _open_gate() -> None:
    gates().remember(LOCK)


def _enqueue() -> None:
    gates().remember(ONCE.name)
    Order(job_name=ONCE.name, max_attempts=ONCE.most_attempts).enqueue()


class Short(Scenario):
    """A scenario of a search: it begins with the same rows each time."""

    def set_up(self, random: Random) -> None:
        self.prepare()


EXPLORED = {
    scenario.name: scenario
    for scenario in (
        Short("contend", [_contend, _contend], [LOCK], prepare=_open_gate),
        Short("first", [_contend, _contend], [LOCK]),
        Short("beat", [_hold_for_a_beat, _contend_at_the_beat], [LOCK], prepare=_open_gate),
        Short("death", [_hold_for_a_beat, _wait_for_it], [LOCK], prepare=_open_gate),
        Short("stall", [_stall, _watch_it], [LOCK], prepare=_open_gate),
        Short("fenced", [_hold_and_write, _contend], [LOCK], prepare=_open_gate),
        Short("fenced_wait", [_hold_without_beats_and_write, _wait_for_it], [LOCK], prepare=_open_gate),
        Short("clear", [_contend, _clear_it], [LOCK], prepare=_open_gate, may_overlap=True),
        Short("clear_dead", [_stall, _clear_if_dead], [LOCK], prepare=_open_gate),
        Short("slot", [_run_slot, _run_slot], [SCHEDULED.name]),
        Short("one_off", [_run_one_off, _run_one_off], [ONCE.name], prepare=_enqueue),
    )
}
