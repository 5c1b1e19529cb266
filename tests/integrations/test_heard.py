"""Four troubles, and which ways of the page on alerts hear of each. A real server of the tests' project answers
`health/`, and a real Prometheus; its commands report to a stub of a service for pings, and to one of Sentry."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from django_singlejob import singleton_job
from django_singlejob.models import JobStatus
from tests.children import ROOT
from tests.contract.acts import HOUR, expire, fall_behind
from tests.databases import APPS
from tests.integrations.test_prometheus import RULES
from tests.integrations.test_sentry import environment, items
from tests.ping_server import ping_server
from tests.ports import quiet_ports
from tests.processes.workers import one_off
from tests.test_docs import DOCS, names, table
from tests.waiting import PATIENCE, eventually, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.children import Spawn
    from tests.ping_server import PingServer
    from tests.proxy import Proxy

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    # The proxy is what can be away.
    pytest.mark.on_database("postgresql", "mysql"),
    pytest.mark.long,
]

SETTINGS = """
from tests.integrations.sentry_settings import *
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "django_singlejob.urls"
SINGLEJOB = {**SINGLEJOB, "HEALTH_TOKEN": "s3cret"}
"""
PROMETHEUS = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: singlejob
    metrics_path: /metrics/
    authorization: {{credentials: s3cret}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Shop:
    """The project in production, and those that hear of it."""

    def __init__(self, spawn: Spawn, proxy: Proxy, env: dict[str, str]) -> None:
        self.spawn, self.proxy, self.env = spawn, proxy, env
        self.port, self.prometheus_port = quiet_ports(2)

    def serve(self) -> None:
        address = f"127.0.0.1:{self.port}"
        self.spawn.command("runserver", "--noreload", "--nostatic", address, **self.env)
        eventually(lambda: self.health() == set())

    def watch(self, program: str, folder: Path) -> None:
        """Start Prometheus with the alerts that are shipped, but none of them waits for minutes."""
        (folder / "rules.yml").write_text(re.sub(r"for: \d+m", "for: 1s", RULES.read_text()))
        (folder / "prometheus.yml").write_text(PROMETHEUS.format(port=self.port))
        address = f"--web.listen-address=127.0.0.1:{self.prometheus_port}"
        where = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", address]
        # Python is the child that is ended with its test. It becomes Prometheus.
        self.spawn("-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])", program, *where)
        eventually(lambda: self.is_scraped() and self.alerts() == set())

    def cron(self, job: str) -> None:
        """What the job's line of the crontab does."""
        self.spawn.command("run_singleton", job, **self.env).finish()

    # --- what is heard

    def health(self) -> set[str] | None:
        """The kinds of critical findings, or the level if nothing is known. `None` if no server answers."""
        try:
            status, found = asked(f"http://127.0.0.1:{self.port}/health/")
        except OSError:
            return None
        kinds = {each["kind"] for each in found.get("findings", []) if each["level"] == "critical"}
        heard = {"unknown"} if found["level"] == "unknown" else kinds
        assert status == (503 if heard else 200)
        return heard

    def alerts(self) -> set[str] | None:
        """The alerts that fire. `None` if one of them is only pending."""
        found = self.prometheus("alerts")["alerts"]
        # The slot of a yearly job is late, whenever the test runs it.
        found = [each for each in found if each["labels"]["alertname"] != "SinglejobMisfires"]
        return (
            None
            if any(each["state"] != "firing" for each in found)
            else {each["labels"]["alertname"] for each in found}
        )

    def is_scraped(self) -> bool:
        found = self.prometheus("query", query="singlejob_up")["result"]
        return [each["value"][1] for each in found] == ["1"]

    def prometheus(self, what: str, **parameters: str) -> Any:
        """What its API tells of this. Nothing until it is ready."""
        try:
            _, found = asked(f"http://127.0.0.1:{self.prometheus_port}/api/v1/{what}?{urlencode(parameters)}")
        except (OSError, ValueError):
            return {"alerts": [], "result": []}
        return found["data"]


