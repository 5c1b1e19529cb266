"""Loss: a robbed holder finds out, and cannot harm its successor."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync

from django_singlejob import LeaseLost, current_run, job_lock, singleton_job
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.heartbeat import Heartbeats
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import utc_now
from tests.contract.acts import (
    MINUTE,
    everything,
    expire,
    in_thread,
    is_free,
    last_run,
    lock,
    lose,
    nth_fence,
    pass_gate,
    start_run,
    take,
)
from tests.databases import APPS
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from django_singlejob import Lease
    from django_singlejob.models import JobLock, JobStatus
    from tests.contract.conftest import Ahead

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

SUCCESS = Ending(status="successful", duration=timedelta(seconds=1))


def test_who_was_robbed_changes_nothing_of_the_successors_and_is_told() -> None:
    zombie, successor = lose(job_name="nightly", trigger="call")
    before = everything()
    with pytest.raises(LeaseLost, match="taken over"):
        zombie.renew()
    with pytest.raises(LeaseLost, match="taken over"):
        zombie.check()
    assert not zombie.finish(SUCCESS)
    assert not zombie.finish(SUCCESS)
    assert not zombie.release()
    assert everything() == before
    assert successor.finish(SUCCESS)


@pytest.fixture(params=["robbed", "undisturbed"])
def is_robbed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A process wakes up after its deadline, and the body's thread continues before its heartbeats do."""

    def stop(_: Heartbeats, lease: Lease) -> None:
        lease._state.proven_at -= lease.grant.request.lease.total_seconds()
        if request.param == "robbed":
            in_thread(partial(rob, lease.name))

    monkeypatch.setattr(Heartbeats, "add", stop)
    return bool(request.param == "robbed")


def rob(name: str) -> None:
    pass_gate(name)
    locks().filter(name=name).update(token=uuid4())


def may_be_lost(*, if_: bool) -> AbstractContextManager[object]:
    return pytest.raises(LeaseLost, match="taken over") if if_ else nullcontext()


def test_a_body_begins_past_the_deadline_only_if_the_lock_is_still_ours(is_robbed: bool) -> None:
    begun: list[bool] = []
    job: Any = singleton_job("nightly")(lambda: begun.append(True))
    with may_be_lost(if_=is_robbed):
        job()
    assert bool(begun) is not is_robbed
    assert last_run().status == ("failed" if is_robbed else "successful")


def test_so_does_an_async_one(is_robbed: bool) -> None:
    begun: list[bool] = []

    @singleton_job
    async def nightly() -> None:
        begun.append(True)

    call: Any = async_to_sync(nightly)
    with may_be_lost(if_=is_robbed):
        call()
    assert bool(begun) is not is_robbed
    assert last_run().status == ("failed" if is_robbed else "successful")


def test_so_does_a_block(is_robbed: bool) -> None:
    begun: list[bool] = []
    with may_be_lost(if_=is_robbed), job_lock("nightly"):
        begun.append(True)
    assert bool(begun) is not is_robbed


def test_a_job_that_was_robbed_raises_and_its_run_stays_abandoned() -> None:
    job = singleton_job("nightly", heartbeat=False)(be_robbed)
    with pytest.raises(LeaseLost, match="taken over"):
        job()
    assert list(runs().order_by("pk").values_list("status", flat=True)) == ["abandoned", "running"]


def test_the_jobs_own_exception_goes_before_the_loss() -> None:
    @singleton_job(heartbeat=False)
    def nightly() -> None:
        be_robbed()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nightly()


def test_a_block_that_was_robbed_raises_at_its_end() -> None:
    with pytest.raises(LeaseLost, match="taken over"), job_lock("nightly", heartbeat=False):
        be_robbed()
    assert not is_free()


def be_robbed() -> None:
    expire()
    start_run()


