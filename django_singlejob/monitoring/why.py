"""Why a job runs or does not, now or at a slot: one sentence, what proves it, and what to do. It only reads.

A reason is never stored: it is found in notes, runs, locks and the marks of servers when somebody asks. What none of
them proves is not known, and the answer says what would show it.
"""

from datetime import UTC, datetime

from django_singlejob.monitoring.causes import Answer
from django_singlejob.monitoring.job_facts import JobFacts, is_real
from django_singlejob.monitoring.why_now import answer_now
from django_singlejob.monitoring.why_then import answer_at


def why(name: str, at: datetime | None = None, *, has_one_offs: bool = True) -> list[Answer]:
    """Why the job runs or does not now, or why it did or did not at its slot in the minute ``at``. A naive instant is
    in the job's zone; an hour that a change of clocks repeats has two answers. Raises ``UnknownName``."""
    known = JobFacts.read(name, has_one_offs=has_one_offs)
    if at is None:
        return [answer_now(known)]
    both = [at] if at.tzinfo else [at.replace(tzinfo=known.zone, fold=fold) for fold in (0, 1)]
    # Of a skipped hour, both are the same wall clock of no instant.
    once = {instant.astimezone(UTC): instant for instant in both if is_real(instant)} or {both[0]: both[0]}
    return [answer_at(known, instant) for instant in once.values()]
