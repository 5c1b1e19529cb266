"""Mails to those whom ``notify`` names: when something becomes critical, once a day while it is, and when it is over.

A thread looks for what to tell, and sends it, see ``outbox``. A row for each thing and each kind of finding decides
which of all servers sends: its instant is moved before, so a server that dies or cannot send leaves the mail to another
one, a few minutes later.
"""

import logging
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import mail
from django.db import connections
from django.db.models import Q
from django.utils import translation

from django_singlejob.conf import options
from django_singlejob.database import transactions
from django_singlejob.integrations.outbox import Outbox
from django_singlejob.jobs import registry
from django_singlejob.jobs.registry import Job
from django_singlejob.jobs.slots import MisfireOutcome
from django_singlejob.models.alerts import JobAlert, alerts
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.rows import delete_rows
from django_singlejob.models.runs import FAILURES, runs
from django_singlejob.monitoring.findings import Finding, Trouble
from django_singlejob.monitoring.health import Level, State
from django_singlejob.monitoring.verdict import EVERYTHING, Scope, Verdict, judge
from django_singlejob.process import messages
from django_singlejob.process.clock import DBNow, instant_in_words, sleep
from django_singlejob.process.escaping import printable, shown
from django_singlejob.process.logs import about
from django_singlejob.running.failed_run import own_line, where_more_is

if TYPE_CHECKING:
    from django_singlejob.models import JobRun
    from django_singlejob.running.current_run import CurrentRun

logger = logging.getLogger("django_singlejob")

# How long the mail server may take for each step, how often it is asked, and what lies between. Seconds.
PATIENCE, TRIES, PAUSE = 10.0, 3, 1.0
# How long the end of a process waits for mails. Seconds.
LAST = 15.0
# What stays critical is mailed once a day; a mail that was not sent is tried again after this time.
DAY, AGAIN_AFTER = timedelta(days=1), timedelta(minutes=5)
# Of a run's output: its last characters.
OUTPUT_LENGTH = 1_000
MISFIRED = "misfired"

_outbox = Outbox("mails", last=LAST)


def tell_end(*, run: "CurrentRun", status: str, **_: Any) -> None:
    """Receive ``job_finished``."""
    if addresses_of(run.job):
        _put(partial(_look, Scope(jobs=(run.job.name,)), run.lease.grant.run_id))


def tell_misfire(*, name: str, reason: str, first: Any, slot: Any, count: int, **_: Any) -> None:
    """Receive ``slot_misfired``: slots were given up. That is mailed once a day."""
    job = registry.get(name) if registry.is_known(name) else None
    to = addresses_of(job)
    if to and reason == MisfireOutcome.DROPPED:
        zone = registry.zone_of(name)
        which = instant_in_words(first, zone)
        if count > 1:
            which = f"{count} slots, from {which} to {instant_in_words(slot, zone)},"
        text = f"{which} of the job {name!r} did not run in time, and will not be run."
        _put(partial(_mail_once, to, name, MISFIRED, text))


def tell_all() -> None:
    """Mail whatever is wrong: each server calls this a few times an hour."""
    if options().notify or any(job.notify for job in registry.all_jobs()):
        _put(partial(_look, EVERYTHING, None))


def send_test() -> dict[str, bool]:
    """Send a mail to each address that hears of anything, and return whether that was possible."""
    known = sorted({each for job in (None, *registry.all_jobs()) for each in addresses_of(job)})
    return {each: send([each], "a test", "This address hears what is wrong with jobs.\n") for each in known}


def addresses_of(job: Job | None) -> Sequence[str]:
    """The addresses for the job, or for anything else; may be empty."""
    given = options().notify if job is None or job.notify is None else job.notify
    return [given] if isinstance(given, str) else list(given)


def _put(do: Any) -> None:
    # In a project's tests, the thread would see nothing.
    if not transactions.is_private(transactions.alias()):
        _outbox.put(partial(_guarded, do), _give_up)


def _give_up(why: str) -> None:
    logger.warning("Mails were not sent: %s", why, extra=about())


# --- in the thread


def _guarded(do: Any) -> None:
    """Whatever happens, the thread goes on, and leaves no connection."""
    try:
        with translation.override(None):
            do()
    except Exception as error:
        words = shown(f"{type(error).__name__}: {error}")
        logger.warning("Mails could not be prepared: %s", words, extra=about(reason=error))
    finally:
        connections[transactions.alias()].close()


def _look(scope: Scope, run_id: int | None) -> None:
    """Mail what is critical in the scope, and what is well again."""
    verdict = judge(scope, with_last_runs=True, broken=[] if scope.is_narrow else [*registry.failures.values()])
    for found in filter(_is_to_be_mailed, verdict.findings):
        if to := _addresses(found):
            _mail_once(to, found.subject, found.kind.value, _paragraph(found, run_id), label=str(found.kind.label))
    if verdict.is_enabled:
        _mail_recovery(scope, verdict)


def _is_to_be_mailed(found: Finding) -> bool:
    """A server that does not ask any more is only a warning, because others may run what is due."""
    return not found.acknowledged and (found.level == Level.CRITICAL or found.kind == Trouble.SILENT)


def _addresses(found: Finding) -> Sequence[str]:
    is_job = found.about in ("job", "lock") and registry.is_known(found.subject)
    return addresses_of(registry.get(found.subject) if is_job else None)


