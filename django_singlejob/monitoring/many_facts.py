"""What is known of many jobs, read by a fixed number of statements. It only reads.

Each of these facts is one that ``JobFacts`` would read by itself. If there are too many rows, it does.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from django.db.models import Case, Count, OuterRef, Subquery, When
from django.db.models.functions import Coalesce

from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.health import Health
from django_singlejob.monitoring.job_facts import MOST, MOST_COUNTED, JobFacts, Shared

if TYPE_CHECKING:
    from django_singlejob.models import JobNote
    from django_singlejob.models.jobs import JobStatusQuerySet

# So many of all jobs together.
MOST_NOTES = 20 * MOST

Row = TypeVar("Row")


def facts_of(healths: Collection[Health], now: datetime, since: datetime) -> dict[str, JobFacts]:
    """What is known of these jobs, by name, to tell of their slots from ``since`` on. ``healths``: by a survey of the
    rows ``telling_first_and_newest``. Takes one statement, and a few more if somebody asks why."""
    shared = Shared(since=since)
    found = {each.name: JobFacts(each.name, now, each.status, shared=shared) for each in healths}
    # What is about a server has no job's name.
    noted = by_name(_notes_of([*found, ""]), lambda note: note.job_name)
    if noted is not None:
        shared.comebacks_read = [note for note in noted.get("", []) if note.kind == NoteKind.SERVER_BACK]
    for name, facts in found.items():
        if facts.status:  # if it has no gate, it asks by itself
            told = cast("_Telling", facts.status)
            facts.first_slot, facts.first_own, facts.newest_lock = told.first_slot, told.first_own, told.newest_lock
            facts.has_all_runs = told.ended >= facts.status.run_count
        if noted is not None:
            facts.notes = noted.get(name, [])[-MOST:]
    shared.lock_names = {name for facts in found.values() if facts.status for name in facts.lock_names}
    return found


def by_name(rows: Iterable[Row] | None, name_of: Callable[[Row], str]) -> dict[str, list[Row]] | None:
    """The rows of each job, in their order; ``None`` if there were too many."""
    if rows is None:
        return None
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[name_of(row)].append(row)
    return found


class _Telling(Protocol):
    """A gate that tells what the oldest and the newest runs of its job say."""

    first_slot: datetime | None
    first_own: datetime | None
    newest_lock: str | None
    ended: int


def telling_first_and_newest(gates: "JobStatusQuerySet") -> "JobStatusQuerySet":
    """With what the oldest and the newest runs of each job say, and how many have ended."""
    of_job = runs().filter(job_name=OuterRef("name"))
    oldest = of_job.order_by("started_at")
    first = oldest.filter(slot__isnull=False).exclude(trigger="manual").values("slot")
    own = oldest.exclude(trigger="manual", slot__isnull=False).values(at=Coalesce("slot", "started_at"))
    newest = of_job.exclude(lock="").order_by("-started_at").values("lock")
    ended = of_job.exclude(status="running").order_by().values("job_name").annotate(number=Count("pk")).values("number")
    # Too many are not counted.
    counted = Case(When(run_count__lte=MOST_COUNTED, then=Coalesce(Subquery(ended), 0)), default=-1)
    oldest_and_newest = {"first_slot": first, "first_own": own, "newest_lock": newest}
    return gates.annotate(**{name: Subquery(rows[:1]) for name, rows in oldest_and_newest.items()}, ended=counted)


def _notes_of(names: Sequence[str]) -> "list[JobNote] | None":
    """The notes of these jobs, the oldest first; ``None``: there are too many."""
    newest = [*notes().filter(job_name__in=names).order_by("-at", "-pk")[: MOST_NOTES + 1]]
    return newest[::-1] if len(newest) <= MOST_NOTES else None
