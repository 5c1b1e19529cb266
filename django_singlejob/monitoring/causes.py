"""The reasons why a job runs or does not, and what is said of each."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django.db import models
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise


class Cause(models.TextChoices):
    """Why a job runs or does not."""

    RAN = "ran", _("it ran")
    FAILED = "failed", _("it ran and did not succeed")
    RUNNING = "running", _("it is running")
    STOPPED = "stopped", _("somebody stopped it")
    USED_UP = "used_up", _("its attempts are used up")
    RETRY = "retry", _("it is tried again later")
    NOT_DUE = "not_due", _("it is not due")
    NO_SCHEDULE = "no_schedule", _("it has no schedule")
    TO_COME = "to_come", _("the slot is to come")
    SKIPPED_HOUR = "skipped_hour", _("clocks were set forward")
    PAUSED = "paused", _("paused")
    HELD_BY_ITSELF = "held_by_itself", _("held by a run of its own")
    HELD_BY_OTHER = "held_by_other", _("held by another job")
    STARTED_RECENTLY = "started_recently", _("it started recently")
    CLOCK = "clock", _("a clock is wrong")
    NOBODY = "nobody", _("no server asked")
    NOT_HERE = "not_here", _("for other servers")
    DISABLED = "disabled", _("disabled")
    BROKEN = "broken", _("its module does not load")
    UNKNOWN = "unknown", _("unknown to this release")
    GIVEN_UP = "given_up", _("given up")
    TAKEN_TOGETHER = "taken_together", _("taken together with a later slot")
    NO_WORKER = "no_worker", _("no worker serves its queue")
    BUSY = "busy", _("the workers are busy")
    BEHIND = "behind", _("others are before it")
    NO_RECORD = "no_record", _("there is no record")
    NOT_KNOWN = "not_known", _("not known")


class Words(NamedTuple):
    """What is said of a cause, with the names of facts in braces."""

    sentence: "_StrOrPromise"
    remedy: "_StrOrPromise" = ""


WORDS: dict[Cause, Words] = {
    Cause.RAN: Words(_("{slot} was run at {started} on {server}, and was successful.")),
    Cause.FAILED: Words(
        _("{slot} was run at {started} on {server}: {status}. {error}"),
        _("Look at the run in the history, and run it again."),
    ),
    Cause.RUNNING: Words(
        _("It is running: its lock has been held by {holder} since {since}; the last heartbeat was {silence} ago.")
    ),
    Cause.STOPPED: Words(
        _("{slot} was run at {started} on {server}, until {by} stopped it at {finished}."), _("Run it again.")
    ),
    Cause.USED_UP: Words(
        _("The slot {slot} was begun {number} times, and no attempt came to its end."),
        _("Find out what ended them, and run it again. max_attempts says how often a slot may begin."),
    ),
    Cause.RETRY: Words(_("Its last run did not succeed. It is tried again at {until}.")),
    Cause.NOT_DUE: Words(_("It is not due at {slot}: the slots around that are {before} and {after}.")),
    Cause.NO_SCHEDULE: Words(
        _("It has no schedule, and nothing asks for it."), _("Call it, enqueue it, or give it a schedule.")
    ),
    Cause.TO_COME: Words(_("It is next due at {slot}, in {time}.")),
    Cause.SKIPPED_HOUR: Words(
        _("There was no {wall}: clocks were set forward. The slots around that are {before} and {after}.")
    ),
    Cause.PAUSED: Words(
        _("{slot} was not run: the job was paused from {since} to {until} by {by} ({reason})."),
        _("Resume it by resume_singletons, or in the admin."),
    ),
    Cause.HELD_BY_ITSELF: Words(
        _("{slot} was not run: the run that began at {started} on {server} held the lock until {finished}."),
        _("If it takes too long, give it a max_runtime, or a longer interval."),
    ),
    Cause.HELD_BY_OTHER: Words(
        _("{slot} was not run: the lock {lock} was held by {other}, from {started} to {finished}, on {server}."),
        _("Give the jobs locks of their own, or slots further apart."),
    ),
    Cause.STARTED_RECENTLY: Words(
        _("It is due, but it started at {started}, and its min_interval is {time}."), _("It runs when that is over.")
    ),
    Cause.CLOCK: Words(
        _("It waits for {slot}, which is too far away: the database's clock was set back."),
        _("Check the database's clock."),
    ),
    Cause.NOBODY: Words(
        _("{slot} was not run: no server asked for it between {since} and {until}, or the database did not answer."),
        _("Check that cron or a worker runs on {servers}."),
    ),
    Cause.NOT_HERE: Words(
        _("{slot} was not run: it is for {on}, and only {servers} asked."),
        _("Check that cron or a worker runs on a server that its on= names."),
    ),
    Cause.DISABLED: Words(_("Nothing runs on this server: SINGLEJOB['ENABLED'] is False."), _("Set it to True.")),
    Cause.BROKEN: Words(_("It is not registered here. {problem}"), "{remedy}"),
    Cause.UNKNOWN: Words(
        _("This release of the code has no job of this name. It last ran at {started}."),
        _("Deploy the release that has it, or hide it in the admin."),
    ),
    Cause.GIVEN_UP: Words(
        _("{slot} was given up at {since}: {outcome}."),
        _("catch_up and misfire_grace decide what becomes of a slot that is late."),
    ),
    Cause.TAKEN_TOGETHER: Words(
        _("{slot} was taken together with {later}, which ran at {started} on {server}."),
        _('With catch_up="all", each slot is run.'),
    ),
    Cause.NO_WORKER: Words(
        _("A one-off has waited since {since} in the queue {queue}, and no live worker serves it."),
        _("Start singleton_worker, or correct the name of the queue."),
    ),
    Cause.BUSY: Words(
        _("It has been due since {since}, and each worker runs something else: {others}."),
        _("Start more workers, or raise --processes."),
    ),
    Cause.BEHIND: Words(
        _("A one-off has waited since {since} in the queue {queue}, and {number} others are before it."),
        _("Start more workers, or give it a higher priority."),
    ),
    Cause.NO_RECORD: Words(_("There is no record of {slot}: the history begins at {since}.")),
    Cause.NOT_KNOWN: Words(
        _("{slot} was not run, and nothing that is recorded says why."),
        _("A call that is skipped leaves no record. --verbosity 2 in the crontab line prints why it skips."),
    ),
}
# Some have a variant.
RAN_LATE = WORDS[Cause.RAN]._replace(
    sentence=_(
        "{slot} was run at {started} on {server}, {late} late, and was successful: {other} held the lock {lock} from "
        "{since} to {until}."
    )
)
PAUSED_NOW = WORDS[Cause.PAUSED]._replace(
    sentence=_("It has been paused since {since} by {by} ({reason}), until {until}.")
)
HELD_NOW = WORDS[Cause.HELD_BY_OTHER]._replace(
    sentence=_("Its lock {lock} is held by {other}, {holder}, since {since}; the last heartbeat was {silence} ago.")
)
NOBODY_NOW = WORDS[Cause.NOBODY]._replace(
    sentence=_("It has been due since {slot}, and no server has asked for it since {since}.")
)
NOT_HERE_NOW = WORDS[Cause.NOT_HERE]._replace(
    sentence=_("It has been due since {slot}. It is for {on}, and only {servers} ask.")
)
DISABLED_THERE = WORDS[Cause.DISABLED]._replace(
    sentence=_("It has been due since {slot}, and nothing runs on {servers}: SINGLEJOB['ENABLED'] is False there.")
)
JUST_DUE = WORDS[Cause.TO_COME]._replace(
    sentence=_("It is due since {slot}. A worker begins it within seconds, and passes of cron in the next minute.")
)
NOT_KNOWN_NOW = WORDS[Cause.NOT_KNOWN]._replace(
    sentence=_("It has been due since {slot}, and nothing that is recorded says why it is not run.")
)
NO_MARKS = WORDS[Cause.NOT_KNOWN]._replace(
    remedy=_(
        "Lines of run_singleton ask for it, and a skip leaves no mark. A line with singleton_worker --once would "
        "show which servers ask."
    )
)


class Answer(NamedTuple):
    """Why.

    Attributes:
        name: the job's name.
        cause: the reason.
        slot: the slot that it is about; ``None``: it is about now.
        sentence: the same for people.
        evidence: what proves it, a sentence each.
        remedy: what to do; may be empty.
    """

    name: str
    cause: Cause
    slot: datetime | None
    sentence: str
    evidence: Sequence[str]
    remedy: str
