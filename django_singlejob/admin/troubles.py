"""What needs attention, as the overview shows it: since when, how often, why, what to do, and a button."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, ngettext

from django_singlejob.admin import history
from django_singlejob.admin.addresses import address
from django_singlejob.admin.cells import at_least, badge, breakable, distance, first_line, link, list_of
from django_singlejob.admin.history import LastError
from django_singlejob.admin.states import by_whom
from django_singlejob.models import JobStatus
from django_singlejob.monitoring.findings import Finding, Trouble
from django_singlejob.monitoring.health import State
from django_singlejob.monitoring.verdict import Verdict
from django_singlejob.process.clock import instant_in_words
from django_singlejob.process.escaping import shown

# The rest of the screen is for the jobs. The other findings are in the lists.
MOST_ROWS = 5
SERVERS = "singlejob-servers"


def table_of_troubles(verdict: Verdict, now: datetime, *, may_acknowledge: bool) -> dict[str, Any]:
    """The worst findings, and how many others there are."""
    found = verdict.findings[:MOST_ROWS]
    failing = [finding.subject for finding in found if finding.kind == State.FAILING]
    errors = history.last_errors(failing) if failing else {}
    statuses = {health.name: health.status for health in verdict.healths if health.status and health.is_job}
    rows = [
        {
            "where": _where(finding),
            "state": _level(finding),
            "since": _since(finding, now),
            "often": _often(finding, statuses),
            "what_happened": shown(finding.what_happened),
            "what_to_do": shown(finding.what_to_do),
            "more": _last_error(finding.subject, errors) if finding.kind == State.FAILING else _why(finding),
            "name": finding.subject if may_acknowledge and _can_be_acknowledged(finding) else "",
        }
        for finding in found
    ]
    return {"troubles": rows, "more_troubles": _more(verdict.findings[MOST_ROWS:], is_cut=verdict.is_ill_cut)}


def _can_be_acknowledged(finding: Finding) -> bool:
    """Whether the list of jobs has an action for it, and nobody has used that."""
    return finding.about == "job" and finding.acknowledged is None


def _level(finding: Finding) -> SafeString:
    found = badge(finding.level.name.lower(), finding.kind.label)
    return format_html("{} {}", found, by_whom(finding.acknowledged)) if finding.acknowledged else found


def _since(finding: Finding, now: datetime) -> SafeString | str:
    """When it began; empty if the rows do not tell."""
    if finding.since is None:
        return ""
    since, today = timezone.localtime(finding.since), timezone.localtime(now).date()
    at = date_format(since, "H:i" if since.date() == today else "Y-m-d H:i")
    text = _("since {time}, {ago}").format(time=at, ago=distance(finding.since, now))
    title = instant_in_words(finding.since, timezone.get_current_timezone())
    return format_html('<time datetime="{}" title="{}">{}</time>', finding.since.isoformat(), title, text)


def _often(finding: Finding, statuses: Mapping[str, JobStatus]) -> str:
    """How often a job has failed in a row; empty if it is not about that."""
    status = statuses.get(finding.subject)
    if finding.kind != State.FAILING or status is None:
        return ""
    count = status.consecutive_failures
    return ngettext("%d failure", "%d failures in a row", count) % count


def _why(finding: Finding) -> SafeString | str:
    """A link to the page that says why a job does not run; empty if it is not about that."""
    if finding.kind not in (State.OVERDUE, State.DELAYED, State.UNSEEN):
        return ""
    url = f"{address('overview_why')}?{urlencode({'job': finding.subject})}"
    return format_html('<a href="{}">{}</a>', url, _("Why?"))


def _last_error(name: str, errors: Mapping[str, LastError]) -> SafeString:
    """The last error of a job, with a link to its run, whose page begins with what went wrong. If that has been pruned,
    or did not record an error, a link to all of the job's runs."""
    last = errors.get(name)
    if last and (text := first_line(last.error)):
        return link("jobrun", last.pk, text)
    return format_html('<a href="{}">{}</a>', list_of("jobrun", job_name=name), _("Its runs"))


def _where(finding: Finding) -> SafeString:
    """A link to the page on which to act."""
    subject = shown(finding.subject)
    match finding.about:
        case "job":
            return link("jobstatus", finding.subject, breakable(finding.subject))
        case "queue":
            return format_html('<a href="{}">{}</a>', _one_offs_of(finding), _("queue %s") % subject)
        case "worker":
            return link("joblock", finding.subject, _("worker %s") % subject)
        case "server":
            return format_html('<a href="#{}">{}</a>', SERVERS, _("server %s") % subject)
        case "row":
            return format_html("{}", subject)
    return link("joblock", finding.subject, breakable(finding.subject))


def _one_offs_of(finding: Finding) -> str:
    status = "failed" if finding.kind == Trouble.FAILED else "waiting"
    return list_of("oneoffjob", status__exact=status, queue_name__exact=finding.subject)


def _more(others: Sequence[Finding], *, is_cut: bool) -> list[tuple[str, str]]:
    """How many other findings there are on each kind of thing, with the URL of a list."""
    abouts = ("job", "lock", "queue", "worker", "server", "row")
    jobs, locks, queues, workers, servers, rows = (
        sum(finding.about == about for finding in others) for about in abouts
    )
    found = [
        (jobs, ngettext("And %s more job", "And %s more jobs", jobs), list_of("jobstatus", state="attention")),
        (locks, ngettext("And %s more lock", "And %s more locks", locks), list_of("joblock", state="stale")),
        (queues, ngettext("And %s more queue", "And %s more queues", queues), list_of("oneoffjob")),
        (workers, ngettext("And %s more worker", "And %s more workers", workers), list_of("joblock", state="stale")),
        (servers, ngettext("And %s more server", "And %s more servers", servers), f"#{SERVERS}"),
        (rows, ngettext("And %s more row", "And %s more rows", rows), list_of("oneoffjob")),
    ]
    return [(text % at_least(count, is_cut=is_cut), url) for count, text, url in found if count]
