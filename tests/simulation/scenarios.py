"""What the simulated processes do: the real calls that an application makes, and bodies that the oracle watches."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import transaction

from django_singlejob import Job, current_run
from django_singlejob.locking.acquire import acquire
from django_singlejob.locking.clear import clear, dead_locks
from django_singlejob.locking.heartbeat import renewing
from django_singlejob.locking.recording import abandon_orphans
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
from tests.simulation.aims import AROUND_A_DEATH, BEFORE_A_BODY, INSIDE_A_BLOCK
from tests.simulation.baton import Killed
from tests.simulation.stage import ALIAS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_singlejob import Lease
    from django_singlejob.models import OneOffJob
    from tests.simulation.aims import Aims
    from tests.simulation.baton import Process

LEASE = timedelta(seconds=60)
LOCK = "simulated"
OTHER_LOCK = "simulated-too"


class Actor:
    """A process of a schedule, and the dice that decide what exactly it does."""

    def __init__(self, here: world.World, process: Process) -> None:
        self.world = here
        self.process = process
        self.random = Random(f"actor {process.number} of {here.seed}")

    def one_of(self, *options: Any) -> Any:
        """One of these, always the same for this seed."""
        return self.random.choice(options)

    def ask(self, request: LockRequest) -> Lease | None:
        """Ask for a lock."""
        since = self.world.scheduler.steps
        answer = acquire(request)
        if isinstance(answer, Refusal):
            self.refused(answer.reason, request.name, since)
            return None
        return answer

    def refused(self, reason: Reason | None, name: str, since: int) -> None:
        """Note that a lock was not granted."""
        self.world.history.note(self.process.name, f"was refused {name!r}: {reason}")
        if reason == Reason.HELD:
            self.world.oracle.refused_as_held(self.process, name, since)

    def run(self, job: Job, **options: Any) -> None:
        """Run a job."""
        since = self.world.scheduler.steps
        outcome = runner.run(job, **options)
        if outcome.reason is not None:
            self.refused(outcome.reason, job.lock, since)

    def work(self, lease: Lease) -> None:
        """What a body does: it writes under its lease, and waits."""
        for _ in range(self.one_of(1, 1, 1, 2)):
            self.write(lease)
            clock.sleep(self.one_of(0.0, 0.5, 3.0, 12.0, 35.0, 70.0))
            self.check(lease)

    def check(self, lease: Lease) -> None:
        """Ask whether the lease is lost. Nothing else tells a body."""
        lease.check()
        self.world.oracle.checked(self.process, lease)

    def write(self, lease: Lease) -> None:
        """Write inside a fenced block."""
        with lease.atomic():
            if self.one_of(True, False):
                clock.sleep(self.one_of(*self._stays))
            self.write_a_row(lease)

    def write_a_row(self, lease: Lease) -> None:
        """Write. This is inside a fenced block."""
        writes = apps.get_model("test_app", "FencedWrite")._default_manager.using(ALIAS)
        writes.bulk_create([writes.model(lock=lease.name, fence=lease.fence)])
        self.world.oracle.wrote(self.process, lease)

    @property
    def _stays(self) -> Sequence[float]:
        """How long it stays inside a fenced block. Only on one host, nothing else can end the block."""
        return (0.0, 1.0, 7.0, 30.0, 70.0) if self.world.profile == world.ONE_HOST else (0.0, 1.0, 7.0)

    def rounds(self, act: Callable[[], object], *, at_once: bool = False) -> None:
        """Do it once or a few times, whatever it raises: most errors are what the package promises to raise.

        Unless they begin ``at_once``, all but the first come when they like, some just when a dead holder's lease ends.
        """
        if self.process.number > 1 and not at_once:
            clock.sleep(self.one_of(0.0, 0.0, 0.0, 20.0, 50.0, 62.0, 75.0))
        for _ in range(self.one_of(1, 1, 1, 2)):
            try:
                act()
            except Killed:
                raise
            except BaseException as error:
                self.world.history.note(self.process.name, f"got {type(error).__name__}: {error}")
                self.world.oracle.counts[f"raised {type(error).__name__}"] += 1
            clock.sleep(self.one_of(0.0, 0.3, 5.0, 25.0))


@dataclass(frozen=True)
class Scenario:
    """What the processes of a schedule do.

    Attributes:
        acts: what each of them does; those beyond the last one do what the first one does.
        prepare: inserts the rows that there are at the beginning.
        names: the names of its gates.
        may_overlap: whether a lock may be taken from a holder that trusts itself.
        aims: where its faults are drawn, by profile; empty: anywhere.
        is_for: the profiles that it makes sense for.
    """

    name: str
    acts: Sequence[Callable[[Actor], object]]
    names: Sequence[str]
    prepare: Callable[[], object] = lambda: None
    may_overlap: bool = False
    aims: Aims = field(default_factory=dict)
    is_for: Sequence[str] = (world.ONE_HOST, world.SERVERS)

    def act_of(self, actor: Actor) -> None:
        """What this actor does."""
        index = actor.process.number - 1
        self.acts[index if index < len(self.acts) else 0](actor)

    def set_up(self, random: Random) -> None:
        """Insert the rows of the beginning. Mostly the gates are there already, as they are after the first run."""
        self.prepare()
        if random.random() < 0.8:
            gates().remember(*self.names)


# --- bodies

_actors: dict[int, Actor] = {}


def introduce(actor: Actor) -> None:
    """Let bodies find the actor of their process."""
    _actors[actor.process.number] = actor


def _body(most_attempts: int) -> None:
    assert world.current is not None
    actor, run = _actors[world.current.here.number], current_run()
    assert run is not None
    one_off = run.lease.grant.request.one_off
    key: object = run.slot or (one_off and one_off.pk)
    actor.world.oracle.body_started(actor.process, run.lease, run.job.name, key, run.attempt, most_attempts)
    actor.work(run.lease)


def _body_once() -> None:
    _body(1)


def _body_again() -> None:
    _body(3)


# --- scenarios


def _hold_a_lock(actor: Actor) -> None:
    """``singleton_lock``, in its parts."""

    def hold() -> None:
        beats = actor.one_of(True, True, True, False) if actor.world.profile == world.SERVERS else True
        wait = timedelta(seconds=actor.one_of(0, 0, 5, 30))
        request = LockRequest.of(LOCK, lease=LEASE, heartbeat=beats, wait=wait, holder=this_process(["simulated"]))
        _hold(actor, request, actor.work)

    actor.rounds(hold)


def _hold(actor: Actor, request: LockRequest, work: Callable[[Lease], object]) -> None:
    if lease := actor.ask(request):
        try:
            with renewing(lease):
                work(lease)
        finally:
            lease.finish()


def _hold_two_locks(actor: Actor) -> None:
    """Hold two leases in one process, which are renewed together."""

    def work(first: Lease, second: Lease) -> None:
        for _ in range(actor.one_of(1, 2, 3)):
            actor.write(actor.one_of(first, second))
            clock.sleep(actor.one_of(0.5, 12.0, 35.0, 70.0))
            actor.check(first)
            actor.check(second)

    def hold(first: Lease) -> None:
        clock.sleep(actor.one_of(0.0, 3.0))
        wait = timedelta(seconds=actor.one_of(0, 5))
        request = LockRequest.of(OTHER_LOCK, lease=LEASE, heartbeat=True, wait=wait, holder=this_process(["simulated"]))
        _hold(actor, request, partial(work, first))

    actor.rounds(lambda: _hold(actor, _asked_for(heartbeat=True, wait=actor.one_of(0, 5, 30)), hold))


CALLED = Job(name="called", func=_body_once, lease=LEASE)
PATIENT = Job(name="called", func=_body_once, lease=LEASE, wait=timedelta(seconds=20))
SHARING = [Job(name=name, func=_body_once, lease=LEASE, lock="shared") for name in ("first", "second")]
HALF_A_MINUTE = timedelta(seconds=30)
SCHEDULED = Job(name="scheduled", func=_body_once, lease=LEASE, schedule=HALF_A_MINUTE, max_attempts=1)
RERUN = Job(name="rerun", func=_body_again, lease=LEASE, schedule=timedelta(seconds=30), max_attempts=3)
ONCE = Job(name="once", func=_body_once, lease=LEASE, max_attempts=1)
AGAIN = Job(name="again", func=_body_again, lease=LEASE, max_attempts=3)


def _call_a_job(actor: Actor) -> None:
    actor.rounds(lambda: actor.run(actor.one_of(CALLED, PATIENT)))


def _share_a_lock(actor: Actor) -> None:
    actor.rounds(lambda: actor.run(actor.one_of(*SHARING)))


def _run_slots(actor: Actor) -> None:
    for job in (SCHEDULED, RERUN):
        actor.rounds(lambda job=job: actor.run(job, trigger="schedule"))  # type: ignore[misc]


def _run_one_offs(actor: Actor) -> None:
    jobs = {job.name: job for job in (ONCE, AGAIN)}

    def run() -> None:
        row: OneOffJob | None = one_offs().exclusive().next_due()
        if row is not None:
            job = jobs[row.job_name]
            report = one_off_of(job, row)()
            actor.world.history.note(actor.process.name, f"one-off {row.pk}: {report.reason or report.error or 'ran'}")

    for _ in range(2):
        actor.rounds(run)


def _enqueue() -> None:
    for job in (ONCE, AGAIN):
        Order(job_name=job.name, max_attempts=job.most_attempts).enqueue()


def _clear_dead_locks(actor: Actor) -> None:
    def clear_them() -> None:
        for lock in dead_locks():
            actor.world.history.note(actor.process.name, f"cleared {lock.name!r}: {clear(lock)}")

    clock.sleep(actor.one_of(0.0, 40.0, 62.0, 70.0))
    actor.rounds(clear_them, at_once=True)


def _clear_by_force(actor: Actor) -> None:
    def clear_it() -> None:
        for lock in locks().survey():
            actor.world.history.note(actor.process.name, f"cleared {lock.name!r} by force: {clear(lock, force=True)}")

    clock.sleep(actor.one_of(0.0, 0.2, 3.0, 20.0))
    actor.rounds(clear_it, at_once=True)


# --- scenarios that are aimed at a dangerous place


def _asked_for(*, heartbeat: bool, wait: float) -> LockRequest:
    holder = this_process(["simulated"])
    return LockRequest.of(LOCK, lease=LEASE, heartbeat=heartbeat, wait=timedelta(seconds=wait), holder=holder)


def _stay_in_a_block(actor: Actor) -> None:
    """Stay in a fenced block for longer than a lease, and perhaps in a hook behind its COMMIT."""

    def stay(lease: Lease) -> None:
        for _ in range(actor.one_of(1, 1, 2)):
            with lease.atomic():
                clock.sleep(actor.one_of(7.0, 70.0, 150.0))
                actor.write_a_row(lease)
                hook = partial(clock.sleep, actor.one_of(0.0, 30.0, 100.0))
                transaction.on_commit(hook, using=ALIAS)
            actor.world.oracle.block_ended(actor.process, lease)
            clock.sleep(actor.one_of(0.0, 3.0, 35.0))
            actor.check(lease)

    def hold() -> None:
        # On a server, its own transaction would not keep its heartbeats out, as it does on the storage used here.
        heartbeat = actor.world.profile == world.ONE_HOST and actor.one_of(True, True, False)
        _hold(actor, _asked_for(heartbeat=heartbeat, wait=actor.one_of(0, 30, 100)), stay)

    actor.rounds(hold)


def _fall_silent(actor: Actor) -> None:
    """Hold a lock for a few minutes, unless something happens."""

    def wait(lease: Lease) -> None:
        for _ in range(20):
            clock.sleep(actor.one_of(0.5, 3.0, 12.0))
            actor.check(lease)

    actor.rounds(lambda: _hold(actor, _asked_for(heartbeat=True, wait=0), wait))


def _watch(actor: Actor) -> None:
    """Ask for a lock when its row is about to be stale, and wait for it."""

    def ask() -> None:
        _hold(actor, _asked_for(heartbeat=True, wait=actor.one_of(30, 120, 200)), actor.write)

    clock.sleep(actor.one_of(5.0, 45.0, 58.0, 62.0, 66.0, 75.0))
    actor.rounds(ask, at_once=True)


def _begin_late(actor: Actor) -> None:
    """Run a job. A fault may happen just after the grant."""

    def granted(_: Lease) -> None:
        with actor.world.step("grant", None):
            pass

    actor.rounds(lambda: actor.run(actor.one_of(CALLED, PATIENT), on_grant=granted))


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("lock", [_hold_a_lock], [LOCK]),
        Scenario("job", [_call_a_job], ["called"]),
        Scenario("two_locks", [_hold_two_locks], [LOCK, OTHER_LOCK]),
        Scenario("shared", [_share_a_lock], ["shared", "first", "second"]),
        Scenario("slots", [_run_slots], ["scheduled", "rerun"]),
        Scenario("one_offs", [_run_one_offs], ["once", "again"], prepare=_enqueue),
        Scenario("clear", [_call_a_job, _clear_dead_locks], ["called"]),
        Scenario("force", [_call_a_job, _clear_by_force], ["called"], may_overlap=True),
        Scenario("long_blocks", [_stay_in_a_block], [LOCK], aims=INSIDE_A_BLOCK),
        Scenario("deaths", [_fall_silent, _watch, _watch, _watch], [LOCK], aims=AROUND_A_DEATH),
        Scenario("late_starts", [_begin_late], ["called"], aims=BEFORE_A_BODY),
    )
}


# --- afterwards


def come_last(actor: Actor, names: Callable[[], Sequence[str]], bound: float) -> None:
    """Acquire each lock that is left, when all others have ended: it must become free within the bound. Then end
    the runs whose locks are gone. A COMMIT that is still to come may grant a lock, so wait for it first."""
    while coming := [at for at, _ in actor.world.scheduler.events]:
        clock.sleep(max(coming) - actor.world.now)
    begun_at = actor.world.now
    while (left := names()) and actor.world.now - begun_at < bound:
        for name in left:
            request = LockRequest.of(
                name, lease=LEASE, heartbeat=True, wait=timedelta(seconds=bound), holder=this_process(["last"])
            )
            if lease := actor.ask(request):
                lease.finish()
    for name in names():
        actor.world.oracle.violate(f"The lock {name!r} is not free {actor.world.now - begun_at:.0f} s after the end.")
    abandon_orphans()
