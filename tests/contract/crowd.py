"""Many processes at once. Run this in its own process (see `spawn`), which forks so that none waits for imports."""

from __future__ import annotations

import functools
import json
import multiprocessing
import random
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections

from django_singlejob import Lease, LockHeld, job_lock
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import Ending
from django_singlejob.models.locks import locks
from tests.contract.acts import BEAT, ask, expire, start_run
from tests.waiting import PATIENCE, work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Barrier

T = TypeVar("T")

fork = multiprocessing.get_context("fork")


class Member:
    """What each process of the crowd inherits, because a barrier cannot be passed to it later."""

    barrier: Barrier


def crowd(size: int, act: Callable[[int], T]) -> list[T]:
    """Run `act` in this many processes at the same time. Returns what each returned, or raises what one raised."""
    Member.barrier = fork.Barrier(size)
    connections.close_all()
    with fork.Pool(size) as pool:
        answers = pool.map(functools.partial(begin_together, act), range(size), chunksize=1)
        pool.close()
        pool.join()
    return answers


def begin_together(act: Callable[[int], T], number: int) -> T:
    locks().exists()  # connects
    Member.barrier.wait(PATIENCE)
    return act(number)


def race_for_the_dead(size: int, rounds: int) -> None:
    """In each round, this many processes want a dead holder's lock. Prints the fences of the winners, by round."""
    # Many processes cannot all look every few milliseconds, and a gap of an interval would restart their watches.
    start_run(heartbeat_interval=10 * BEAT)
    print(json.dumps([race(size, 10 * BEAT if number % 2 else None) for number in range(rounds)]))


def race(size: int, heartbeat_interval: Any) -> list[int]:
    expire()
    answers = crowd(size, functools.partial(try_to_take_over, heartbeat_interval))
    return [fence for fence in answers if fence]


def try_to_take_over(heartbeat_interval: Any, number: int) -> int | None:
    answer = ask(job_name="nightly", trigger="call", heartbeat_interval=heartbeat_interval)
    return answer.fence if isinstance(answer, Lease) else None


NAMES = ("even", "odd")


def count(folder: str, processes: int, times: int) -> None:
    """Each process adds one to a number, several times. Only the lock keeps them from reading the same number."""
    for name in NAMES:
        (Path(folder) / name).write_text("0")
    crowd(processes, functools.partial(count_one_by_one, Path(folder), times))
    print(json.dumps(sum(int((Path(folder) / name).read_text()) for name in NAMES)))


def count_one_by_one(folder: Path, times: int, number: int) -> None:
    for turn in range(times):
        name = NAMES[(number + turn) % 2]
        with held(name):
            add_one(folder / name)


@contextmanager
def held(name: str) -> Iterator[Lease]:
    """Ask until the lock is granted, more often than `wait` does."""
    while True:
        with suppress(LockHeld), job_lock(name) as lease:
            yield lease
            return
        work_for(random.uniform(0, 0.1))


def add_one(file: Path) -> None:
    value = int(file.read_text())
    work_for(0.001)
    file.write_text(str(value + 1))


def fight(folder: str, processes: int, turns: int) -> None:
    """All processes do everything that can be done to a lock, all at once. Prints each grant's name and fence."""
    begin = functools.partial(fight_on, Path(folder), turns)
    print(json.dumps([grant for grants in crowd(processes, begin) for grant in grants]))


def fight_on(folder: Path, turns: int, number: int) -> list[tuple[str, int]]:
    chance = random.Random(number)
    grants = []
    for _ in range(turns):
        name = chance.choice(NAMES)
        answer = ask(name, job_name=f"job-{chance.randrange(4)}", trigger="call")
        if isinstance(answer, Lease):
            grants.append((name, answer.fence))
            use(answer, folder / name, chance)
        elif answer.lock and chance.random() < 0.2:
            clear(answer.lock)
        work_for(chance.uniform(0, 0.2))  # without this, two cores do nothing but refuse
    return grants


def use(lease: Lease, marker: Path, chance: random.Random) -> None:
    with marker.open("x"):  # raises if another process is inside
        work_for(0.001)
        lease.renew()
        if chance.random() < 0.2:
            with lease.atomic():
                work_for(0.001)
    marker.unlink()
    if chance.random() < 0.1:
        expire(lease.name)  # dies
    else:
        assert lease.finish(Ending(status="successful", duration=timedelta(milliseconds=1)))