def asked(url: str) -> tuple[int, Any]:
    """The status and the JSON of the answer."""
    try:
        with urlopen(Request(url, headers={"Authorization": "Bearer s3cret"}), timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def pinged(pings: PingServer) -> set[str]:
    """What the service knows of the jobs' checks. It misses a ping itself, when a check's time is over."""
    ends = {path.rpartition("/")[2] for path in pings.paths} - {"start"}
    return {"/fail"} & {f"/{end}" for end in ends} if ends else {"silence"}


def captured(sentry: PingServer) -> set[str]:
    """What Sentry knows of the jobs. It misses a check-in itself, as above."""
    statuses = {each["status"] for each in items(sentry, "check_in")} - {"in_progress"}
    return ({"error"} & statuses if statuses else {"silence"}) | {"event" for _ in items(sentry, "event")[:1]}


# --- the troubles


def be_due(name: str) -> None:
    """A slot of the job is due."""
    fall_behind(singleton_job(name, schedule="@yearly")(lambda: None))


def cron_stops(shop: Shop) -> None:
    be_due("checked")
    JobStatus.objects.filter(name="checked").update(next_slot=datetime.now(UTC) - HOUR)


def a_queue_has_no_worker(shop: Shop) -> None:
    waiting = one_off("checked")
    waiting.queue_name, waiting.run_after = "mail", datetime.now(UTC) - HOUR
    waiting.save()
    be_due("checked")
    shop.cron("checked")


def a_job_fails(shop: Shop) -> None:
    be_due("checked_and_fails")
    shop.cron("checked_and_fails")


def deploys_interrupt_a_job(shop: Shop) -> None:
    be_due("checked_and_waits")
    for _ in range(2):
        child = shop.spawn.command("run_singleton", "checked_and_waits", **shop.env)
        child.wait_for("started")
        child.terminate()
        child.finish()


def a_server_dies(shop: Shop) -> None:
    be_due("checked_and_waits")
    child = shop.spawn.command("run_singleton", "checked_and_waits", **shop.env)
    child.wait_for("started")
    child.kill_all()
    expire("checked_and_waits")
    shop.spawn.command("clear_stale_locks", **shop.env).finish()


def the_database_goes_away(shop: Shop) -> None:
    be_due("checked")
    shop.proxy.go_down()
    shop.cron("checked")


TROUBLES: dict[str, Callable[[Shop], None]] = {
    "cron, or each worker, has stopped": cron_stops,
    "no worker serves a queue": a_queue_has_no_worker,
    "a job fails, or exceeds `max_runtime`": a_job_fails,
    "a signal ends a job twice in a row": deploys_interrupt_a_job,
    "a server dies during a run": a_server_dies,
    "the database is away": the_database_goes_away,
}


def told() -> dict[str, list[set[str]]]:
    """What the page tells that `health/`, Prometheus, the pings and Sentry show, by trouble: all but the mails."""
    rows = table((DOCS / "recipes" / "alerts.md").read_text(), "Trouble")
    return {
        row[0]: [{*names(cell)} | {word for word in ("silence", "event") if word in cell} for cell in row[2:]]
        for row in rows
    }


# --- they are heard


@pytest.mark.parametrize("trouble", TROUBLES)
def test_each_trouble_is_heard_as_the_page_tells(
    trouble: str, spawn: Spawn, proxy: Proxy, database_url: str, tmp_path: Path
) -> None:
    program = shutil.which("prometheus") or there_is_none()
    (tmp_path / "heard_settings.py").write_text(SETTINGS)
    with ping_server() as pings, ping_server() as sentry:
        env = environment(sentry) | {
            "DATABASE_URL": proxy.url(database_url),
            "DJANGO_SETTINGS_MODULE": "heard_settings",
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "SINGLEJOB_TEST_PING_URL": pings.url,
        }
        shop = Shop(spawn, proxy, env)
        shop.serve()
        shop.watch(program, tmp_path)
        assert (pings.heard, sentry.heard) == ([], [])
        TROUBLES[trouble](shop)
        health, alerts, ping, check_in = told()[trouble]
        print(seconds_of(lambda: eventually(lambda: shop.health() == health)), "s until health/")
        print(seconds_of(lambda: eventually(lambda: shop.alerts() == alerts)), "s until Prometheus")
        assert (pinged(pings), captured(sentry)) == (ping, check_in)


def test_the_page_tells_of_no_other_troubles() -> None:
    assert [*told()] == [*TROUBLES]


def there_is_none() -> str:
    reason = "Prometheus is not installed: apt-get install prometheus"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