def test_a_job_whose_lock_was_deleted_by_hand_raises_and_its_run_is_closed() -> None:
    @singleton_job
    def nightly() -> None:
        locks().filter(name="nightly").delete()

    with pytest.raises(LeaseLost, match="deleted"):
        nightly()
    assert last_run().status == "failed"
    assert last_run().error.startswith("LeaseLost")
    assert last_run().finished_at


def test_who_lost_a_deleted_lock_is_told_and_harms_no_successor() -> None:
    lease = start_run()
    locks().filter(name="nightly").delete()
    with pytest.raises(LeaseLost, match="deleted"):
        lease.renew()
    assert start_run().fence == nth_fence(2)
    before = everything()[:2]
    assert not lease.finish(SUCCESS)
    assert everything()[:2] == before
    assert [(run.fence, run.status) for run in runs().order_by("pk")] == [
        (nth_fence(1), "failed"),
        (nth_fence(2), "running"),
    ]


def test_a_job_that_is_refused_its_own_release_raises_all_the_same() -> None:
    @singleton_job(heartbeat=False)
    def nightly() -> None:
        be_robbed()
        run = current_run()
        assert run is not None
        assert not run.lease.release()

    with pytest.raises(LeaseLost, match="taken over"):
        nightly()


def test_a_gate_that_was_deleted_by_hand_while_the_lock_is_free_is_made_again() -> None:
    take().release()
    gates().all().delete()
    assert take().release()


def test_a_gate_that_was_deleted_by_hand_while_the_lock_is_held_is_a_loss() -> None:
    lease = take()
    gates().all().delete()
    with pytest.raises(LeaseLost), lease.atomic():
        pytest.fail("it came in")
    assert not lease.release()


class Seen(NamedTuple):
    lock: JobLock
    gate: JobStatus


ON_THEIR_OWN = {
    "renew": lambda zombie, seen: locks().renew(zombie.name, zombie.token, MINUTE, utc_now()),
    "release": lambda zombie, seen: locks().release(zombie.name, zombie.token),
    "take over": lambda zombie, seen: locks().take_over(seen.lock, {"pid": 5}),
    "clear": lambda zombie, seen: locks().clear(seen.lock, force=False),
    "clear by force": lambda zombie, seen: locks().clear(seen.lock, force=True),
    "hold the gate": lambda zombie, seen: gates().hold(zombie.name, zombie.token),
    "finish": lambda zombie, seen: gates().finish(zombie.name, zombie.token, "successful", timedelta()),
    "close the run": lambda zombie, seen: runs().finish(zombie.token, {"status": "successful"}),
    "pass": lambda zombie, seen: gates().pass_through(seen.gate, zombie.token),
    "pass and start": lambda zombie, seen: gates().unchanged(seen.gate).start(timedelta(), {}),
}


@pytest.mark.parametrize("write", ON_THEIR_OWN.values(), ids=ON_THEIR_OWN)
def test_each_write_on_its_own_finds_nothing_of_the_successors(write: Any) -> None:
    zombie = start_run()
    expire()
    seen = Seen(lock(), gates().look_up({"nightly"}, timedelta())["nightly"])
    start_run()
    expire()
    before = everything()
    assert not write(zombie, seen)
    assert everything() == before


AT_THE_SAME_MOMENT = {
    "takeover": lambda seen: locks().take_over(seen, {"token": uuid4()}),
    "clear": lambda seen: locks().clear(seen, force=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", AT_THE_SAME_MOMENT.values(), ids=AT_THE_SAME_MOMENT)
def test_a_heartbeat_that_comes_at_the_same_moment_finds_nothing(end: Any, ahead: Ahead) -> None:
    """The heartbeat waits for the row. It must neither overwrite the successor's nor bring back one that is gone."""
    lease = take()
    expire()
    seen = lock()
    ending = ahead(lambda: end(seen))
    assert not locks().renew(lease.name, lease.token, MINUTE, utc_now())
    ending.result(PATIENCE)
    assert not locks().filter(token=lease.token).exists()
