"""What must hold, whatever was done to the servers. Pure functions over the history: they do not use a database.

What can be proven? A process notes `start` and `taken` when it knows that its grant is committed. A lease that says
after that instant that it can be trusted is trusted beside another if its fence is smaller, or if its token is the one
that was taken. `at` of a `trust` is the instant before the lease was asked, so a process that is stopped in between
raises no false alarm. When a body has ended, its lease is not asked any more.

A body that a caller has called asks whether its lease is lost: so its lease is judged. A body in a child process is
ended: so it is judged by whether it is alive, whatever its lease says.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.chaos.history import Event


@dataclass(frozen=True)
class Violation:
    """A broken promise: when, and on which lock, if that is known."""

    promise: str
    what: str
    at: float | None = None
    lock: str = ""


class Write(NamedTuple):
    """A row that was written inside `lease.atomic()`. The keys of one lock's rows are in the order of the commits,
    since only one transaction at a time has the gate."""

    pk: int
    lock: str
    fence: int


class Count(NamedTuple):
    """A line of a lock's file of counts: who appended it, and how many lines that process had seen before."""

    fence: int
    seen: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All there is to judge. The database's final state is in `gates`, the fence of each lock's gate; in `one_offs`,
    the status of each by its number; and in `left`, the number of rows of each kind that should not be there."""

    events: Sequence[Event] = ()
    writes: Sequence[Write] = ()
    counts: Mapping[str, Sequence[Count]] = field(default_factory=dict)
    gates: Mapping[str, int] = field(default_factory=dict)
    one_offs: Mapping[int, str] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)


def verdict(evidence: Evidence) -> list[Violation]:
    """All broken promises."""
    events = evidence.events
    return [
        *unjudged(events),
        *trusted_beside_another(events),
        *trusted_though_taken(events),
        *alive_beside_another(events),
        *in_process(events),
        *committed_behind_a_grant(events),
        *steps_back(evidence.writes),
        *granted_twice(events),
        *uncounted(events, evidence.gates),
        *lost_counts(events, evidence.counts),
        *lost_one_offs(events, evidence.one_offs),
        *repeated_one_offs(events),
        *repeated_slots(events),
        *rows_left(evidence.left),
    ]


def unjudged(events: Iterable[Event]) -> Iterator[Violation]:
    """Bodies run, in callers and in executors. Where nothing runs, nothing is broken either."""
    kinds = {event["event"] for event in events}
    for kind, whose in {"trust": "a caller", "alive": "an executor"}.items():
        if kind not in kinds:
            yield Violation("there is something to judge", f"no body of {whose} was ever seen")


# --- trust


def trusted_beside_another(events: Iterable[Event]) -> Iterator[Violation]:
    """No lease is trusted once another body has begun under a greater fence of the same lock (I1)."""
    events = list(events)
    progress = _Progress(events)
    beside = defaultdict(list)
    for event in events:
        if _is_trust(event) and (newer := progress.newest(event["lock"], event["at"])) > event["fence"]:
            beside[event["lock"], event["fence"]].append((newer, event))
    for (lock, fence), found in beside.items():
        samples = [sample for _, sample in found]
        yield Violation(
            "two holders that trust themselves never overlap (I1)",
            f"fence {fence} ({_whose(samples[0])}) trusted itself from {samples[0]['at']:.3f} to "
            f"{samples[-1]['at']:.3f}, {len(samples)} samples, after fence {found[0][0]} had been granted",
            samples[0]["at"],
            lock,
        )


def trusted_though_taken(events: Iterable[Event]) -> Iterator[Violation]:
    """No lease is trusted once a takeover or a clear has ended it, as the next caller is granted the lock (I1, I5)."""
    events = list(events)
    taken_at = {event["token"]: event["at"] for event in events if event["event"] == "taken"}
    trusted = [
        event for event in events if _is_trust(event) and event["at"] > taken_at.get(event["token"], event["at"])
    ]
    for token, samples in groupby(sorted(trusted, key=lambda event: event["token"]), lambda event: event["token"]):
        first, *_ = others = list(samples)
        yield Violation(
            "nobody takes the lock of a holder that trusts itself (I5)",
            f"fence {first['fence']} ({_whose(first)}) trusted itself {first['at'] - taken_at[token]:.3f} s after "
            f"its lock was taken, {len(others)} samples",
            first["at"],
            first["lock"],
        )


def alive_beside_another(events: Iterable[Event]) -> Iterator[Violation]:
    """The body in an executor is over when another body begins under a greater fence of the same lock, and when a
    takeover or a clear ends its lease (I6), whatever became of its supervisor."""
    events = list(events)
    progress = _Progress(events)
    taken_at = {event["token"]: event["at"] for event in events if event["event"] == "taken"}
    late = [
        event
        for event in events
        if event["event"] == "alive"
        and (
            progress.newest(event["lock"], event["at"]) > event["fence"]
            or taken_at.get(event["token"], event["at"]) < event["at"]
        )
    ]
    for _, samples in groupby(sorted(late, key=lambda event: event["token"]), lambda event: event["token"]):
        first, *_ = others = list(samples)
        yield Violation(
            "a supervised body is over before another begins (I6)",
            f"fence {first['fence']} ({_whose(first)}) was alive from {first['at']:.3f} to {others[-1]['at']:.3f}, "
            f"{len(others)} samples, although its lock was another's",
            first["at"],
            first["lock"],
        )


def in_process(events: Iterable[Event]) -> Iterator[Violation]:
    """The body of a command has an executor."""
    events = list(events)
    commands = {event["pid"]: event["name"] for event in events if event["event"] == "up"}
    for event in events:
        if event["event"] == "start" and commands.get(event.get("pid", 0), "calls") != "calls":
            what = f"{commands[event['pid']]} ({_whose(event)}) ran it itself"
            yield Violation("the body of a command has an executor", what, event["at"], event["lock"])


def _is_trust(event: Event) -> bool:
    return event["event"] == "trust" or (event["event"] == "start" and event["trusted"])


def _whose(event: Event) -> str:
    return f"server {event.get('server')}, pid {event.get('pid')}"


class _Progress:
    """How far the fence of each lock had come at an instant, as far as that is proven."""

    def __init__(self, events: Iterable[Event]) -> None:
        proofs = defaultdict(list)
        for event in events:
            if event["event"] in ("start", "taken") and event.get("fence"):
                proofs[event["lock"]].append((event["at"], event["fence"]))
        self._times = {lock: [at for at, _ in sorted(found)] for lock, found in proofs.items()}
        self._newest = {
            lock: list(accumulate((fence for _, fence in sorted(found)), max)) for lock, found in proofs.items()
        }

    def newest(self, lock: str, at: float) -> int:
        """The greatest fence that was granted before that instant, or 0 if there is none."""
        count = bisect_left(self._times.get(lock, []), at)
        return self._newest[lock][count - 1] if count else 0


# --- writes


def committed_behind_a_grant(events: Iterable[Event]) -> Iterator[Violation]:
    """Nothing from `lease.atomic()` is committed after a later grant (I4), or after the lock was cleared."""
    events = list(events)
    progress = _Progress(events)
    taken_at = {event["token"]: event["at"] for event in events if event["event"] == "taken"}
    for event in events:
        if event["event"] != "fenced":
            continue
        newer = progress.newest(event["lock"], event["at"])
        if newer > event["fence"] or taken_at.get(event["token"], event["at"]) < event["at"]:
            yield Violation(
                "nothing from lease.atomic() commits after a later grant (I4)",
                f"fence {event['fence']} ({_whose(event)}) committed after its lock was taken; the newest was {newer}",
                event["at"],
                event["lock"],
            )


def steps_back(writes: Iterable[Write]) -> Iterator[Violation]:
    """A fenced write never follows a newer one (I4)."""
    for lock, rows in _by_lock(writes).items():
        for one, two in pairwise(sorted(rows)):
            if two.fence < one.fence:
                yield Violation(
                    "a fenced write never follows a newer one (I4)",
                    f"row {two.pk} has fence {two.fence}, row {one.pk} before it fence {one.fence}",
                    lock=lock,
                )


def _by_lock(writes: Iterable[Write]) -> dict[str, list[Write]]:
    found = defaultdict(list)
    for write in writes:
        found[write.lock].append(write)
    return found


def granted_twice(events: Iterable[Event]) -> Iterator[Violation]:
    """Each grant has a fence of its own (I3)."""
    tokens: dict[tuple[str, int], str] = {}
    for event in events:
        if (
            event["event"] == "start"
            and tokens.setdefault((event["lock"], event["fence"]), event["token"]) != event["token"]
        ):
            yield Violation(
                "each grant has a fence of its own (I3)",
                f"fence {event['fence']} was granted twice",
                event["at"],
                event["lock"],
            )


def uncounted(events: Iterable[Event], gates: Mapping[str, int]) -> Iterator[Violation]:
    """The gate has counted every grant (I3)."""
    newest: dict[str, int] = {}
    for event in events:
        if event["event"] == "start":
            newest[event["lock"]] = max(event["fence"], newest.get(event["lock"], 0))
    for lock, fence in newest.items():
        if fence > gates.get(lock, 0):
            yield Violation(
                "the gate counts every grant (I3)",
                f"fence {fence} was granted, the gate says {gates.get(lock)}",
                lock=lock,
            )


def lost_counts(events: Iterable[Event], counts: Mapping[str, Sequence[Count]]) -> Iterator[Violation]:
    """No other body disturbs a step that only the lease protects, between two checks that pass (I1).

    This needs no clock, only the order of the lines. A process that was stopped between its first check and its line
    may append that line whenever it wakes. So a line in between counts only if its own checks passed too, or its fence
    is newer.
    """
    passed = {(event["lock"], event["fence"], event["number"]) for event in events if event["event"] == "counted"}
    for lock, lines in counts.items():
        for index, line in enumerate(lines):
            if (lock, *line) not in passed:
                continue
            for other in lines[line.seen : index]:
                if other.fence > line.fence or (other.fence != line.fence and (lock, *other) in passed):
                    yield Violation(
                        "between two checks that pass, no other body runs (I1)",
                        f"fence {other.fence} counted in the middle of fence {line.fence}, after line {line.seen}",
                        lock=lock,
                    )


# --- one-offs and slots


def lost_one_offs(events: Iterable[Event], statuses: Mapping[int, str]) -> Iterator[Violation]:
    """Each one-off that is known to be enqueued ran to its end, and is done."""
    ended = {event["number"] for event in events if event["event"] == "end" and "number" in event}
    for event in events:
        if event["event"] != "ordered":
            continue
        status = statuses.get(event["number"], "gone")
        if status != "done":
            yield Violation("no one-off is lost", f"one-off {event['number']} is {status}", event["at"])
        elif event["number"] not in ended:
            yield Violation("no one-off is lost", f"one-off {event['number']} is done, but never ran to its end")


def repeated_one_offs(events: Iterable[Event]) -> Iterator[Violation]:
    """A one-off that is known to be recorded as done is not begun again."""
    events = list(events)
    numbers = {event["token"]: event["number"] for event in events if event["event"] == "start" and "number" in event}
    done_at: dict[int, float] = {}
    for event in events:
        if _is_done(event) and event["token"] in numbers:
            number = numbers[event["token"]]
            if number in done_at:
                yield Violation("no one-off runs to its end twice", f"one-off {number} is done twice", event["at"])
            done_at.setdefault(number, event["at"])
    for event in events:
        if event["event"] == "start" and event["at"] > done_at.get(event.get("number", -1), event["at"]):
            late = event["at"] - done_at[event["number"]]
            yield Violation(
                "no one-off runs to its end twice",
                f"one-off {event['number']} was begun again {late:.3f} s after it was done",
                event["at"],
                event["lock"],
            )


def repeated_slots(events: Iterable[Event]) -> Iterator[Violation]:
    """A slot that is known to be recorded as run does not run again (I8)."""
    slots = {e["token"]: (e["name"], e["slot"]) for e in events if e["event"] == "start" and e.get("slot")}
    done: set[tuple[str, str | None]] = set()
    for event in events:
        if not _is_done(event) or event["token"] not in slots:
            continue
        slot = slots[event["token"]]
        if slot in done:
            yield Violation("a slot runs once (I8)", f"the slot {slot[1]} of {slot[0]} ran twice", event["at"])
        done.add(slot)


def _is_done(event: Event) -> bool:
    return event["event"] == "finished" and event["kept"] and event["status"] == "successful"


def rows_left(left: Mapping[str, int]) -> Iterator[Violation]:
    """When all processes have ended, and the locks of the dead are cleared, nothing is left."""
    for kind, count in left.items():
        if count:
            yield Violation("nothing is left in the end (I11, I15)", f"{count} {kind}")


# --- how much there was to judge


def takeover_delays(events: Iterable[Event]) -> list[float]:
    """By how many seconds each takeover was later than the end of the lease, shortest first.

    The delay begins at the last known deadline of the victim's lease, which is a lease after the last heartbeat that is
    known to have succeeded. It ends at the first step of the next body under that lock.
    """
    events = list(events)
    deadlines = {e["token"]: until for e in events if e["event"] == "trust" and (until := e.get("until"))}
    starts = defaultdict(list)
    for event in events:
        if event["event"] == "start":
            starts[event["lock"]].append(event["at"])
    delays = []
    for event in events:
        if event["event"] == "taken" and event["token"] in deadlines:
            index = bisect_left(starts[event["lock"]], event["at"])
            if index < len(starts[event["lock"]]):
                delays.append(starts[event["lock"]][index] - deadlines[event["token"]])
    return sorted(delays)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the sorted values that `percent` percent of them do not exceed."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]
