"""What happened in the last hours: which server ran what, and what the locks cost."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from django_singlejob.admin import gantt, history
from django_singlejob.admin.cells import badge, distance, duration, list_of
from django_singlejob.admin.charts import share
from django_singlejob.admin.history import Period
from django_singlejob.models import JobRun
from django_singlejob.monitoring.health import Health

MOST_SERVERS = 30
LEGEND = [
    JobRun.Status.SUCCESSFUL,
    JobRun.Status.SKIPPED,
    JobRun.Status.RUNNING,
    JobRun.Status.INTERRUPTED,
    JobRun.Status.FAILED,
]


def lanes(period: Period) -> dict[str, Any]:
    """A row of the timeline for each server."""
    zone = timezone.get_current_timezone()
    ticks = gantt.ticks(period, zone)
    rows = gantt.rows(period)
    return {
        "axis": gantt.axis(ticks),
        "rows": [
            (row.hostname, _runs_of(row.hostname), gantt.counted(row.runs), gantt.drawn(row, ticks, period.now))
            for row in rows
        ],
        "most_servers": len(rows) if len({run.hostname for run in [*period.runs, *period.earlier]}) > len(rows) else 0,
        "zone": timezone.get_current_timezone_name(),
        "legend": [badge(status, status.label) for status in LEGEND],
    }


def _runs_of(hostname: str) -> str:
    return list_of("jobrun", server=hostname)


def winners(period: Period, healths: Sequence[Health]) -> list[tuple[Any, ...]]:
    """The servers that won the runs (Table 2 of Lu 2025)."""
    heartbeats = [(health.lock.hostname, health.lock.heartbeat_at) for health in healths if health.lock]
    found = history.winners(period.runs, heartbeats)
    return [
        (
            winner.hostname,
            _runs_of(winner.hostname),
            _part(winner.won, len(period.runs)),
            share(winner.share, "", "busy"),
            winner.bad,
            distance(winner.last_seen, period.now),
        )
        for winner in found[:MOST_SERVERS]
    ]


def costs(period: Period) -> dict[str, Any] | None:
    """What it cost to acquire the locks (Table 1 of Lu 2025), or ``None`` if no cost was recorded."""
    costs = history.costs(period.runs)
    if costs is None:
        return None
    total = sum(count for _bound, count in costs.counts)
    summary = [
        (_("Least"), costs.least),
        (_("Median"), costs.median),
        (_("Mean"), costs.mean),
        (_("95th percentile"), costs.p95),
        (_("Most"), costs.most),
    ]
    return {
        "rows": [
            (_up_to(bound), _part(count, total), share(count / total, "", "busy")) for bound, count in costs.counts
        ],
        "summary": [(label, duration(cost)) for label, cost in summary],
    }


def _part(count: int, total: int) -> str:
    return _("%(count)d (%(percent)d%%)") % {"count": count, "percent": round(100 * count / total)}


def _up_to(bound: timedelta | None) -> str:
    return _("more") if bound is None else _("up to %s") % duration(bound)
