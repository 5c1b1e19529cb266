"""What a worker claims ahead of its threads; `processes/test_worker_ahead.py` has real ones."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import django
import pytest

from django_singlejob.models import OneOffJob
from django_singlejob.names import WORKER_LOCK
from django_singlejob.one_offs.enqueue import Order
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.one_offs import one_offs
from django_singlejob.worker import ahead, tick
from django_singlejob.worker.ahead import Ahead
from django_singlejob.worker.batches import Claimed
from django_singlejob.worker.pool import Inline
from django_singlejob.worker.tick import Plan, Tick
from tests.contract.acts import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_singlejob.worker.pool import PoolTask

pytest_plugins = "tests.fixtures"

# The least that shows how a number grows.
FEW = 5


class Clock:
    """Stands still until a test sets it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ahead, tick:
        monkeypatch.setattr(module, "local_now", clock)
    return clock


# --- how many


def batch(count: int = 1) -> list[Claimed]:
    lease: Any = SimpleNamespace(lost=False)
    return [Claimed(OneOffJob(), lease) for _ in range(count)]


def test_there_are_more_each_time_that_the_threads_soon_need_the_next_batch(clock: Clock) -> None:
    few, numbers = Ahead(), []
    for _ in range(8):
        few.add(batch(), clock.now)
        numbers.append(few.most)
    assert numbers == [0, 1, 3, 7, 15, 31, 40, 40]


def test_there_are_fewer_each_time_that_they_do_not(clock: Clock) -> None:
    many, numbers = Ahead(), []
    many.most = 40
    for _ in range(7):
        clock.now += 0.06
        many.add(batch(), clock.now)
        numbers.append(many.most)
    assert numbers == [20, 10, 5, 2, 1, 0, 0]


def test_the_time_that_a_claim_itself_takes_does_not_count(clock: Clock) -> None:
    """If the database is far away, tasks are claimed ahead all the more."""
    slow = Ahead()
    for _ in range(FEW):
        asked_at = clock.now
        clock.now += 1
        slow.add(batch(), asked_at)
    assert slow.most == 15


def test_a_claim_that_finds_nothing_changes_nothing(clock: Clock) -> None:
    idle = Ahead()
    idle.most = FEW
    idle.add([], clock.now)
    assert (idle.most, idle.longest_wait_ends()) == (FEW, float("inf"))


# --- how long


def test_each_batch_has_so_long_to_begin(clock: Clock) -> None:
    waiting, batches = Ahead(), [batch(2), batch(2)]
    for number in range(2):
        clock.now = number
        waiting.add(batches[number], clock.now)
    for tasks in batches:
        assert waiting.longest_wait_ends() == batches.index(tasks) + 0.5
        tasks[0].is_begun = True
        assert waiting.longest_wait_ends() == batches.index(tasks) + 0.5
        tasks[1].is_begun = True
    assert waiting.longest_wait_ends() == float("inf")


def test_none_waits_for_a_thread_once_the_lease_is_lost(clock: Clock) -> None:
    waiting, tasks = Ahead(), batch()
    waiting.add(tasks, clock.now)
    tasks[0].lease.lost = True  # type: ignore[misc]
    assert waiting.longest_wait_ends() < clock.now


def test_after_some_were_given_back_none_is_claimed_ahead(clock: Clock) -> None:
    stuck = Ahead()
    for _ in range(FEW):
        stuck.add(batch(), clock.now)
    stuck.give_back()
    assert (stuck.most, stuck.longest_wait_ends()) == (0, float("inf"))
    stuck.add(batch(), clock.now + 1)
    assert stuck.most == 0


# --- a worker whose threads do what the test says

needs_tasks = pytest.mark.skipif(django.VERSION < (6, 0), reason="there are no tasks before Django 6.0")


