"""How many tasks a worker claims ahead of its threads, and when it gives them back.

One transaction records and claims many tasks if some wait for the next free thread. Meanwhile they cannot run
elsewhere, and use up an attempt if the worker is killed: so there are few, and only while they begin at once.
"""

from collections import deque
from collections.abc import Sequence

from django_singlejob.process.clock import local_now
from django_singlejob.tasks.batches import Claimed

# As many for one thread as for ten: a transaction costs the same.
_MOST = 40
# The next claim comes this soon if tasks are short. Seconds.
_SOON = 0.05
# Seconds.
_LONGEST_WAIT = 0.5


class Ahead:
    """The tasks that this worker has claimed although no thread was free."""

    def __init__(self) -> None:
        #: How many there may be.
        self.most = 0
        self._claimed_at = float("-inf")
        #: When each batch was claimed, and its last task: tasks begin in the order in which they were claimed.
        self._batches: deque[tuple[float, Claimed]] = deque()

    def add(self, batch: Sequence[Claimed], asked_at: float) -> None:
        """Take note of a batch that was just claimed. If the threads soon needed it, there may be more next time."""
        if batch:
            # Not since the last claim began: if the database is far away, a claim itself takes long.
            is_soon = asked_at < self._claimed_at + _SOON
            self.most = min(2 * self.most + 1, _MOST) if is_soon else self.most // 2
            self._claimed_at = local_now()
            self._batches.append((self._claimed_at, batch[-1]))

    def longest_wait_ends(self) -> float:
        """When to give back all that no thread has begun: at once if their lease is lost, because then none may."""
        while self._batches and self._batches[0][1].is_begun:
            self._batches.popleft()
        if not self._batches:
            return float("inf")
        claimed_at, last = self._batches[0]
        return float("-inf") if last.lease.lost else claimed_at + _LONGEST_WAIT

    def give_back(self) -> None:
        """Take note that no task waits any more. The next ones are claimed only for free threads."""
        self._batches.clear()
        self.most = 0
