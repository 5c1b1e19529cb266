"""Pings: HTTP requests that tell a service such as healthchecks.io when a run begins and ends.

A thread sends them, see ``outbox``.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from django_singlejob.conf import options
from django_singlejob.integrations.cut_off import is_taken_up_again, job_of
from django_singlejob.integrations.outbox import Outbox
from django_singlejob.jobs.names import is_reserved
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.endings import summary
from django_singlejob.process.escaping import shown
from django_singlejob.process.logs import about
from django_singlejob.running.current_run import CurrentRun

if TYPE_CHECKING:
    from uuid import UUID

    from django_singlejob.models import JobLock

logger = logging.getLogger("django_singlejob")

# How long the server may take to connect, and to send each part of its answer. Seconds.
PATIENCE = 2.0


class Ping(NamedTuple):
    """``error``: what to send in the body; ``None`` makes it a GET."""

    job_name: str
    url: str
    error: str | None

    @property
    def host(self) -> str:
        """For people: the rest of the URL is a secret."""
        return urlsplit(self.url).hostname or ""


def ping_start(*, run: CurrentRun, **kwargs: Any) -> None:
    """Receive ``job_started``."""
    if template := _template(run.job):
        _put(Ping(run.job.name, _url(template, run.job.name, run.lease.token, "/start"), None), is_start=True)


def ping_end(*, run: CurrentRun, status: str, error: BaseException | None, **kwargs: Any) -> None:
    """Receive ``job_finished``. A run that has skipped itself has done all that it had to."""
    if (template := _template(run.job)) and not is_taken_up_again(run, error):
        is_well = status in ("successful", "skipped")
        url = _url(template, run.job.name, run.lease.token, "" if is_well else "/fail")
        _put(Ping(run.job.name, url, None if is_well else summary(error)))


def ping_death(*, lock: "JobLock", **kwargs: Any) -> None:
    """Receive ``lock_taken_over``: its former holder will not ping any more."""
    if not lock.job_name or is_reserved(lock.job_name):
        return
    if template := _template(job_of(lock)):
        url = _url(template, lock.job_name, lock.token, "/fail")
        _put(Ping(lock.job_name, url, shown(f"Abandoned: the lock was taken from {lock.holder}.")))


_outbox = Outbox("pings")


def _put(ping: Ping, *, is_start: bool = False) -> None:
    _outbox.put(partial(_send, ping), partial(_warn, ping), is_start=is_start)


def _template(job: Job | None) -> str | None:
    return options().ping_url if job is None or job.ping_url is None else job.ping_url


def _url(template: str, name: str, token: "UUID", suffix: str) -> str:
    parts = urlsplit(template.replace("{name}", quote(name, safe="")))
    path = parts.path.rstrip("/") + suffix if suffix else parts.path
    query = f"{parts.query}&" if parts.query else ""
    return parts._replace(path=path, query=f"{query}rid={token}").geturl()


# --- a request


def _send(ping: Ping) -> None:
    """Send it, and log a warning if that fails."""
    data = None if ping.error is None else ping.error.encode()
    headers = {"User-Agent": "django-singlejob", "Content-Type": "text/plain; charset=utf-8"}
    try:
        _opener.open(Request(ping.url, data, headers), None, PATIENCE).close()  # noqa: S310  (it is a web server's)
    except HTTPError as error:
        _warn(ping, f"the status is {error.code}", error)
        error.close()
    except Exception as error:  # whatever the server answers
        reason = error.reason if isinstance(error, URLError) else error
        # Others may have the URL in their words.
        _warn(ping, str(reason) if isinstance(reason, OSError) else type(reason).__name__, error)


def _warn(ping: Ping, why: str, error: Exception | None = None) -> None:
    message = "A ping of the job %r to %s was not received: %s"
    logger.warning(message, ping.job_name, ping.host, why, extra=about(job=ping.job_name, reason=error))


class _NoRedirects(HTTPRedirectHandler):
    """The URL is a secret, which only its host may know."""

    def redirect_request(self, *args: object) -> None:
        return None


_opener = build_opener(_NoRedirects)
