"""What notes prove: pauses, changed schedules, slots that were given up, and the times at which servers did not ask."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django_singlejob.exceptions import InvalidSchedule
from django_singlejob.jobs.schedule import Schedule, parse
from django_singlejob.models.jobs import MILLISECOND
from django_singlejob.models.notes import NoteKind, notes as notes_of_all

if TYPE_CHECKING:
    from django_singlejob.models import JobNote


class Gap(NamedTuple):
    """A server did not ask between these instants, as far as its marks tell."""

    hostname: str
    queues: tuple[str, ...]
    since: datetime
    until: datetime


class Pause(NamedTuple):
    """A job was paused: from when, until when (``None``: until it is resumed), and the note of that. ``last``: until
    when it was paused without a break, if it was paused anew."""

    begin: datetime
    end: datetime | None
    note: "JobNote"
    last: datetime | None


class Change(NamedTuple):
    """A job got another schedule: the texts before and after, and the schedules; ``None`` if there was none, or if this
    release cannot parse it."""

    at: datetime
    texts: tuple[str, str]
    before: Schedule | None
    after: Schedule | None
    note: "JobNote"


def gap_of(note: "JobNote") -> Gap:
    """What the note of a server that is back says."""
    told = _told(note)
    queues = told.get("queues")
    names = tuple(map(str, queues)) if isinstance(queues, list) else ()
    return Gap(str(told.get("hostname", "")), names, note.first_slot or note.at, note.last_slot or note.at)


class Edit(NamedTuple):
    """An operator gave a job another schedule, or reset it, while the code had this one: texts and time zones."""

    own: tuple[str, str]
    code: tuple[str, str]
    note: "JobNote"


def last_edits(names: Collection[str]) -> dict[str, Edit]:
    """The last edit of each job's schedule, by the job's name."""
    rows = notes_of_all().filter(kind=NoteKind.SCHEDULE_EDITED, job_name__in=names).order_by("at", "pk")
    return {note.job_name: Edit(_pair(note, "after"), _pair(note, "code"), note) for note in rows} if names else {}


def _pair(note: "JobNote", name: str) -> tuple[str, str]:
    told = _told(note).get(name)
    return (str(told[0]), str(told[1])) if isinstance(told, list) and len(told) == 2 else ("", "")


def pauses(notes: "Sequence[JobNote]") -> list[Pause]:
    """The pauses of a job, by its notes, the oldest first."""
    found = list[Pause]()
    for begin, end, note in reversed([*_pauses(notes)]):
        is_continued = found and found[-1].begin == end
        found.append(Pause(begin, end, note, found[-1].last if is_continued else end))
    return found[::-1]


def _pauses(notes: "Sequence[JobNote]") -> "Iterator[tuple[datetime, datetime | None, JobNote]]":
    begun: JobNote | None = None
    for note in notes:
        if note.kind in (NoteKind.PAUSED, NoteKind.RESUMED):
            if begun:
                yield begun.at, min(note.at, begun.until or note.at), begun
            begun = note if note.kind == NoteKind.PAUSED else None
    if begun:
        yield begun.at, begun.until, begun


def changes(notes: "Sequence[JobNote]") -> Iterator[Change]:
    """The changes of a job's schedule, by its notes."""
    for note in notes:
        if note.kind == NoteKind.SCHEDULE_CHANGED:
            before, after = (_told(note).get(name) for name in ("before", "after"))
            yield Change(_since(note), (_text(before), _text(after)), _parsed(before), _parsed(after), note)


def _since(note: "JobNote") -> datetime:
    """The note is written a moment later."""
    with suppress(ValueError):
        since = datetime.fromisoformat(str(_told(note).get("since")))
        return min(since, note.at) if since.tzinfo else note.at
    return note.at


def misses(notes: "Sequence[JobNote]", slot: datetime) -> "JobNote | None":
    """The note that this slot was given up, if there is one."""
    found = (note for note in notes if note.kind == NoteKind.MISSED and note.first_slot and note.last_slot)
    return next((note for note in found if _covers(note, slot)), None)


def _covers(note: "JobNote", slot: datetime) -> bool:
    first, last = note.first_slot, note.last_slot
    return bool(first and last and first - MILLISECOND <= slot <= last + MILLISECOND)


def _told(note: "JobNote") -> dict[str, Any]:
    """Its details. The row may have been edited by hand."""
    try:
        found = json.loads(note.details)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(pair: Any) -> str:
    return " ".join(map(str, pair)).strip() if isinstance(pair, list) else ""


def _parsed(pair: Any) -> Schedule | None:
    try:
        return parse(str(pair[0]), str(pair[1])) if isinstance(pair, list) and len(pair) == 2 and pair[0] else None
    except InvalidSchedule:
        return None
