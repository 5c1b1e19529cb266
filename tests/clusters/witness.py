"""What the witness counts: pure functions over the events that the application's processes noted in one file.

All instants are from the clock that the processes of this machine share. Unlike in `tests/chaos`, fences cannot show
which grant came later: after a failover they may be repeated, which is one of the things to count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from tests.clusters import EVERY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.chaos.history import Event

# The possible exit statuses of a crontab line: it ran or was skipped, the database is unreachable, the lease was lost.
USUAL_STATUSES = (0, 69, 75)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the witness saw."""

    grants: int
    at_once: int
    """The most holders of one lock that trusted themselves at the same instant."""
    overlap: float
    """The longest time for which more than one of them did, in seconds."""
    fences_repeated: int
    """Grants with the fence of an earlier grant of that lock."""
    fences_back: int
    """Grants by a survivor with a fence below that of an earlier grant of that lock by any server."""
    fenced_behind: int
    """Transactions of `lease.atomic()` that a survivor committed after the lock's next grant."""
    fenced_apart: int
    """The same, on a server that the cluster does not go on with."""
    one_offs: int
    one_offs_lost: int
    """Acknowledged, but never run to an end, and not waiting either."""
    one_offs_left: int
    """Waiting or in progress at the end, because a busy machine did not get through them."""
    one_offs_twice: int
    """Recorded as done more than once."""
    slots: int
    slots_missing: int
    """Slots that no server began to run."""
    slots_twice: int
    """Slots that were recorded more than once as run successfully."""
    goes_on: float
    """Seconds from when the cluster could be written to until there was a write under each of the locks."""
    lines: Mapping[int, int] = field(default_factory=dict)
    """How often each exit status of a crontab line was seen."""
    lines_odd: int
    """Lines with an exit status that a crontab line should not have."""
    last_line: int
    """The exit status of the last line."""
    longest_line: float
    died: int
    """Processes that exited without a signal."""
    stuck: int
    """Processes that did not exit after a signal."""
    slowest_end: float
    """The longest time that a process took to exit after a signal, in seconds."""


def figures(events: Sequence[Event]) -> Figures:
    starts = [event for event in events if event["event"] == "start"]
    survivors = {event["node"] for event in events if event["event"] == "survivor"}
    spans = list(spans_of_trust(events))
    numbers = {event["token"]: event["number"] for event in starts if "number" in event}
    slots = {event["token"]: event["slot"] or "" for event in starts if "slot" in event}
    ordered = {event["number"] for event in events if event["event"] == "ordered"}
    unended = ordered - {event["number"] for event in ends(events) if "number" in event}
    left = sum(event["number"] for event in events if event["event"] == "left")
    behind = list(committed_behind(events, survivors))
    lines = [event for event in events if event["event"] == "line"]
    return Figures(
        grants=len(starts),
        at_once=max((at_once(of_lock) for of_lock in by_lock(spans)), default=0),
        overlap=max((longest_overlap(of_lock) for of_lock in by_lock(spans)), default=0.0),
        fences_repeated=sum(1 for _ in repeated_fences(starts)),
        fences_back=sum(1 for event in fences_going_back(starts) if survives(event, survivors)),
        fenced_behind=sum(survives(event, survivors) for event in behind),
        fenced_apart=sum(not survives(event, survivors) for event in behind),
        one_offs=len(ordered),
        one_offs_lost=max(0, len(unended) - left),
        one_offs_left=left,
        one_offs_twice=twice(done(events, numbers)),
        slots=len(set(slots.values())),
        slots_missing=len(missing_slots(events)),
        slots_twice=twice(done(events, slots)),
        goes_on=goes_on(events, survivors),
        lines=dict(sorted(Counter(event["number"] for event in lines).items())),
        lines_odd=sum(event["number"] not in USUAL_STATUSES for event in lines),
        last_line=lines[-1]["number"] if lines else 0,
        longest_line=max((event["to"] - event["at"] for event in lines), default=0.0),
        died=sum(event["event"] == "died" for event in events),
        stuck=sum(event["event"] == "stuck" for event in events),
        slowest_end=max((event["to"] - event["at"] for event in events if event["event"] == "ended"), default=0.0),
    )


def survives(event: Event, survivors: set[int]) -> bool:
    """Whether it happened on a server that the cluster goes on with."""
    return not survivors or event["node"] in survivors


# --- trust


class Span(NamedTuple):
    """From `since` to `until`, a lease said that it can be trusted, whenever it was asked."""

    lock: str
    token: str
    since: float
    until: float