def _mail_once(to: Sequence[str], subject: str, kind: str, text: str, *, label: str = "") -> None:
    """Mail it, unless another server does, or has done so today."""
    rows = alerts().filter(subject=subject, kind=kind)
    if not rows.exists():
        alerts().bulk_create([JobAlert(subject=subject, kind=kind)], ignore_conflicts=True)
    is_due = Q(sent_at__isnull=True) | Q(sent_at__lte=DBNow() - DAY)
    if rows.filter(is_due).update(sent_at=DBNow() - (DAY - AGAIN_AFTER)) == 1 and send(
        to, f"{subject}: {label or kind}", text
    ):
        rows.update(sent_at=DBNow(), is_sent=True)


def _mail_recovery(scope: Scope, verdict: Verdict) -> None:
    """Mail that something is over, if a mail said that it had begun, and if that is proven."""
    rows = alerts().filter(is_sent=True).exclude(kind=MISFIRED)
    for row in rows.filter(subject__in=scope.jobs) if scope.is_narrow else rows:
        if _is_forgotten(row, scope, verdict):
            _close(row)
        elif _is_well(row, scope, verdict) and rows.filter(pk=row.pk).update(is_sent=False) == 1:
            job = registry.get(row.subject) if registry.is_known(row.subject) else None
            text = f"{row.subject} is not {row.kind} any more.\n"
            if not send(addresses_of(job), f"{row.subject}: well again", text):
                alerts().filter(pk=row.pk).update(is_sent=True)
            else:
                _close(row)


def _close(row: JobAlert) -> None:
    """Mail no more of this. An acknowledgement is kept."""
    if not delete_rows(alerts().filter(pk=row.pk, acknowledged_until=None)):
        alerts().filter(pk=row.pk).update(is_sent=False, sent_at=None)


def _is_forgotten(row: JobAlert, scope: Scope, verdict: Verdict) -> bool:
    """Whether it is about a server that is gone for good: then it will never be proven to be well."""
    is_of_server = row.kind in (Trouble.SILENT, Trouble.IMPEDED) and not scope.is_narrow
    return is_of_server and all(server.hostname != row.subject for server in verdict.servers)


def _is_well(row: JobAlert, scope: Scope, verdict: Verdict) -> bool:
    """Whether it is proven: a pause, or another trouble, proves nothing."""
    if any(found.subject == row.subject and found.kind.value == row.kind for found in verdict.findings):
        return False
    if row.kind in State.values:
        states = [health.state for health in verdict.healths if health.name == row.subject]
        is_gone = not (states or scope.is_narrow or verdict.is_cut or registry.is_known(row.subject))
        return is_gone or states in ([State.RUNNING], [State.IDLE])
    if row.kind in (Trouble.SILENT, Trouble.IMPEDED):
        return any(server.hostname == row.subject and server.is_asking for server in verdict.servers)
    if row.kind in (Trouble.NO_WORKER, Trouble.UNSERVED, Trouble.LATE, Trouble.FAILED):
        if any((found.about, found.subject) == ("queue", row.subject) for found in verdict.findings):
            return False
        is_seen = any(queue.name == row.subject for queue in verdict.queues)
        # What is due in a queue that is not seen is of jobs that are paused.
        return is_seen or not (scope.is_narrow or one_offs().in_queues([row.subject]).due().exists())
    return not scope.is_narrow


def send(to: Sequence[str], subject: str, text: str) -> bool:
    """Send a mail. ``False`` if the mail server does not take it, which standard error tells."""
    line, why = printable(subject, 200), ""
    for number in range(TRIES):
        sleep(number * PAUSE)
        try:
            connection = _connection()
            heading = " ".join(f"{settings.EMAIL_SUBJECT_PREFIX}{line}".split())
            message = mail.EmailMessage(heading, text, to=[*to])
            connection.send_messages([message])
        except Exception as error:  # of any backend
            why = shown(f"{type(error).__name__}: {error}")
        else:
            return True
    told = f"{line}. This could not be mailed to {', '.join(to)}: {why}\n"
    messages.say(sys.stderr, lambda: sys.stderr.write(told) if sys.stderr else None, told)
    return False


def _connection() -> Any:
    # Django 6.1 has mailers; get_connection() is deprecated there.
    connection: Any = mail.mailers.default if hasattr(mail, "mailers") else mail.get_connection()
    if getattr(connection, "timeout", PATIENCE) is None:
        connection.timeout = PATIENCE
    return connection


# --- words


def _paragraph(found: Finding, run_id: int | None) -> str:
    """What happened, the error, the project's own line, the last lines of the output, and where to look."""
    run = _failed_run(found.subject, run_id) if found.about == "job" and found.kind.value == "failing" else None
    lines = [f"{found.what_happened} {found.what_to_do}"]
    if run:
        lines += [run.error, own_line(run)]
        lines += [f"The run {run.pk} on {run.hostname} began at {instant_in_words(run.started_at)}."]
        lines += [f"The last output:\n{run.output[-OUTPUT_LENGTH:].strip()}"] if run.output else []
    lines.append(
        where_more_is(run, command=f"singleton_why {found.subject}" if found.about == "job" else "singleton_status")
    )
    return "\n\n".join(shown(line, keep="\n\t") for line in lines if line) + "\n"


def _failed_run(name: str, run_id: int | None) -> "JobRun | None":
    rows = runs().filter(job_name=name, status__in=FAILURES)
    own = rows.filter(pk=run_id).first() if run_id else None
    return own or rows.order_by("-started_at", "-pk").first()
