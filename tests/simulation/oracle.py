"""The judge of a schedule. It is outside the product: it knows true time, and sees each commit at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.faults import CLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from django_singlejob import Lease
    from tests.simulation.baton import Process
    from tests.simulation.trace import Trace
    from tests.simulation.world import World


#: Clocks differ by less than this, in seconds.
_MOMENT = 0.5
#: The profile in which no fenced block keeps its holder from trusting itself, see ``world``.
ONE_HOST = "one_host"


class Violation(Exception):
    """A promise was broken."""


class Write(NamedTuple):
    """Something written inside ``lease.atomic()``."""

    id: int
    lock: str
    fence: int


class State(NamedTuple):
    """The rows that matter, as every process sees them after a commit: the gates' fences and tokens, the locks' tokens,
    and the fenced writes that are new since the last look."""

    gates: dict[str, tuple[int, str | None]]
    locks: dict[str, str]
    writes: Sequence[Write]


class Held(NamedTuple):
    """A lease, and the process that has it."""

    process: Process
    lease: Lease

    def is_trusted(self, now: float) -> bool:
        """Whether the holder trusts itself at this instant of true time."""
        process, lease = self.process, self.lease
        # While it releases the lock, its body is over.
        is_gone = (
            process.is_dead
            or process.is_ended
            or lease._state.is_lost
            or lease._state.is_over
            or lease._state.is_ending
        )
        return not is_gone and process.monotonic.at(now) < lease.deadline

    @property
    def may_be_released(self) -> bool:
        """Whether a request that commits itself is under way. If it waited for a row, the server may have carried it
        out since, before its process goes on."""
        return any(getattr(connection, "request", None) for connection in self.process.connections)


class Oracle:
    """What it has seen of one schedule, and what was wrong with it."""

    def __init__(self, read: Callable[[int], State], *, may_overlap: bool = False) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.world: World | None = None
        self.trace: Trace | None = None
        #: Whether a lock may be taken from a holder that trusts itself, because it is cleared by force.
        self.may_overlap = may_overlap
        self._read = read
        self._held: dict[str, list[Held]] = defaultdict(list)
        self._owners: dict[str, Held] = {}
        #: When each process read the locks' rows, in true time.
        self._looks: dict[str, list[float]] = defaultdict(list)
        self._fences: dict[str, int] = {}
        self._tokens: dict[str, str | None] = {}
        self._locks: dict[str, str] = {}
        #: Since which step the lock has been free.
        self._free_since: dict[str, int] = {}
        self._last_write = 0
        self._starts: dict[tuple[str, object], list[int]] = defaultdict(list)

    def violate(self, sentence: str) -> None:
        """Note that a promise was broken. The schedule ends at its next step."""
        self.violations.append(sentence)
        if self.world:
            self.world.history.note("", f"VIOLATION {sentence}")

    @property
    def _now(self) -> float:
        return self.world.now if self.world else 0.0

    @property
    def _steps(self) -> int:
        return self.world.scheduler.steps if self.world else 0

    # --- at each instant

    def look(self) -> None:
        """Look at who trusts itself now. Raises ``Violation`` if a promise was broken."""
        if self.trace:
            self.trace.look()
        if self._held and self.world and not self.may_overlap:
            now = self.world.now
            for name, held in self._held.items():
                if len(held) > 1:
                    self._compare(name, held, now)
        if self.violations:
            raise Violation(self.violations[0])

    def _compare(self, name: str, held: list[Held], now: float) -> None:
        trusted = [each for each in held if each.is_trusted(now)]
        if len(trusted) > 1:
            who = " and ".join(f"{each.process.name} (fence {each.lease.fence})" for each in trusted)
            self.violate(f"{who} trust themselves at once with the lock {name!r}.")
        held[:] = [each for each in held if not (each.process.is_dead or each.lease._state.is_over)]

    # --- what processes do

    def granted(self, process: Process, lease: Lease) -> None:
        """A process was granted a lease."""
        self.counts["leases"] += 1
        held = Held(process, lease)
        self._held[lease.name].append(held)
        if self.trace:
            self.trace.lease_made(held)
        self._owners[_hex(lease.token)] = held
        self._note(process, f"has a lease on {lease.name!r} with fence {lease.fence}")

    def process_died(self, process: Process) -> None:
        """A process was killed."""
        self._note(process, "is dead")
        self._tell("died", process)

    def process_ended(self, process: Process) -> None:
        """A process has ended by itself."""
        self._note(process, "has ended")
        self._tell("ended", process)

    def refused_as_held(self, process: Process, name: str, since: int) -> None:
        """The answer to a process was that the lock is held; it has asked since that step."""
        self.counts["held"] += 1
        self._tell("held", process, lock=name)
        free_since = self._free_since.get(name, 0)
        if name not in self._locks and free_since < since:
            self.violate(f"{process.name} got the answer that {name!r} is held, but it was free all the time.")

    def body_started(
        self, process: Process, lease: Lease, what: str, key: object, attempt: int, most_attempts: int
    ) -> None:
        """A body has started. ``key`` is its slot or its one-off, which may run only once; ``None``: it has none."""
        assert self.world is not None
        self.counts["bodies"] += 1
        self._note(process, f"begins {what} ({key}), attempt {attempt}, fence {lease.fence}")
        if self.trace:
            token = self.trace.token(lease.token)
            self.trace.event("start", process, lock=lease.name, token=token, fence=lease.fence)
        if not Held(process, lease).is_trusted(self.world.now):
            self.violate(f"A body of {what} began in {process.name}, which does not trust its lease.")
        if key is None:
            return
        before = self._starts[what, key]
        if attempt in before:
            self.violate(f"{what} {key} was started twice as attempt {attempt}.")
        if attempt > most_attempts:
            self.violate(f"{what} {key} was started as attempt {attempt} of {most_attempts}.")
        before.append(attempt)

    def checked(self, process: Process, lease: Lease) -> None:
        """A body has called ``lease.check()`` just now, and nothing was raised."""
        if not Held(process, lease).is_trusted(self._now):
            self.violate(f"A check in {process.name} passed, although it does not trust its lease.")

    # --- what the database does

    def committed(self, process: Process | None, how: str) -> None:
        """A transaction was committed by this process: ``ok``; ``lost``: its sender gets an error all the same;
        ``late``: its sender got an error long ago."""
        self._tell("commit", process, outcome=how)
        self.counts["commits"] += 1
        state = self._read(self._last_write)
        for name, (fence, token) in state.gates.items():
            self._compare_gate(name, fence, token)
        for write in state.writes:
            self._judge_write(write)
        self._compare_locks(process, state.locks)

    def rolled_back(self, process: Process, why: str) -> None:
        """A transaction was rolled back: ``asked``, or ``cut`` because the connection was lost."""
        self._tell("rollback", process, why=why)

    def began(self, process: Process) -> None:
        """A transaction has begun."""
        self._tell("begin", process)

    def looked(self, process: Process) -> None:
        """A process has read the locks' rows."""
        self._looks[process.name].append(self._now)

    def block_ended(self, process: Process, lease: Lease) -> None:
        """A fenced block has ended, and its lock is the only one: nobody else kept the heartbeats out."""
        assert self.world is not None
        can_beat = lease.grant.request.heartbeat_interval and self.world.profile == ONE_HOST
        if can_beat and self._is_calm and not Held(process, lease).is_trusted(self.world.now):
            self.violate(f"{process.name} is undisturbed, but does not trust its lease after a fenced block.")

    def wrote(self, process: Process, lease: Lease) -> None:
        """A body has written inside its fenced block."""
        self._tell("write", process, lock=lease.name, fence=lease.fence)

    def fault_happened(self, process: Process, kind: str, seconds: float) -> None:
        """Something went wrong."""
        self._tell("fault", process, kind=kind, seconds=seconds)

    def _compare_gate(self, name: str, fence: int, token: str | None) -> None:
        known, former = self._fences.get(name, 0), self._tokens.get(name)
        if fence < known:
            self.violate(f"The fence of {name!r} went back from {known} to {fence}.")
        if token is not None and token != former and name in self._fences and fence <= known:
            self.violate(f"The fence {fence} of {name!r} was given out twice.")
        self._fences[name], self._tokens[name] = fence, token

    def _judge_write(self, write: Write) -> None:
        self.counts["writes"] += 1
        self._last_write = write.id
        if write.fence < self._fences.get(write.lock, 0) and self._tokens.get(write.lock) is not None:
            newest = self._fences[write.lock]
            self.violate(f"A write with fence {write.fence} of {write.lock!r} was committed after fence {newest}.")

    def _compare_locks(self, process: Process | None, locks: dict[str, str]) -> None:
        for name, token in self._locks.items():
            if locks.get(name) != token:
                self._judge_loss(name, token, process)
        for name in self._locks.keys() - locks.keys():
            self._free_since[name] = self._steps
        self._locks = dict(locks)

    def _judge_loss(self, name: str, token: str, process: Process | None) -> None:
        """The row of this token is gone."""
        held = self._owners.get(token)
        if held is None or held.process is process or held.may_be_released:
            return
        self.counts["takeovers and clears"] += 1
        interval = held.lease.grant.request.heartbeat_interval
        if self.may_overlap or interval is None:
            return
        by = process.name if process else "somebody"
        owner = held.process
        if self._is_calm and not (owner.is_dead or owner.is_ended):
            self.violate(f"{owner.name} sends heartbeats and is undisturbed, but {by} took {name!r} from it.")
        if process and not self._has_watched(process, interval.total_seconds()):
            self.violate(f"{by} took {name!r} from {owner.name}, which it has not watched without a gap.")

    def _has_watched(self, process: Process, interval: float) -> bool:
        """Whether the process looked again and again for two intervals, with no gap longer than one."""
        looks = self._looks[process.name]
        begun_at = last = looks[-1] if looks else self._now
        for look in reversed(looks):
            if begun_at - look > interval + _MOMENT:
                break
            begun_at = look
        return last - begun_at > 2 * interval - _MOMENT

    @property
    def _is_calm(self) -> bool:
        """Whether nothing has happened that keeps a holder from sending heartbeats."""
        return self.world is not None and all(fault.kind in CLOCKS for fault in self.world.fired)

    def _tell(self, event: str, process: Process | None, **facts: Any) -> None:
        if self.trace:
            self.trace.event(event, process, **facts)

    def _note(self, process: Process, text: str) -> None:
        if self.world:
            self.world.history.note(process.name, text)


def _hex(token: UUID | Any) -> str:
    return str(token.hex)
