"""Ports that nothing takes between their choice and a server that listens there."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

LOWEST = 10_000
EPHEMERAL = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
START = random.SystemRandom().randint(LOWEST, EPHEMERAL - 1)
PORTS: Iterator[int] = cycle([*range(START, EPHEMERAL), *range(LOWEST, START)])
"""Each process begins at another place, and gives a port again only after all others."""


def free_port() -> int:
    """Return a port that is free, below those that the system gives to connections and to servers without a port."""
    for port in PORTS:
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("there is always a next port")


def free_address() -> str:
    """Return an address of this machine that nothing listens at."""
    return f"127.0.0.1:{free_port()}"
