"""Translates traces of the real code into events of the model, so that the model can be asked whether it can follow.

``tests/simulation/trace.py`` describes the format of a trace. A transaction is one event, at its COMMIT:
a grant, a takeover, a heartbeat, a fenced block, a release or a clear. It also knows each look at the lock's row, the
start of each body, and each death. All else in a trace (failed statements, looks at the gate, deadlines) is left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tests.model.checker import build, limited

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Line = dict[str, Any]

#: The numbers of the events in ``protocol.pml``. Nothing in the model has the number of what is impossible.
EVENTS = {
    "looks_free": 1,
    "looks_mine": 2,
    "looks_live": 3,
    "looks_suspected": 4,
    "granted": 5,
    "taken_over": 6,
    "renewed": 7,
    "fenced": 8,
    "released": 9,
    "cleared": 10,
    "cleared_by_force": 11,
    "started": 13,
    "died": 14,
    "impossible": 99,
}
#: What a transaction was, by the statement that changed a row. The first one that is found decides.
KINDS = {"insert": "granted", "take_over": "taken_over", "clear": "cleared", "release": "released"}
#: The most processes that the model has in a trace.
MOST_PROCESSES = 6


@dataclass
class Script:
    """The events of one lock in one schedule."""

    title: str
    lock: str
    interval: float
    is_one_host: bool
    events: list[tuple[float, str, int, int, bool]] = field(default_factory=list)
    #: The processes, in the order in which the lock meets them, and who took which token.
    processes: dict[str, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    fence: int = 0

    def add(self, line: Line, event: str, owner: int = -1, *, beats: bool = True) -> None:
        """Add an event of the line's process."""
        number = self.processes.setdefault(line["actor"], len(self.processes))
        self.events.append((line["t"], event, number, owner, beats))

    @property
    def text(self) -> str:
        """The lines that ``trace.h`` reads: time is rounded, so each event may be an interval early or late."""
        lines = []
        for at, event, process, owner, beats in self.events:
            tick = int(at / self.interval)
            facts = (EVENTS[event], process, max(0, tick - 1), tick + 1, owner, int(not self.is_one_host), int(beats))
            lines.append(" ".join(map(str, facts)))
        return "\n".join(lines) + "\n"


def scripts(lines: Iterable[Line]) -> Iterator[Script]:
    """One script for each lock of each schedule of a trace."""
    for schedule in schedules(lines):
        for lock in schedule[0]["locks"]:
            script = script_of(schedule, lock)
            if script.events:
                yield script


def schedules(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines, schedule by schedule."""
    schedule: list[Line] = []
    for line in lines:
        if line["event"] == "schedule" and schedule:
            yield schedule
            schedule = []
        schedule.append(line)
    if schedule:
        yield schedule


def read(text: str) -> Iterator[Script]:
    """The scripts of a file of JSON lines."""
    return scripts(json.loads(line) for line in text.splitlines())


def script_of(schedule: list[Line], lock: str) -> Script:
    """What the schedule did with this lock."""
    first = schedule[0]
    title = f"{first['scenario']} on {first['profile']}, seed {first['seed']}, lock {lock!r}"
    script = Script(title, lock, first["interval"], first["profile"] == "one_host")
    open_work: dict[tuple[str, str], list[Line]] = defaultdict(list)
    #: What each process has lost the connection of, and when it will be committed.
    late_work: dict[str, list[tuple[float, list[Line]]]] = defaultdict(list)
    for line in schedule:
        thread, event = (line["actor"], line["thread"]), line["event"]
        if event == "begin":
            open_work[thread] = []
        elif event == "rollback":
            open_work.pop(thread, None)
        elif event == "fault" and line["kind"] == "late" and open_work[thread]:
            late_work[line["actor"]].append((line["t"] + line["seconds"], open_work.pop(thread)))
        elif event == "commit":
            work = next_of(late_work[line["actor"]]) if line["outcome"] == "late" else open_work.pop(thread, [])
            commit(script, line, [each for each in work if each.get("lock") == lock])
        elif line.get("lock") == lock or event == "died":
            note(script, line, open_work[thread])
    return script


def next_of(late: list[tuple[float, list[Line]]]) -> list[Line]:
    """The lost work that is committed next, if any."""
    late.sort(key=itemgetter(0))
    return late.pop(0)[1] if late else []


def note(script: Script, line: Line, work: list[Line]) -> None:
    """Add what is an event by itself, or keep the statement until its transaction is committed."""
    match line["event"]:
        case "look":
            look(script, line)
        case "start":
            script.add(line, "started")
        case "died":
            if line["actor"] in script.processes:
                script.add(line, "died")
        case _:
            work.append(line)


def look(script: Script, line: Line) -> None:
    """A look at the lock's row: is there none, is it that of the process itself, live or suspected?"""
    token = line["token"]
    owner = script.owners.get(token, -1)
    if not token:
        script.add(line, "looks_free")
    elif owner == script.processes.get(line["actor"]):
        script.add(line, "looks_mine", owner)
    else:
        script.add(line, "looks_suspected" if line["suspected"] else "looks_live", owner, beats=line["beats"])


def commit(script: Script, line: Line, work: list[Line]) -> None:
    """A transaction is committed."""
    changes = {each["event"]: each for each in work if each.get("rows", 1)}
    for statement, kind in KINDS.items():
        if statement in changes:
            change = changes[statement]
            is_grant = kind in ("granted", "taken_over")
            is_forced = bool(change.get("force"))
            script.add(
                line, grant(script, line, change, changes) if is_grant else "cleared_by_force" if is_forced else kind
            )
            return
    if "hold" in changes:
        script.add(line, "fenced")
    elif "renew" in changes:
        script.add(line, "renewed")


def grant(script: Script, line: Line, change: Line, changes: dict[str, Line]) -> str:
    """The event of a grant: impossible if the gate was not passed, or if the fence did not grow."""
    number = script.processes.setdefault(line["actor"], len(script.processes))
    script.owners[change["token"]] = number
    fence, script_fence = changes.get("gate", {}).get("fence", 0), script.fence
    script.fence = fence
    is_takeover = change["event"] == "take_over"
    return "impossible" if fence <= script_fence else "taken_over" if is_takeover else "granted"


#: The form of the model that follows traces, with the package's default of six heartbeats in a lease.
WORDS = f"TRACE COARSE ANY_DATABASE_CLOCK GAPS LOSSES=250 N={MOST_PROCESSES} LEASE=6 BEATS=2"


#: What the checker says if it gave up, so that "no" and "yes" are not known.
UNDECIDED = ("too small", "out of memory", "MEMLIM bound")


class Undecided(Exception):
    """The model was not asked to the end: it takes too much time or memory, or the script is too long for it."""


class Follower:
    """The model, compiled once, to be asked about any number of traces."""

    def __init__(self, folder: Path, seconds: int = 30) -> None:
        self._folder = folder
        self._seconds = seconds
        self._pan = build(WORDS, folder, "-DSAFETY", "-DMEMLIM=3000")

    def follows(self, script: Script) -> bool:
        """Whether the model can do all that the script says, in its order. Raises ``Undecided`` if it did not end."""
        path = self._folder / "script"
        path.write_text(script.text)
        report = limited([str(self._pan), "-m200000", "-w20"], self._folder, self._seconds, TRACE=str(path))
        if f"of {len(script.events)} events" not in report or any(word in report for word in UNDECIDED):
            raise Undecided(f"{script.title}: {report}")
        return "there_is_more" in report
