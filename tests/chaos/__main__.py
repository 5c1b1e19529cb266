"""The monkey: starts the servers, torments them for a while, lets them end, and has their history judged."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import django

from tests.proxy import Proxy

parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--servers", type=int, default=6)
parser.add_argument("--seed", type=int, default=None)


class Servers:
    """Real processes, replaced when they are killed."""

    def __init__(self, count: int, url: str, folder: Path) -> None:
        self.history = folder / "history.jsonl"
        self._url = url
        self._log = (folder / "servers.log").open("wb")
        self._all = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.server", str(self.history)],
            env=os.environ | {"DATABASE_URL": self._url},
            stdout=self._log,
            stderr=self._log,
        )

    def end_one(self, signum: int) -> None:
        victim = random.choice(self._all)
        victim.send_signal(signum)
        victim.wait()
        self._all[self._all.index(victim)] = self._start()

    def stop_one(self, seconds: float) -> None:
        victim = random.choice(self._all)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        victim.send_signal(signal.SIGCONT)

    def end_all(self) -> None:
        for server in self._all:
            server.send_signal(signal.SIGTERM)
        for server in self._all:
            server.wait(60)
        self._log.close()


def torment(servers: Servers, proxy: Proxy | None, seconds: float) -> Counter[str]:
    deeds: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(random.uniform(0.1, 0.8))
        deed = random.choice(
            ["kill", "terminate", "stop", "stop", "outage", "black hole"] if proxy else ["kill", "terminate", "stop"]
        )
        deeds[deed] += 1
        match deed:
            case "kill":
                servers.end_one(signal.SIGKILL)
            case "terminate":
                servers.end_one(signal.SIGTERM)
            case "stop":
                servers.stop_one(random.uniform(0.1, 3))
            case "outage" if proxy:
                proxy.go_down()
                time.sleep(random.uniform(0.1, 3))
                proxy.come_back()
            case "black hole" if proxy:
                proxy.black_hole()
                time.sleep(random.uniform(0.1, 3))
                proxy.go_down()
                proxy.come_back()
    return deeds


def main() -> int:
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/chaos.sqlite3")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        if "chaos" not in url:
            parser.error("It empties its database: name one in DATABASE_URL whose name has the word chaos in it.")
        prepare()
        print(f"{given.servers} servers for {given.seconds:.0f} s on {urlsplit(url).scheme}, seed {seed}")
        return run(given, url, Path(folder))


def prepare() -> None:
    django.setup()
    from django.core.management import call_command  # noqa: PLC0415  (after the setup)

    call_command("migrate", run_syncdb=True, verbosity=0)
    call_command("flush", interactive=False, verbosity=0)


def run(given: argparse.Namespace, url: str, folder: Path) -> int:
    where = urlsplit(url)
    if where.scheme == "sqlite":
        servers = Servers(given.servers, url, folder)
        deeds = torment(servers, None, given.seconds)
        servers.end_all()
    else:
        with Proxy(where.hostname or "127.0.0.1", where.port or {"mysql": 3306}.get(where.scheme, 5432)) as proxy:
            servers = Servers(given.servers, proxy.url(url), folder)
            deeds = torment(servers, proxy, given.seconds)
            servers.end_all()
    return report(deeds, servers.history)


def report(deeds: Counter[str], history: Path) -> int:
    from django.core.management import call_command  # noqa: PLC0415

    from tests.chaos.judge import tally, verdict  # noqa: PLC0415

    time.sleep(1.2)  # the leases of the last ones killed run out
    call_command("clear_stale_locks", verbosity=0)
    for name, number in {**dict(deeds), **tally(history)}.items():
        print(f"{number:8} {name}")
    broken = {promise: against for promise, against in verdict(history).items() if against}
    for promise, against in verdict(history).items():
        print(f"{'BROKEN' if against else 'kept':8} {promise} {against}")
    return 1 if broken else 0


sys.exit(main())
