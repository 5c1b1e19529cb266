"""Metrics for Prometheus: install ``django-singlejob[prometheus]``.

To import this module adds them to the default registry, which ``django-prometheus`` shows. ``django_singlejob.urls``
imports it, and has a page for them. The database is read at each scrape, and at no other time.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.utils import translation
from django.views.decorators.http import require_safe
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import django_singlejob
from django_singlejob.integrations.health import has_token
from django_singlejob.process.escaping import shown
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

LEVELS = ("ok", "warning", "critical")
Value = Callable[[Any], Any]

# Not the label "job": that is Prometheus's own. A value of None is left out.
JOBS: dict[str, tuple[str, Value]] = {
    "last_success_timestamp_seconds": ("When the last successful run finished.", lambda job: job.last_success_at),
    "next_slot_timestamp_seconds": ("When the schedule is next due.", lambda job: job.next_slot),
    "failures_in_a_row": ("Failures since the last success.", lambda job: job.consecutive_failures),
    "mean_duration_seconds": ("The mean duration of successful runs.", lambda job: job.mean_duration),
    "last_duration_seconds": ("The duration of the last run that ended.", lambda job: job.last_duration),
    "lock_age_seconds": ("For how long the lock has been held.", lambda job: job.holder and job.holder.age),
    "level": ("0: well, 1: a warning, 2: critical.", lambda job: LEVELS.index(job.level)),
}
QUEUES: dict[str, tuple[str, Value]] = {
    "due": ("One-offs that are due and wait.", lambda queue: queue.due),
    "oldest_due_seconds": ("For how long the oldest one-off has been due.", lambda queue: queue.oldest or 0),
    "failed": ("One-offs that failed in the last hour.", lambda queue: queue.failed),
    "workers": ("Live workers that serve the queue.", lambda queue: queue.workers),
}

SERVERS: dict[str, tuple[str, Value]] = {
    "last_seen_timestamp_seconds": ("When the server last asked for what is due.", lambda server: server.seen_at),
    "clock_error_seconds": ("How far its clock is ahead of the database's.", lambda server: server.clock_error),
    "trouble": ("1 if not everything that is due runs there.", lambda server: bool(server.trouble)),
}


class SingleJobs(Collector):
    """Reads ``django_singlejob.status()`` at each scrape. If that fails, ``singlejob_up`` is 0, and the scrape goes on:
    the registry has other metrics, too."""

    def describe(self) -> Iterable[Metric]:
        """The metrics without values. Without this method, the registry would read the database at registration."""
        return [_up(1), *_metrics((), (), (), (), 0)]

    def collect(self) -> Iterator[Metric]:
        """The metrics of everything."""
        try:
            with translation.override(None):
                status = django_singlejob.status()
        except Exception as error:
            words = shown(f"{type(error).__name__}: {error}")
            logger.warning("The metrics cannot be read: %s", words, extra=about(reason=error))
            yield _up(0)
        else:
            yield _up(1)
            live = sum(worker.is_live for worker in status.workers)
            jobs = [job for job in status.jobs if job.is_job]
            yield from _metrics(jobs, status.queues, status.servers, status.findings, live)
        finally:
            close_old_connections()  # nobody else does that in the thread of a server for metrics


def _up(value: float) -> Metric:
    return GaugeMetricFamily("singlejob_up", "Whether the status could be read.", value=value)


def _metrics(
    jobs: Sequence[Any], queues: Sequence[Any], servers: Sequence[Any], findings: Iterable[Any], workers: int
) -> Iterator[Metric]:
    for name, (documentation, value) in JOBS.items():
        values = (([job.name], value(job)) for job in jobs)
        yield _gauge(f"singlejob_job_{name}", documentation, ["name"], values)
    yield _gauge("singlejob_job_state", "1 for the state of the job.", ["name", "state"], _states(jobs))
    misfires = CounterMetricFamily("singlejob_job_misfires", "Slots that nobody ran in time.", labels=["name"])
    for job in jobs:
        misfires.add_metric([job.name], job.misfire_count or 0)
    yield misfires
    for name, (documentation, value) in QUEUES.items():
        values = (([queue.name], value(queue)) for queue in queues)
        yield _gauge(f"singlejob_queue_{name}", documentation, ["queue"], values)
    for name, (documentation, value) in SERVERS.items():
        values = ((_labels(server), value(server)) for server in servers)
        yield _gauge(f"singlejob_server_{name}", documentation, ["server", "queues"], values)
    releases = (([*_labels(server), server.release], 1) for server in servers)
    yield _gauge("singlejob_server_info", "1, with the release.", ["server", "queues", "release"], releases)
    of_jobs = [found for found in findings if found.about in ("job", "lock") and found.level == "critical"]
    known = {found.subject for found in of_jobs if found.acknowledged_until}
    known -= {found.subject for found in of_jobs if not found.acknowledged_until}
    documentation = "1 if all that is critical of the job is acknowledged."
    yield _gauge("singlejob_job_acknowledged", documentation, ["name"], (([name], 1) for name in sorted(known)))
    labels = ["kind", "level", "acknowledged"]
    yield _gauge("singlejob_findings", "What needs attention.", labels, _counts(findings))
    yield GaugeMetricFamily("singlejob_workers", "Workers that are alive.", value=workers)


def _labels(server: Any) -> list[str]:
    return [server.hostname, ",".join(server.queues)]


def _states(jobs: Iterable[Any]) -> Iterator[tuple[list[str], int]]:
    for job in jobs:
        yield [job.name, job.state], 1


def _counts(findings: Iterable[Any]) -> Iterator[tuple[list[str], int]]:
    kinds = [(each.kind, each.level, "yes" if each.acknowledged_until else "no") for each in findings]
    for kind in dict.fromkeys(kinds):
        yield [*kind], kinds.count(kind)


def _gauge(name: str, documentation: str, labels: list[str], values: Iterable[tuple[list[str], Any]]) -> Metric:
    gauge = GaugeMetricFamily(name, documentation, labels=labels)
    for label, value in values:
        if value is not None:
            gauge.add_metric(label, _number(value))
    return gauge


def _number(value: Any) -> float:
    match value:
        case datetime():
            return value.timestamp()
        case timedelta():
            return value.total_seconds()
    return float(value)


COLLECTOR = SingleJobs()
REGISTRY.register(COLLECTOR)
# The page shows only these metrics. So it is right behind several processes, which the default registry needs help for.
_OURS = CollectorRegistry()
_OURS.register(COLLECTOR)


@login_not_required
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics, or 401 without the token."""
    headers = {"Cache-Control": "private, no-store", "Vary": "Authorization"}
    if not has_token(request):
        return HttpResponse(status=401, headers={**headers, "WWW-Authenticate": "Bearer"})
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(_OURS), content_type=content_type, headers=headers)
