"""The files of the page on deployments are valid, and fit the worker."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from django.utils import timezone

from django_singlejob.running.watch import LAST_GRACE
from django_singlejob.worker.tick import Plan
from tests.children import ROOT
from tests.recipes.snippets import snippet
from tests.test_docs import parser_of

# They read files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")

EXAMPLES = ROOT / "docs" / "examples"
PAGE = ROOT / "docs" / "recipes" / "deploy.md"
NAMES = sorted(path.name for path in EXAMPLES.iterdir())
UNITS = [name for name in NAMES if name.endswith((".service", ".timer"))]
SERVICES = [name for name in UNITS if name.endswith(".service")]
MANIFESTS = ["cronjob.yaml", "deployment.yaml"]
PYTHON = "/srv/shop/.venv/bin/python"

#: The probe of a file called FILE, and after how many seconds without a touch it fails.
PROBE = yaml.safe_load(snippet("recipes/deploy.md", "Kubernetes", "yaml"))["livenessProbe"]["exec"]["command"][
    2
].replace("/tmp/alive", "FILE")
WINDOW = 60 * int(re.search(r"-mmin -(\d+)", PROBE)[1])  # type: ignore[index]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(EXAMPLES / name)
    return parser


def manifest(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text())


def pod(name: str) -> Any:
    """The specification of the pods that a manifest describes."""
    spec = manifest(name)["spec"]
    return spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]


def container(name: str) -> Any:
    (only,) = pod(name)["containers"]
    return only


def service() -> Any:
    """The only one of the compose file."""
    (only,) = manifest("compose.yaml")["services"].values()
    return only


def options(command: list[str]) -> dict[str, Any]:
    """The options of a command line of `manage.py`."""
    name, *arguments = command[command.index("manage.py") + 1 :]
    given: dict[str, Any] = vars(parser_of(name).parse_args(arguments))
    return given


def seconds_to_stop(command: list[str]) -> float:
    """How long a worker with this command line takes to stop, at most."""
    given = options(command)
    return ((given["grace"] or Plan.grace).total_seconds() if not given["once"] else 0) + LAST_GRACE


def test_each_file_is_linked_to() -> None:
    linked = set(re.findall(r"\]\(../examples/(.*?)\)", PAGE.read_text()))
    assert linked == {*NAMES} - {"prometheus-alerts.yml"}


def test_what_is_shown_of_a_file_is_in_it() -> None:
    shown = configparser.ConfigParser(interpolation=None)
    shown.optionxform = str  # type: ignore[method-assign,assignment]
    shown.read_string("[Service]\n" + snippet("recipes/deploy.md", "systemd", "ini"))
    assert shown["Service"].items() <= unit("shop-worker@.service")["Service"].items()
    for text, whole in (
        (snippet("recipes/deploy.md", "Docker Compose", "yaml"), service()),
        (snippet("recipes/deploy.md", "Kubernetes", "yaml"), container("deployment.yaml")),
    ):
        part = yaml.safe_load(text)
        healthcheck = part.pop("healthcheck", {})
        assert healthcheck.items() <= whole.get("healthcheck", {}).items()
        assert part == {key: whole[key] for key in part}


def test_the_shortest_window_is_named() -> None:
    assert f"at least {WINDOW // 60} minutes" in " ".join(PAGE.read_text().split())


# --- systemd


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of Debian's package systemd"
)
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for name in UNITS:
        (tmp_path / name).write_text((EXAMPLES / name).read_text().replace(PYTHON, sys.executable))
    names = [name.replace("@", "@1") for name in UNITS]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert verified.stdout + verified.stderr == ""
    assert verified.returncode == 0


@pytest.mark.parametrize("name", ["shop-worker@.service", "shop-jobs.service"])
def test_systemd_waits_until_the_worker_has_stopped(name: str) -> None:
    facts = unit(name)["Service"]
    command = shlex.split(facts["ExecStart"])
    assert command[0] == PYTHON
    assert int(facts["TimeoutStopSec"]) > seconds_to_stop(command)
    assert facts["KillMode"] == "mixed"


def test_each_timer_starts_a_service_that_is_there() -> None:
    timers = {name.removesuffix(".timer") for name in UNITS} - set(SERVICES)
    assert {f"{name}.service" for name in timers} <= set(SERVICES)


def test_systemd_restarts_only_a_worker_that_hangs(tmp_path: Path) -> None:
    file = options(shlex.split(unit("shop-worker@.service")["Service"]["ExecStart"]))["alive"]
    assert file.startswith(f"/run/{unit('shop-worker@.service')['Service']['RuntimeDirectory']}/")
    facts = unit("shop-probe@.service")["Service"]
    assert facts["ExecStart"] == "systemctl restart shop-worker@%i.service"
    assert file in facts["ExecCondition"]
    here = tmp_path / "alive"
    hangs = shlex.split(facts["ExecCondition"].replace(file, str(here)))
    assert subprocess.run(hangs, stderr=subprocess.DEVNULL, check=False).returncode == 1  # it starts
    here.touch()
    os.utime(here, (0, timezone.now().timestamp()))  # the hour of the tests, which may not be the kernel's
    assert subprocess.run(hangs, check=False).returncode == 1
    os.utime(here, (0, here.stat().st_mtime - WINDOW))
    assert subprocess.run(hangs, check=False).returncode == 0


# --- containers


def test_a_compose_file_has_a_worker_that_is_probed() -> None:
    worker = service()
    file = options(worker["command"])["alive"]
    assert worker["healthcheck"]["test"] == ["CMD-SHELL", PROBE.replace("FILE", file)]
    assert int(worker["stop_grace_period"].removesuffix("s")) > seconds_to_stop(worker["command"])
    assert worker["restart"] == "always"
    assert worker.keys() == {
        "image", "command", "environment", "restart", "stop_grace_period", "healthcheck", "deploy"
    }  # fmt: skip
    assert worker["healthcheck"].keys() == {"test", "interval", "start_period"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_accepts_it(name: str) -> None:
    newest = kubernetes_validate.latest_version()
    assert newest.startswith(kubernetes_validate.validate(manifest(name), newest, strict=True))


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_waits_until_the_worker_has_stopped(name: str) -> None:
    assert pod(name)["terminationGracePeriodSeconds"] > seconds_to_stop(container(name)["command"])


def test_kubernetes_finds_the_pods_of_the_deployment() -> None:
    spec = manifest("deployment.yaml")["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_kubernetes_probes_the_worker(probe: str) -> None:
    worker = container("deployment.yaml")
    file = options(worker["command"])["alive"]
    assert worker[probe]["exec"]["command"] == ["sh", "-c", PROBE.replace("FILE", file)]
    assert worker[probe]["failureThreshold"] > 1


def test_a_cron_job_does_not_repeat_what_failed() -> None:
    spec = manifest("cronjob.yaml")["spec"]
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert pod("cronjob.yaml")["restartPolicy"] == "Never"
    assert options(container("cronjob.yaml")["command"])["once"]
