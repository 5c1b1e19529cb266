"""Ports for servers that are started later, or are down now and then: they must find their port free."""

from __future__ import annotations

import random
import socket
from itertools import islice
from pathlib import Path


def quiet_ports(count: int) -> list[int]:
    """Free ports that the system gives to no client."""
    range_of_clients = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(range_of_clients.read_text().split()[0]) if range_of_clients.exists() else 32768
    # Not by the seed: concurrent runs may have the same one.
    candidates = random.SystemRandom().sample(range(10_000, lowest), lowest - 10_000)
    return list(islice(filter(is_free, candidates), count))


def quiet_port() -> int:
    (port,) = quiet_ports(1)
    return port


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
