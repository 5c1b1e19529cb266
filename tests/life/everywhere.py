"""What real projects have at once, for the tests of all others: with `--in-life`, the settings import this in each
process that a test starts. The libraries are real. What they send goes to `tests/life/server.py`."""

from __future__ import annotations

import atexit
import logging
import os
import random
import socket
import tempfile
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

# Before prometheus_client is imported. The processes of a test share it.
FOLDER = Path(os.environ["SINGLEJOB_TEST_LIFE"])
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(FOLDER)

import prometheus_client  # noqa: E402
import sentry_sdk  # noqa: E402
import urllib3  # noqa: E402
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter  # noqa: E402
from sentry_sdk.integrations.django import DjangoIntegration  # noqa: E402

SERVER = f"127.0.0.1:{os.environ['SINGLEJOB_TEST_LIFE_SERVER']}"

# --- settings of Django

INSTALLED_APPS: list[str] = ["elasticapm.contrib.django", "tests.life.shop", "tests.life.wrapper"]
ELASTIC_APM: dict[str, str] = {
    "SERVICE_NAME": "shop",
    "SERVER_URL": f"http://{SERVER}",
    # It would ask the servers of clouds where it is.
    "CLOUD_PROVIDER": "none",
    "METRICS_INTERVAL": "1s",
    "API_REQUEST_TIME": "1s",
}
CACHES: dict[str, Any] = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "console": {"class": "logging.StreamHandler", "level": "WARNING"},
        "file": {"()": "tests.life.everywhere.queued_handler"},
    },
    "root": {"handlers": ["console", "file"], "level": "INFO"},
}


def queued_handler() -> logging.Handler:
    """A handler whose records another thread writes, to a file that rotates: one for each process, because several
    would take it away from each other."""
    path = FOLDER / f"life-{os.getpid()}.log"
    listener = QueueListener(SimpleQueue[logging.LogRecord](), RotatingFileHandler(path, maxBytes=400, backupCount=2))
    listener.start()
    atexit.register(listener.stop)
    return QueueHandler(listener.queue)


# --- what the project does when it is loaded


class Appended:
    """A stream to a file that is open only while something is written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> int:
        with self._path.open("a") as file:
            return file.write(text)

    def flush(self) -> None:
        """There is nothing left to write."""


def trace_spans() -> trace.Tracer:
    provider = TracerProvider()
    stream = cast("IO[str]", Appended(FOLDER / "spans"))
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=stream), schedule_delay_millis=200))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("shop")


def report_to_sentry() -> None:
    """Its thread begins with the first event."""
    sentry_sdk.init(
        dsn=f"http://public@{SERVER}/1",
        integrations=[DjangoIntegration()],
        # It would import all queues that the tests have.
        auto_enabling_integrations=False,
        traces_sample_rate=1.0,
    )
    sentry_sdk.capture_message("The shop begins.")


def credential() -> str:
    """A file that goes with the process. To remove it twice is an error."""
    file, path = tempfile.mkstemp(dir=FOLDER)
    os.close(file)
    atexit.register(os.unlink, path)
    return path


def kept_alive() -> urllib3.HTTPConnectionPool:
    """A session that has a connection."""
    session = urllib3.HTTPConnectionPool(SERVER)
    session.request("GET", "/")
    return session


TRACER = trace_spans()
# Over the whole program, as from a wrapper around it.
SPAN = TRACER.start_span("program")
atexit.register(SPAN.end)
report_to_sentry()
CREDENTIAL = credential()
SESSION = kept_alive()
PAIR = socket.socketpair()
DICE = random.Random()
STARTS = prometheus_client.Counter("shop_starts", "How many processes of the shop have begun.")
STARTS.inc()