def spans_of_trust(events: Iterable[Event]) -> Iterator[Span]:
    """A lease that was not asked again before its deadline may have been unproven meanwhile, so another span begins."""
    opened: dict[str, Span] = {}
    deadlines: dict[str, float] = {}
    for event in events:
        if event["event"] == "trust" or (event["event"] == "start" and event["trusted"]):
            token, at = event["token"], event["at"]
            if token in opened and at >= deadlines[token]:
                yield opened.pop(token)
            since = opened[token].since if token in opened else at
            opened[token] = Span(event["lock"], token, since, at)
            deadlines[token] = event.get("until") or float("inf")
        elif event["event"] == "lost" and event["token"] in opened:
            yield opened.pop(event["token"])
    yield from opened.values()


def by_lock(spans: Iterable[Span]) -> list[list[Span]]:
    found = defaultdict(list)
    for span in spans:
        found[span.lock].append(span)
    return list(found.values())


def at_once(spans: Iterable[Span]) -> int:
    return max((count for _, count in counted(spans)), default=0)


def longest_overlap(spans: Iterable[Span]) -> float:
    longest, since = 0.0, None
    for at, count in counted(spans):
        if count > 1 and since is None:
            since = at
        elif count < 2 and since is not None:
            longest, since = max(longest, at - since), None
    return longest


def counted(spans: Iterable[Span]) -> Iterator[tuple[float, int]]:
    """How many spans there are from each instant on. Two spans do not overlap if one begins when the other ends."""
    steps = sorted(step for span in spans for step in ((span.since, 1), (span.until, -1)) if span.until > span.since)
    count = 0
    for at, step in steps:
        count += step
        yield at, count


# --- fences


def repeated_fences(starts: Iterable[Event]) -> Iterator[Event]:
    seen = set()
    for event in starts:
        key = (event["lock"], event["fence"])
        if key in seen:
            yield event
        seen.add(key)


def fences_going_back(starts: Iterable[Event]) -> Iterator[Event]:
    highest: dict[str, int] = {}
    for event in starts:
        if event["fence"] <= highest.get(event["lock"], -1):
            yield event
        highest[event["lock"]] = max(event["fence"], highest.get(event["lock"], -1))


def committed_behind(events: Iterable[Event], survivors: set[int]) -> Iterator[Event]:
    """Writes that were still open when another body had begun under that lock, and were committed all the same."""
    current: dict[str, dict[str, Event]] = defaultdict(dict)
    superseded: set[str] = set()
    for event in events:
        if event["event"] == "start":
            former = current[event["lock"]]
            outlived = [token for token, other in former.items() if supersedes(event, other, survivors)]
            superseded.update(outlived)
            current[event["lock"]] = {token: former[token] for token in former if token not in outlived}
            current[event["lock"]][event["token"]] = event
        elif event["event"] == "fenced" and event["token"] in superseded:
            yield event


def supersedes(grant: Event, former: Event, survivors: set[int]) -> bool:
    """A grant by a server that the cluster does not go on with does not supersede a survivor's grant."""
    return survives(grant, survivors) or not survives(former, survivors)


# --- one-offs and slots


def ends(events: Iterable[Event]) -> Iterator[Event]:
    return (event for event in events if event["event"] == "end")


def done(events: Iterable[Event], of_token: Mapping[str, object]) -> list[object]:
    """What is known to be recorded as done, once for each record."""
    return [
        of_token[event["token"]]
        for event in events
        if event["event"] == "finished" and event["kept"] and event["status"] == "successful"
        if event["token"] in of_token
    ]


def twice(things: Iterable[object]) -> int:
    return sum(count > 1 for count in Counter(things).values())


def missing_slots(events: Sequence[Event]) -> set[datetime]:
    """Missing between the first and the last. A slot whose body failed has run too: the connection may have died."""
    run = {
        datetime.fromisoformat(slot) for event in events if event["event"] == "start" and (slot := event.get("slot"))
    }
    if not run:
        return set()
    count = round((max(run) - min(run)) / timedelta(seconds=EVERY))
    return {min(run) + timedelta(seconds=EVERY) * step for step in range(count + 1)} - run


# --- how the work goes on


def goes_on(events: Sequence[Event], survivors: set[int]) -> float:
    """0 if the work was never interrupted; infinite if it does not go on under one of the locks."""
    whole_at = max((event["at"] for event in events if event["event"] == "whole"), default=None)
    if whole_at is None:
        return 0.0
    written = [event for event in events if event["event"] == "fenced"]
    first: dict[str, float] = {event["lock"]: float("inf") for event in written}
    for event in written:
        if event["at"] > whole_at and survives(event, survivors):
            first[event["lock"]] = min(first[event["lock"]], event["at"] - whole_at)
    return max(first.values(), default=0.0)