class Threads(Inline):
    """This many threads. A test has them carry out what was sent to them, in its own thread."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.waiting: list[PoolTask] = []

    @property
    def free(self) -> int:
        return self.size - len(self.waiting) - len(self._returns)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and super().is_idle

    def send(self, task: PoolTask) -> None:
        self.waiting.append(task)

    def perform(self, count: int) -> None:
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        for task in done:
            super().send(task)

    def recall(self) -> list[PoolTask]:
        recalled, self.waiting = self.waiting, []
        return recalled


class Working:
    """A worker, step by step."""

    def __init__(self, threads: int) -> None:
        self.threads = Threads(threads)
        self.tick = Tick(Plan(threads=threads, interval=HOUR), self.threads)
        self.tick._prune_at = float("inf")

    @property
    def ahead(self) -> int:
        """How many wait for a thread."""
        return max(0, -self.threads.free)

    def step(self, perform: int = 0) -> None:
        self.threads.perform(perform)
        for task, report in self.threads.come_back(0):
            self.tick.settle(task, report)
        self.tick.recall_if_stuck()
        self.tick.look()
        self.tick.hand_out()

    def warm_up(self) -> None:
        for _ in range(20):
            self.step(perform=self.threads.size)


@pytest.fixture
def working(clock: Clock) -> Iterator[Any]:
    """Returns a worker with a given number of threads."""
    workers: list[Working] = []

    def start(threads: int) -> Working:
        workers.append(Working(threads))
        return workers[-1]

    yield start
    for worker in workers:
        worker.tick.recall()
        worker.tick.batches.close()


def enqueue(count: int) -> None:
    for _ in range(count):
        Order(task_path="tests.app.django_tasks.plain", max_attempts=3, backend="default").enqueue()


def waiting() -> int:
    return one_offs().waiting().count()


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("threads", [1, 10])
def test_of_short_tasks_as_many_are_claimed_ahead_for_one_thread_as_for_ten(working: Any, threads: int) -> None:
    enqueue(20 * threads + 100)
    busy = working(threads)
    busy.warm_up()
    assert 20 <= busy.ahead <= 40
    most = 0
    for _ in range(FEW):
        busy.step(perform=threads)
        most = max(most, busy.ahead)
    assert 20 <= most <= 40


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_of_long_tasks_none_is(working: Any, clock: Clock) -> None:
    enqueue(30)
    busy = working(2)
    for _ in range(10):
        busy.step(perform=2)
        clock.now += 1
        assert busy.ahead == 0


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_has_waited_long_is_given_back_even_if_others_were_claimed_since(working: Any, clock: Clock) -> None:
    enqueue(200)
    stuck = working(1)
    stuck.warm_up()
    clock.now += 0.3
    ahead = stuck.ahead
    while stuck.ahead <= ahead:  # until others are claimed
        ahead = stuck.ahead
        stuck.step(perform=1)
    clock.now += 0.3
    stuck.step()
    assert stuck.ahead == 0
    assert one_offs().in_progress().count() == 1
    assert set(one_offs().waiting().values_list("attempt", flat=True)) == {0}


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_nothing_waits_for_the_next_look_to_be_given_back(working: Any, clock: Clock) -> None:
    """However seldom the worker looks."""
    enqueue(50)
    stuck = working(1)
    stuck.warm_up()
    while stuck.ahead > FEW:
        stuck.step(perform=1)
    assert waiting() == 0
    assert stuck.tick.patience <= 0.5


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_was_given_back_runs_as_soon_as_the_thread_is_free(working: Any, clock: Clock) -> None:
    """It does not wait for the next look, however seldom the worker looks."""
    enqueue(50)
    stuck = working(1)
    stuck.warm_up()
    while waiting():
        stuck.step(perform=1)
    assert stuck.ahead > 0
    clock.now += 0.6
    stuck.step()
    assert waiting() > 0
    for _ in range(50):
        stuck.step(perform=1)
    assert waiting() == 0


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_has_not_begun_when_the_lock_is_lost_is_left_to_others(
    working: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an error for each: only one that a thread is just about to begin fails."""
    enqueue(100)
    robbed = working(1)
    robbed.warm_up()
    gates().revoke(f"{WORKER_LOCK}.1")
    while robbed.tick.batches._lease:
        robbed.step(perform=1)
    left = set(one_offs().in_progress().values_list("pk", flat=True))
    assert robbed.ahead > FEW
    robbed.step(perform=1)
    assert robbed.ahead <= 0
    failed = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert failed == ["The task 'tests.app.django_tasks.plain' failed."]
    assert left <= set(one_offs().in_progress().values_list("pk", flat=True))


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_is_on_its_last_attempt_is_claimed_only_for_a_free_thread(working: Any) -> None:
    """If the worker is killed, it fails. Until a thread is free, the worker does not ask again and again."""
    enqueue(50)
    one_offs().order_by("pk").filter(pk__gt=one_offs().order_by("pk")[29].pk).update(attempt=2)
    busy = working(2)
    while waiting():
        busy.step(perform=2)
        began = {task.row.pk for task in busy.threads.waiting[:2]}
        ahead = one_offs().in_progress().exclude(pk__in=began)
        assert set(ahead.values_list("attempt", flat=True)) <= {1}
        assert busy.tick.patience > 0 or not busy.tick.batches.has_spared
    assert one_offs().filter(attempt=3).count() == 20


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_a_worker_that_loses_its_lock_then_does_not_ask_again_and_again(working: Any) -> None:
    enqueue(100)
    robbed = working(2)
    robbed.warm_up()
    one_offs().waiting().update(attempt=2)
    while not robbed.tick.batches.has_spared:
        robbed.step(perform=2)
    gates().revoke(f"{WORKER_LOCK}.1")
    one_offs().waiting().cancel()
    for _ in range(FEW):
        robbed.step(perform=2)
    assert robbed.tick.patience > 0


@needs_tasks
@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_a_pass_without_threads_claims_one_at_a_time(clock: Clock) -> None:
    enqueue(FEW)
    inline = Inline()
    alone = Tick(Plan(once=True, interval=timedelta(seconds=1)), inline)
    for left in reversed(range(FEW)):
        alone.look()
        alone.hand_out()
        assert waiting() == left
        for task, report in inline.come_back(0):
            alone.settle(task, report)
    alone.batches.close()
