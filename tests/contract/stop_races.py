"""Two processes race: one stops what it has seen, the other ends it and begins the next at once. Run this in a process
of its own (see `spawn`), which forks both."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django_singlejob.control.stopping import Obstacle, stop_one_off, stop_run
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.clock import DBNow, local_now
from django_singlejob.process.holder import this_process
from tests.contract.acts import lock, take
from tests.contract.crowd import Member, crowd
from tests.waiting import PATIENCE, work_for

if TYPE_CHECKING:
    from django_singlejob import Lease

WORKER = "django_singlejob.worker.1"
#: The longest that one of the two lets the other one go ahead. Seconds.
HEAD_START = 0.006


class Stop(NamedTuple):
    """What the process that stops has to say about one race."""

    token: str
    is_marked: bool
    obstacle: str
    begun_at: float
    answered_at: float


class End(NamedTuple):
    """What the other one has to say. `named`: the user that the holder's last heartbeat has named."""

    token: str
    named: str
    beat_at: float
    ended_at: float
    named_next: str
    next_row: str


def of_runs(races: int) -> None:
    """Prints how the races ended. Raises `AssertionError` at the first one that is wrong."""
    stops, ends = crowd(2, functools.partial(race_for_runs, races))
    outcomes = Counter(judged(Stop(*stop), End(*end)) for stop, end in zip(stops, ends, strict=True))
    assert outcomes.total() == races
    print(json.dumps(outcomes))


def judged(stop: Stop, end: End) -> str:
    """The outcome of one race. The row that has the token is gone after it, and its successor's is not marked: so a
    stop that succeeded has hit the one that it named."""
    assert stop.token == end.token
    assert (end.named_next, end.next_row) == ("", ""), "The successor was stopped."
    if end.named:
        assert stop.is_marked, "The holder has found a stop that was refused."
        return "found by a heartbeat"
    if stop.is_marked:
        assert stop.begun_at < end.ended_at, "What was over was stopped."
        assert stop.answered_at > end.beat_at, "The holder's heartbeat has overlooked the mark."
        return "ended before its next heartbeat"
    assert stop.obstacle == Obstacle.OVER, stop.obstacle
    assert stop.answered_at > end.beat_at, "What was running was not stopped."
    return "refused"


def race_for_runs(races: int, number: int) -> list[Any]:
    chance = random.Random(number)
    return [(stop_a_run if number == 0 else end_a_run)(chance) for _ in range(races)]


def together() -> None:
    Member.barrier.wait(PATIENCE)


def stop_a_run(chance: random.Random) -> Stop:
    together()  # it runs
    seen = lock()
    together()
    work_for(chance.uniform(0, HEAD_START))
    begun_at = local_now()
    obstacle = stop_run(seen, "ada")
    answered_at = local_now()
    together()  # both are done
    return Stop(str(seen.token), obstacle is None, obstacle or "", begun_at, answered_at)


def end_a_run(chance: random.Random) -> End:
    lease = take(heartbeat_interval=timedelta(seconds=20))
    together()
    together()
    work_for(chance.uniform(0, HEAD_START))
    beat_at = local_now()
    lease.renew()
    assert lease.release()
    ended_at = local_now()
    successor = take(heartbeat_interval=timedelta(seconds=20))
    together()
    named_next, next_row = named_by(successor)
    return End(str(lease.token), lease.stopped_by, beat_at, ended_at, named_next, next_row)


def named_by(successor: Lease) -> tuple[str, str]:
    successor.renew()
    row = lock().stopped_by
    assert successor.release()
    return successor.stopped_by, row


# --- tasks


def of_tasks(races: int) -> None:
    """The same for the attempts at one task, which all run under the token of one worker."""
    token = take(WORKER, heartbeat_interval=timedelta(seconds=20), lease=timedelta(hours=1)).token
    one_offs().create(task_path="shop.tasks.send", created_at=DBNow(), run_after=DBNow())
    begin_the_task(token)
    stops, ends = crowd(2, functools.partial(race_for_tasks, races, token))
    outcomes: Counter[str] = Counter()
    for (is_marked, obstacle), (status, mark) in zip(stops, ends, strict=True):
        assert is_marked or obstacle == Obstacle.OVER, obstacle
        assert status == ("cancelled" if is_marked else "waiting"), "The stop has hit another attempt, or none."
        assert mark == "", "The next attempt was stopped."
        outcomes["stopped" if is_marked else "refused"] += 1
    assert outcomes.total() == races
    print(json.dumps(outcomes))


def race_for_tasks(races: int, token: Any, number: int) -> list[Any]:
    chance = random.Random(number)
    return [stop_a_task(chance) if number == 0 else end_a_task(chance, token) for _ in range(races)]


def stop_a_task(chance: random.Random) -> tuple[bool, str]:
    seen = one_offs().get()
    together()
    work_for(chance.uniform(0, HEAD_START))
    obstacle = stop_one_off(seen, "ada")
    together()
    together()
    return obstacle is None, obstacle or ""


def end_a_task(chance: random.Random, token: Any) -> tuple[str, str]:
    together()
    work_for(chance.uniform(0, 3 * HEAD_START))
    assert one_offs().release(token) == 1
    status = one_offs().get().status
    begin_the_task(token)
    together()
    mark = one_offs().get().stopped_by
    together()
    return status, mark


def begin_the_task(token: Any) -> None:
    one_offs().retry()  # if it was cancelled
    assert one_offs().claim(one_offs().get(), token, this_process())
