"""What became of each slot that a job should have had: the slots of its schedules, joined with its runs. It only reads.

It is a cross-check: the same schedule functions decide when the job is due. What became of a slot is found in a fixed
number of queries. Only why it was missed, or who paused it, is asked of ``monitoring.why``, for some of the slots.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from heapq import nsmallest
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import models
from django.db.models import Q, QuerySet, Value
from django.utils.translation import gettext_lazy as _

from django_singlejob.conf import ZERO, options
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import EPOCH, MINUTE, Every, Schedule, next_slot, slots_between
from django_singlejob.models.jobs import MILLISECOND, gates
from django_singlejob.models.notes import NoteKind, notes
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.causes import Answer, Cause
from django_singlejob.monitoring.evidence import Change, Pause, changes, pauses
from django_singlejob.monitoring.health import OVERDUE, Health
from django_singlejob.monitoring.job_facts import JobFacts
from django_singlejob.monitoring.many_facts import by_name, facts_of
from django_singlejob.monitoring.why_then import RUN_WITHIN, answer_of
from django_singlejob.process.clock import DBNow
from django_singlejob.to_come import JUST

if TYPE_CHECKING:
    from django_singlejob.models import JobRun
    from django_singlejob.models.jobs import JobStatusQuerySet
    from django_singlejob.models.runs import JobRunQuerySet

# Of each job: how many slots and runs are looked at, the newest; for how many reasons it asks; how many stretches of
# slots it lists.
MOST_SLOTS, MOST_ANSWERS, MOST_STRETCHES = 50_000, 40, 50
# A cron daemon may fire early.
EARLY = timedelta(minutes=5)


class SlotOutcome(models.TextChoices):
    """What became of a slot; the worst first."""

    TWICE = "twice", _("twice")
    MISSED = "missed", _("missed")
    CUT_OFF = "cut_off", _("cut off")
    FAILED = "failed", _("failed")
    STOPPED = "stopped", _("stopped")
    SCHEDULE_NOT_KNOWN = "schedule_not_known", _("schedule not known")
    NO_RECORD = "no_record", _("no record")
    PAUSED = "paused", _("paused")
    TOGETHER = "taken_together", _("taken together")
    DUE = "due", _("due")
    RUNNING = "running", _("running")
    SKIPPED = "skipped", _("skipped")
    RAN = "ran", _("ran")


NOT_RUN = {SlotOutcome.MISSED, SlotOutcome.NO_RECORD, SlotOutcome.PAUSED, SlotOutcome.TOGETHER}
# Its work was due, is not done, and nobody has decided that.
MISSED = {SlotOutcome.MISSED, SlotOutcome.CUT_OFF}
# They are not listed.
COUNTED = {SlotOutcome.DUE, SlotOutcome.RUNNING, SlotOutcome.SKIPPED, SlotOutcome.RAN}
ANSWERED = {*SlotOutcome} - COUNTED - {SlotOutcome.NO_RECORD, SlotOutcome.TOGETHER, SlotOutcome.SCHEDULE_NOT_KNOWN}


class Entry(NamedTuple):
    """A slot, what became of it, and its runs, the oldest first."""

    slot: datetime
    outcome: SlotOutcome
    attempts: "Sequence[JobRun]"


class Stretch(NamedTuple):
    """One slot, or consecutive slots of which the same can be said.

    Attributes:
        slots: these, the oldest first.
        outcome: what became of each.
        answer: why, in words that name the first. ``None``: nobody has asked.
    """

    slots: Sequence[datetime]
    outcome: SlotOutcome
    answer: Answer | None = None


class Ledger(NamedTuple):
    """The slots of a job.

    Attributes:
        name: the job's name.
        zone: that of its schedule.
        since: from when on its slots are here; ``None``: neither a run nor a note tells that it had any.
        is_cut: whether there are earlier ones, which are too many.
        counts: how many slots there are of each outcome.
        stretches: those that did not run, ran twice or failed, the oldest first.
        left_out: how many of these slots are not among ``stretches``.
        entries: all slots, the oldest first.
    """

    name: str
    zone: tzinfo
    since: datetime | None
    is_cut: bool
    counts: Counter[SlotOutcome]
    stretches: Sequence[Stretch]
    left_out: int
    entries: Sequence[Entry] = ()


def scheduled_jobs() -> list[str]:
    """The names of all jobs that have a schedule, in the code or in the database."""
    return sorted(_in_code().union(_scheduled().values_list("name", flat=True)))


def _in_code() -> set[str]:
    return {job.name for job in registry.all_jobs() if job.schedule is not None}


def _scheduled() -> "JobStatusQuerySet":
    return gates().scheduled().filter(hidden=False).order_by()


def worst_first(since: datetime, until: datetime) -> list[str]:
    """The same names. Those that may have a slot then that was missed, or whose run did not end well, come first."""
    given_up = notes().filter(kind=NoteKind.MISSED, last_slot__gte=since, first_slot__lt=until)
    ended = runs().filter(
        started_at__gte=since, started_at__lt=until, status__in=("failed", "abandoned", "interrupted")
    )
    late = gates().of_jobs().filter(next_slot__lt=DBNow() - OVERDUE)
    troubled: list[QuerySet[Any, Any]] = [
        late.values_list("name", Value(1)),
        given_up.values_list("job_name", Value(1)),
        ended.values_list("job_name", Value(1)),
    ]
    found = {*_scheduled().values_list("name", Value(0)).union(*(rows.order_by() for rows in troubled))}
    are_troubled = {name for name, is_troubled in found if is_troubled}
    names = _in_code().union(name for name, is_troubled in found if not is_troubled)
    return sorted(names, key=lambda name: (name not in are_troubled, name))


def ledger_of(name: str, since: datetime, until: datetime, most: int = MOST_STRETCHES) -> Ledger:
    """The job's slots from ``since`` on, and before ``until``, as far as they are past. At most ``most`` stretches are
    listed. Raises ``UnknownName``."""
    return _ledger(JobFacts.read(name), since, until, most)


def ledgers_of(
    healths: Sequence[Health], now: datetime, since: datetime, until: datetime, most: int = MOST_STRETCHES
) -> dict[str, Ledger]:
    """The same of many jobs, by name. What became of their slots takes three statements."""
    facts = facts_of(healths, now, since.astimezone(UTC))
    grace = max((each.grace for each in facts.values()), default=ZERO)
    newest = _newest(runs().filter(job_name__in=[*facts]), since.astimezone(UTC), until.astimezone(UTC), grace)
    read = by_name(newest if len(newest) <= MOST_SLOTS else None, lambda run: run.job_name)
    for name, each in facts.items():
        each.read_runs = read.get(name, []) if read else []
    return {name: _ledger(each, since, until, most, is_read=read is not None) for name, each in facts.items()}


def _ledger(facts: JobFacts, since: datetime, until: datetime, most: int, *, is_read: bool = False) -> Ledger:
    """``is_read``: whether its runs then have been read."""
    name = facts.name
    known, until = _known(facts), min(until.astimezone(UTC), facts.now)
    if known is None or known.since >= until:
        return Ledger(name, facts.zone, None, is_cut=False, counts=Counter(), stretches=[], left_out=0)
    begin = since.astimezone(UTC)
    # Without a slot between them, nothing is missing.
    if facts.schedule is None or next_slot(facts.schedule, begin - JUST) < known.since:
        begin = max(begin, known.since)
    ran, read_since = _ran(facts, begin, until, is_read=is_read)
    slots, slots_since = _slots(facts, read_since, until)
    ran = {key: found for key, found in ran.items() if key >= _key(slots_since)}
    entries = Entries(facts, known.complete_since, ran, {_key(slot): slot for slot in slots})
    outcomes = entries.outcomes(until)
    found, worst_first = [*_stretches(entries, outcomes)], [*SlotOutcome]
    worst = nsmallest(most, found, key=lambda each: worst_first.index(each.outcome))
    return Ledger(
        name=name,
        zone=facts.zone,
        since=slots_since,
        is_cut=slots_since > begin,
        counts=Counter(outcomes.values()),
        stretches=[*Explanations(entries).of(sorted(worst, key=attrgetter("slots")))],
        left_out=sum(len(each.slots) for each in found) - sum(len(each.slots) for each in worst),
        entries=[Entry(entries.instant(key), outcome, entries.ran.get(key, ())) for key, outcome in outcomes.items()],
    )


class Known(NamedTuple):
    """When the first schedule began that is known, and from when on each run has a row: a slot without one was not run
    or, if it is earlier, has no record."""

    since: datetime
    complete_since: datetime


def _known(facts: JobFacts) -> Known | None:
    """``None``: neither a run nor a note tells that it had a schedule."""
    recorded = [facts.first_slot, facts.status.next_slot if facts.status else None]
    noted = [*changes(facts.notes)]
    begins = [change.at if change.before else _begin_after(change) for change in noted[:1]]
    # The first schedule may have been replaced before it had a slot, by one whose slots come earlier.
    known = sorted(filter(None, (*recorded, *begins, *(change.note.first_slot for change in noted[1:]))))
    complete = known if facts.has_all_runs else sorted(filter(None, recorded))
    return Known(known[0], complete[0] if complete else facts.now) if known else None


# --- the slots


def _ran(
    facts: JobFacts, begin: datetime, until: datetime, *, is_read: bool
) -> "tuple[dict[int, list[JobRun]], datetime]":
    """The runs of each slot, by its key, the oldest first, and from which slot on they were read: there may be too
    many. Later slots than ``until`` are among them, because one of these may have run in place of an earlier one."""
    if is_read:
        newest = [run for run in facts.read_runs if _is_within(run, begin, until, facts.grace)]
    else:
        newest = _newest(runs().filter(job_name=facts.name), begin, until, facts.grace)
    if len(newest) > MOST_SLOTS:
        begin = newest[-1].started_at + _early()
    found: dict[int, list[JobRun]] = {}
    for run in reversed(newest):
        if slot := run.slot or run.retried_slot:
            found.setdefault(_key(slot), []).append(run)
    return found, begin


def _newest(rows: "JobRunQuerySet", begin: datetime, until: datetime, grace: timedelta) -> "list[JobRun]":
    """These runs, if they are of slots from ``begin`` on, the newest first: one more than ``MOST_SLOTS`` at most."""
    first, last = begin - MILLISECOND, until + grace + _early()
    found = rows.filter(Q(slot__range=(first, last)) | Q(retried_slot__range=(first, last)))
    found = found.filter(started_at__gte=begin - _early()).defer("traceback", "output", "origin")
    return [*found.order_by("-started_at", "-pk")[: MOST_SLOTS + 1]]


def _is_within(run: "JobRun", begin: datetime, until: datetime, grace: timedelta) -> bool:
    """Whether ``_newest`` would read it."""
    first, last = begin - MILLISECOND, until + grace + _early()
    slots = (slot for slot in (run.slot, run.retried_slot) if slot)
    return run.started_at >= begin - _early() and any(first <= slot <= last for slot in slots)


def _early() -> timedelta:
    return max(EARLY, options().slot_tolerance)


def _key(slot: datetime) -> int:
    """The same for a slot that is computed and for one that is read: no instant is matched by ``=``."""
    return (slot - EPOCH + MILLISECOND / 2) // MILLISECOND


def _slots(facts: JobFacts, since: datetime, until: datetime) -> tuple[list[datetime], datetime]:
    """The slots, and from when on these are all: there may be too many."""
    found = [*islice(_slots_of_all(facts, since, until), MOST_SLOTS + 1)]
    if len(found) > MOST_SLOTS:
        known = [era.schedule for era in _eras(facts, since, until) if era.schedule]
        shortest = min(each.interval if isinstance(each, Every) else MINUTE for each in known)
        since = max(since, until - MOST_SLOTS * shortest)
        found = [*_slots_of_all(facts, since, until)]
    return found, since


def _slots_of_all(facts: JobFacts, since: datetime, until: datetime) -> Iterator[datetime]:
    for schedule, begin, end in _eras(facts, since, until):
        if schedule:
            yield from slots_between(schedule, max(begin, since) - JUST, min(end, until - JUST))


class Era(NamedTuple):
    """From ``begin`` to ``end``, both included, the job had this schedule; ``None``: none, or it is not known."""

    schedule: Schedule | None
    begin: datetime
    end: datetime


def _eras(facts: JobFacts, since: datetime, until: datetime) -> Iterator[Era]:
    last: Change | None = None
    for change in changes(facts.notes):
        yield Era(_agreed(last, change.before), _begin_after(last) if last else since, change.at)
        last = change
    yield Era(_agreed(last, facts.schedule), _begin_after(last) if last else since, until)


def _agreed(last: Change | None, schedule: Schedule | None) -> Schedule | None:
    """The schedule, if the change before says the same: otherwise a note is missing."""
    return schedule if last is None or last.after == schedule else None


def _begin_after(change: Change) -> datetime:
    return change.note.first_slot or change.at + JUST


# --- what became of them


class Entries:
    """The slots of a job and their runs, by their keys."""

    def __init__(
        self, facts: JobFacts, complete_since: datetime, ran: "dict[int, list[JobRun]]", slots: dict[int, datetime]
    ) -> None:
        self.facts, self.ran, self.slots = facts, ran, slots
        self._complete_since = complete_since

    def instant(self, key: int) -> datetime:
        """The slot of this key."""
        first = self.ran.get(key, [])[:1]
        return self.slots.get(key) or next((run.slot or run.retried_slot or EPOCH for run in first), EPOCH)

    def outcomes(self, until: datetime) -> dict[int, SlotOutcome]:
        """What became of each, in their order, by their keys."""
        keys = sorted({*self.slots} | {key for key in self.ran if key < _key(until)})
        return {key: self._outcome(key) for key in keys}

    def _outcome(self, key: int) -> SlotOutcome:
        attempts = self.ran.get(key)
        if attempts is None:
            return self._of_not_run(key, self.slots[key])
        found = self._of_runs(self.instant(key), attempts)
        is_expected = key in self.slots or found == SlotOutcome.TWICE
        return found if is_expected else SlotOutcome.SCHEDULE_NOT_KNOWN

    def _of_runs(self, slot: datetime, attempts: "Sequence[JobRun]") -> SlotOutcome:
        last = attempts[-1]
        if _is_doubled(attempts):
            return SlotOutcome.TWICE
        if last.status in _OF_STATUS:
            return _OF_STATUS[last.status]
        if answer_of(self.facts, slot, attempts).cause == Cause.STOPPED:
            return SlotOutcome.STOPPED
        return SlotOutcome.DUE if self._is_run_again(last) else SlotOutcome.CUT_OFF

    def _is_run_again(self, run: "JobRun") -> bool:
        if run.retried_slot:
            return one_offs().will_retry(self.facts.name, run.retried_slot)
        status, ended = self.facts.status, run.finished_at or run.started_at
        is_last = status is not None and status.abandoned and status.last_slot == run.slot
        return is_last and not self.facts.is_used_up(run) and ended > self.facts.now - OVERDUE

    def _of_not_run(self, key: int, slot: datetime) -> SlotOutcome:
        next_run = self._next_run(key)
        moved_at = self._given_up.get(key) or (next_run.started_at if next_run else self.facts.now)
        if any(
            begin <= slot < (end or moved_at) and (last or moved_at) > moved_at - RUN_WITHIN
            for begin, end, _note, last in self._pauses
        ):
            return SlotOutcome.PAUSED
        if key in self._given_up:
            return SlotOutcome.MISSED
        if slot < self._complete_since - MILLISECOND:
            return SlotOutcome.NO_RECORD
        if self._is_due(slot) or (next_run is None and self._is_given_back(slot)):
            return SlotOutcome.DUE
        # It began a moment after it was decided. What was too late by then has a note.
        is_in_time = next_run is not None and moved_at <= slot + self.facts.grace + MINUTE
        is_each_run = self.facts.job is not None and self.facts.job.catch_up == "all"
        return SlotOutcome.TOGETHER if is_in_time and not is_each_run else SlotOutcome.MISSED

    def _next_run(self, key: int) -> "JobRun | None":
        number = bisect_right(self._keys_of_runs, key)
        return self.ran[self._keys_of_runs[number]][0] if number < len(self._keys_of_runs) else None

    @cached_property
    def _keys_of_runs(self) -> list[int]:
        return sorted(self.ran)

    @cached_property
    def _pauses(self) -> list[Pause]:
        return pauses(self.facts.notes)

    @cached_property
    def _given_up(self) -> dict[int, datetime]:
        """When the slots with these keys were given up, as notes say."""
        found, keys = dict[int, datetime](), sorted(self.slots)
        for note in self.facts.notes:
            if note.kind == NoteKind.MISSED and note.first_slot and note.last_slot:
                first, last = bisect_left(keys, _key(note.first_slot)), bisect_right(keys, _key(note.last_slot))
                found |= dict.fromkeys(keys[first:last], note.at)
        return found

    def _is_due(self, slot: datetime) -> bool:
        """Whether it may still be run in time."""
        status = self.facts.status
        is_next = status is not None and status.next_slot is not None and status.next_slot <= slot
        return is_next and slot > self.facts.now - OVERDUE

    def _is_given_back(self, slot: datetime) -> bool:
        """Whether the run of the last slot, or of this one with it, ended before its body began, and begins anew."""
        status, job = self.facts.status, self.facts.job
        if status is None or job is None or not (status.abandoned and status.last_slot):
            return False
        is_reached = slot <= status.last_slot + MILLISECOND and status.last_attempt < job.max_attempts
        return is_reached and slot > self.facts.now - OVERDUE


_OF_STATUS = {
    "successful": SlotOutcome.RAN,
    "failed": SlotOutcome.FAILED,
    "running": SlotOutcome.RUNNING,
    "skipped": SlotOutcome.SKIPPED,
}


def _is_doubled(attempts: "Sequence[JobRun]") -> bool:
    """Whether it ran again after it was successful, or began the same attempt twice, but neither by hand nor as a
    retry."""
    numbers = [run.attempt for run in attempts if run.slot and run.trigger != "manual"]
    return len({*numbers}) < len(numbers) or any(run.status == "successful" for run in attempts[:-1])


# --- why


def _stretches(entries: Entries, outcomes: Mapping[int, SlotOutcome]) -> Iterator[Stretch]:
    """The consecutive slots of the same outcome. If they failed, with the same error."""

    def sort(key: int) -> tuple[SlotOutcome, str]:
        outcome = outcomes[key]
        return outcome, entries.ran[key][-1].error if outcome == SlotOutcome.FAILED else ""

    for (outcome, _error), keys in groupby(outcomes, key=sort):
        if outcome not in COUNTED:
            yield Stretch([*map(entries.instant, keys)], outcome)


class Explanations:
    """Asks why, but not too often."""

    def __init__(self, entries: Entries) -> None:
        self._entries, self._answers = entries, dict[datetime, Answer]()

    def of(self, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
        """The same stretches, with answers. One that has several reasons becomes several."""
        return chain.from_iterable(map(self._of_one, stretches))

    def _of_one(self, stretch: Stretch) -> Iterator[Stretch]:
        slots = stretch.slots
        if stretch.outcome not in ANSWERED:
            yield stretch
        elif stretch.outcome not in NOT_RUN:
            yield stretch._replace(answer=self._answer(slots[0]))
        else:
            while slots and len(self._answers) < MOST_ANSWERS:
                number = self._same(slots)
                yield Stretch(slots[:number], stretch.outcome, self._answer(slots[0]))
                slots = slots[number:]
            if slots:
                yield Stretch(slots, stretch.outcome)

    def _same(self, slots: Sequence[datetime]) -> int:
        """How many of these have the same reason as the first, by the same evidence. Evidence is of a span of time, so
        what proves the first and the last proves all that are between them."""
        first = self._reason(slots[0])
        if self._reason(slots[-1]) == first:
            return len(slots)
        return bisect_left(slots, True, key=lambda slot: self._reason(slot) != first)

    def _reason(self, slot: datetime) -> tuple[Cause, Sequence[str]]:
        answer = self._answer(slot)
        return answer.cause, answer.evidence

    def _answer(self, slot: datetime) -> Answer:
        if slot not in self._answers:
            self._answers[slot] = answer_of(self._entries.facts, slot, self._entries.ran.get(_key(slot), ()))
        return self._answers[slot]
