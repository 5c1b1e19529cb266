"""What the chaos prints in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

from tests.chaos.judge import percentile, takeover_delays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.chaos.history import Event
    from tests.chaos.judge import Evidence, Violation

# How much of the history is shown around a violation, in seconds.
BEFORE, AFTER = 3.0, 1.0
# Too frequent to be shown one by one.
FREQUENT = ("trust", "alive", "fenced", "counted")


def summary(evidence: Evidence, violations: Sequence[Violation], possible_pairs: int) -> Iterator[str]:
    """The summary, line by line."""
    events = evidence.events
    kinds = Counter(event["event"] for event in events)
    yield from section("Acquisitions", Counter(event["lock"] for event in events if event["event"] == "start"))
    yield from section("Runs by status", runs_by_status(events))
    yield from section("Runs of executors", runs_of_executors(events))
    yield from section(
        "Judged",
        {
            "samples of trust": kinds["trust"],
            "samples of supervised bodies": kinds["alive"],
            "fenced commits": kinds["fenced"],
            "fenced rows": len(evidence.writes),
            "counts between checks": kinds["counted"],
            "losses noticed": kinds["lost"],
            "takeovers and clears": kinds["taken"],
            "one-offs": kinds["ordered"],
        },
    )
    yield from section("Faults", Counter(event["name"] for event in events if event["event"] == "fault"))
    yield from matrix(events, possible_pairs)
    yield from section("Rows left", evidence.left)
    delays = takeover_delays(events)
    if delays:
        shown = ", ".join(
            f"{name} {percentile(delays, at):.2f}" for name, at in [("p50", 50), ("p99", 99), ("max", 100)]
        )
        yield f"Takeovers beyond the lease, in seconds ({len(delays)}): {shown}"
    yield from section("Violations", Counter(violation.promise for violation in violations) or {"none": 0})


def section(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    total = f" ({sum(counts.values())})" if len(counts) > 1 else ""
    yield f"{title}{total}"
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:8}  {name}"


def runs_by_status(events: Iterable[Event]) -> Counter[str]:
    """How the bodies that began have ended, if their process lived to note it."""
    ended = {event["token"]: event["status"] for event in events if event["event"] == "finished"}
    return Counter(ended.get(event["token"], "unknown") for event in events if event["event"] == "start")


def runs_of_executors(events: Iterable[Event]) -> dict[str, int]:
    events = list(events)
    servers = {event["pid"] for event in events if event["event"] == "up"}
    runs = Counter(event["pid"] for event in events if event["event"] == "start" and event["pid"] not in servers)
    return {"the first of an executor": len(runs), "later ones": runs.total() - len(runs)}


def overlaps(events: Iterable[Event]) -> Counter[tuple[str, str]]:
    """How often two kinds of fault really overlapped."""
    rounds = defaultdict(list)
    for event in events:
        if event["event"] == "fault":
            rounds[event["number"]].append(event)
    return Counter(
        (min(one["name"], two["name"]), max(one["name"], two["name"]))
        for faults in rounds.values()
        for one, two in combinations(faults, 2)
        if one["at"] < two["to"] and two["at"] < one["to"]
    )


def matrix(events: Sequence[Event], possible: int) -> Iterator[str]:
    """How often each pair overlapped."""
    met = overlaps(events)
    names = sorted({name for pair in met for name in pair})
    yield f"Pairs of faults that overlapped ({sum(met.values())}; {len(met)} of {possible} possible)"
    for row, name in enumerate(names):
        cells = (met.get((other, name), 0) for other in names[:row])
        yield f"{row + 1:8}  {name:30}" + "".join(f"{count or '.':>4}" for count in cells)
    yield " " * 40 + "".join(f"{number + 1:4}" for number in range(len(names) - 1))


def excerpt(evidence: Evidence, violation: Violation) -> Iterator[str]:
    """What happened around a violation: to its lock, and what the nemesis did. Times are relative to the violation."""
    yield f"BROKEN: {violation.promise}. Lock {violation.lock or '-'}: {violation.what}."
    if violation.at is None:
        return
    since, until = violation.at - BEFORE, violation.at + AFTER
    near = [
        event
        for event in evidence.events
        if event["at"] <= until and event.get("to", event["at"]) >= since
        if event["event"] == "fault" or event.get("lock") == violation.lock
    ]
    for event in condensed(near):
        yield described(event, violation.at)


def condensed(events: Iterable[Event]) -> list[Event]:
    """Many similar events become one, from the first to the last."""
    found: list[Event] = []
    many: dict[tuple[str, str], Event] = {}
    for event in events:
        key = (event["event"], event.get("token", ""))
        if event["event"] not in FREQUENT:
            # Events after its holder has lost its trust, or after another has begun, are grouped anew.
            many.clear()
            found.append(event)
        elif key in many:
            many[key] |= {"to": event["at"], "until": event.get("until"), "number": many[key]["number"] + 1}
        else:
            many[key] = {**event, "number": 1}
            found.append(many[key])
    return found


def described(event: Event, origin: float) -> str:
    instants = {"to": event.get("to"), "until": event.get("until")}
    parts = [f"{event['at'] - origin:+8.3f}", f"server {event.get('server', '-')}", event["event"]]
    parts += [f"{key} {event.get(key)}" for key in ("name", "fence", "status", "number") if key in event]
    parts += [f"{key} {instant - origin:+.3f}" for key, instant in instants.items() if instant]
    return "  ".join(parts)
