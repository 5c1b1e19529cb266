"""What a worker claims ahead of its threads; `processes/test_worker_ahead.py` has real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from django_singlejob.exceptions import LeaseLost
from django_singlejob.jobs.names import WORKER_LOCK
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from django_singlejob.running.enqueue import Order
from django_singlejob.tasks import ahead, hand_out
from django_singlejob.tasks.batches import Claimed
from django_singlejob.tasks.hand_out import Tasks
from django_singlejob.tasks.pool import Pool
from django_singlejob.worker.due_run import Runnable, carried_out
from tests.contract.acts import take, ticked

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_singlejob.running.outcomes import Outcome

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
    for module in ahead, hand_out:
        monkeypatch.setattr(module, "local_now", clock)
    return clock


# --- a worker whose threads do what the test says


class Threads(Pool):
    """This many threads. A test has them carry out what was sent to them, in its own thread."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.waiting: list[Runnable] = []
        self.done: list[tuple[Runnable, Outcome]] = []

    @property
    def free(self) -> int:
        return self.size - len(self.waiting) - len(self.done)

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.done)

    def send(self, task: Runnable) -> None:
        self.waiting.append(task)

    def perform(self, count: int) -> None:
        begun, self.waiting = self.waiting[:count], self.waiting[count:]
        self.done += [(task, carried_out(task)) for task in begun]

    def come_back(self) -> list[tuple[Runnable, Outcome]]:
        done, self.done = self.done, []
        return done

    def recall(self) -> list[Runnable]:
        recalled, self.waiting = self.waiting, []
        return recalled


class Working:
    """A worker, step by step."""

    def __init__(self, threads: int) -> None:
        self.threads = Threads(threads)
        self.lease = take(f"{WORKER_LOCK}.1")
        self.tasks = Tasks(self.lease, self.threads)

    @property
    def ahead(self) -> int:
        """How many wait for a thread."""
        return max(0, -self.threads.free)

    def step(self, perform: int = 0) -> None:
        self.threads.perform(perform)
        for task, outcome in self.threads.come_back():
            self.tasks.settle(cast("Claimed", task), outcome)
        self.tasks.hand_out()

    def look(self) -> None:
        self.tasks.may_be_more = True
        self.step()

    def steps(self) -> None:
        while True:
            self.step(perform=1)

    def warm_up(self) -> None:
        self.look()
        for _ in range(19):
            self.step(perform=self.threads.size)


@pytest.fixture
def working(clock: Clock) -> Callable[[int], Working]:
    """Returns a worker with a given number of threads."""
    return Working


def enqueue(count: int) -> None:
    for _ in range(count):
        Order(task_path="tests.app.django_tasks.plain", max_attempts=3, backend="default").enqueue()


def waiting() -> int:
    return one_offs().waiting().count()


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("threads", [1, 10])
def test_of_short_tasks_as_many_are_claimed_ahead_for_one_thread_as_for_ten(
    working: Callable[[int], Working], threads: int
) -> None:
    enqueue(20 * threads + 100)
    busy = working(threads)
    busy.warm_up()
    assert 20 <= busy.ahead <= 40
    most = 0
    for _ in range(FEW):
        busy.step(perform=threads)
        most = max(most, busy.ahead)
    assert 20 <= most <= 40


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_of_long_tasks_none_is(working: Callable[[int], Working], clock: Clock) -> None:
    enqueue(30)
    busy = working(2)
    busy.look()
    for _ in range(10):
        clock.now += 1
        busy.step(perform=2)
        assert busy.ahead == 0


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_has_waited_long_is_given_back_even_if_others_were_claimed_since(
    working: Callable[[int], Working], clock: Clock
) -> None:
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


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_nothing_waits_for_the_next_look_to_be_given_back(working: Callable[[int], Working], clock: Clock) -> None:
    """However seldom the worker looks."""
    enqueue(50)
    stuck = working(1)
    stuck.warm_up()
    while stuck.ahead > FEW:
        stuck.step(perform=1)
    assert waiting() == 0
    assert stuck.tasks.patience <= 0.5


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_was_given_back_runs_as_soon_as_the_thread_is_free(
    working: Callable[[int], Working], clock: Clock
) -> None:
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


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_is_on_its_last_attempt_is_claimed_only_for_a_free_thread(working: Callable[[int], Working]) -> None:
    """If the worker is killed, it fails. Until a thread is free, the worker does not ask again and again."""
    enqueue(50)
    one_offs().order_by("pk").filter(pk__gt=one_offs().order_by("pk")[29].pk).update(attempt=2)
    busy = working(2)
    busy.look()
    while waiting():
        busy.step(perform=2)
        began = {cast("Claimed", task).row.pk for task in busy.threads.waiting[:2]}
        ahead = one_offs().in_progress().exclude(pk__in=began)
        assert set(ahead.values_list("attempt", flat=True)) <= {1}
        assert busy.tasks.patience > 0 or not busy.tasks.batches.has_spared
    assert one_offs().filter(attempt=3).count() == 20


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_what_has_not_begun_when_the_lock_is_lost_is_left_to_others(working: Callable[[int], Working]) -> None:
    enqueue(100)
    robbed = working(1)
    robbed.warm_up()
    gates().revoke(robbed.lease.name)
    with pytest.raises(LeaseLost):  # as soon as it claims again
        robbed.steps()
    left = one_offs().in_progress().count()
    assert robbed.ahead > FEW
    robbed.threads.perform(robbed.ahead)
    outcomes = [outcome for _, outcome in robbed.threads.come_back()]
    assert {type(outcome.error) for outcome in outcomes} == {LeaseLost}
    assert one_offs().in_progress().count() == left


@pytest.mark.django_db
@pytest.mark.usefixtures("fresh_process")
def test_a_pass_in_the_calling_thread_claims_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr("tests.app.django_tasks.body", lambda: seen.append(waiting()))
    enqueue(FEW)
    assert len(ticked()) == FEW
    assert seen == [*reversed(range(FEW))]
