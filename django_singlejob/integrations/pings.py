"""Pings: HTTP requests that tell a service such as healthchecks.io when a run begins and ends.

A thread sends them, see ``outbox``.
"""

import io
import logging
import socket
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import (
    AbstractHTTPHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from django_singlejob.conf import options
from django_singlejob.integrations.outbox import Outbox
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.endings import summary
from django_singlejob.process.clock import local_now
from django_singlejob.process.logs import about
from django_singlejob.running.current_run import CurrentRun

logger = logging.getLogger("django_singlejob")

# How long the server may take to connect, and to answer. Seconds.
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
        _put(Ping(run.job.name, _url(template, run, "/start"), None), is_start=True)


def ping_end(*, run: CurrentRun, status: str, error: BaseException | None, **kwargs: Any) -> None:
    """Receive ``job_finished``. A run that has skipped itself has done all that it had to."""
    if template := _template(run.job):
        is_well = status in ("successful", "skipped")
        url = _url(template, run, "" if is_well else "/fail")
        _put(Ping(run.job.name, url, None if is_well else summary(error)))


_outbox = Outbox("pings")


def _put(ping: Ping, *, is_start: bool = False) -> None:
    _outbox.put(partial(_send, ping), partial(_warn, ping), is_start=is_start)


def _template(job: Job) -> str | None:
    return options().ping_url if job.ping_url is None else job.ping_url


def _url(template: str, run: CurrentRun, suffix: str) -> str:
    parts = urlsplit(template.replace("{name}", quote(run.job.name, safe="")))
    path = parts.path.rstrip("/") + suffix if suffix else parts.path
    query = f"{parts.query}&" if parts.query else ""
    return parts._replace(path=path, query=f"{query}rid={run.lease.token}").geturl()


# --- a request


def _send(ping: Ping) -> None:
    """Send it, and log a warning if that fails."""
    data = None if ping.error is None else ping.error.encode()
    headers = {"User-Agent": "django-singlejob", "Content-Type": "text/plain; charset=utf-8"}
    try:
        _opener.open(Request(ping.url, data, headers), None, PATIENCE).close()  # noqa: S310  (see _opener)
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


class _Answer(HTTPResponse):
    """The answer of a server that may not take its time, a byte after the other."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_Hurried(sock))


class _Hurried(io.RawIOBase):
    """What a socket receives within the patience."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._ends_at = sock, local_now() + PATIENCE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._ends_at - local_now()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        return self._socket.recv_into(buffer)


class _Connection(HTTPConnection):
    response_class = _Answer


class _SecureConnection(HTTPSConnection):
    response_class = _Answer


class _Web(AbstractHTTPHandler):
    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_Connection, request)

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, request)

    http_request = https_request = AbstractHTTPHandler.do_request_


# Nothing but HTTP, and no redirects: the URL is a secret, which only its host may know.
_opener = OpenerDirector()
for _handler in ProxyHandler(), _Web(), HTTPErrorProcessor(), HTTPDefaultErrorHandler():
    _opener.add_handler(_handler)
