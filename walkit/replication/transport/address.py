"""Addresses: HOST:PORT, judged before gRPC sees them, which takes port 99999 for 34463 and other texts for paths."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import NamedTuple

from walkit.errors import OptionsError

PORT_MAX = 65_535
HOST_BYTES_MAX = 253
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


class Address(NamedTuple):
    """A host as written in an address, an IPv6 one without its brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: object, option: str, *, listening: bool = False) -> Address:
    """Return the address; OptionsError, with what is wrong in words, where it is none. Looks no name up.

    Port 0, a free one, is only for `listening`.
    """
    wrong = "an address is HOST:PORT, like 127.0.0.1:7070 or [::1]:7070"
    if not isinstance(text, str):
        raise _refused(text, option, wrong)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port:
        raise _refused(text, option, wrong)
    if not (port.isascii() and port.isdecimal()):
        raise _refused(text, option, f"the port {port!r} is no number")
    low = 0 if listening else 1
    if not low <= int(port[:20]) <= PORT_MAX:
        raise _refused(text, option, f"a port is from {low} to {PORT_MAX}")
    return Address(_host_of(host, text, option), int(port))


def why_not_bound(address: Address) -> str:
    """Return what the system says to a socket at this address; "" where it takes one."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _host_of(host: str, text: str, option: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise _refused(text, option, f"{host[1:-1]!r} in brackets is no IPv6 address") from None
        return host[1:-1]
    if ":" in host:
        raise _refused(text, option, "an IPv6 address is written in brackets, like [::1]:7070")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise _refused(text, option, f"{host!r} is no IPv4 address") from None
    elif len(host) > HOST_BYTES_MAX or not all(map(_LABEL.fullmatch, host.removesuffix(".").split("."))):
        raise _refused(text, option, f"{host!r} is no name of a host")
    return host


def _refused(text: object, option: str, why: str) -> OptionsError:
    return OptionsError(f"{option}={text!r}: {why}", option=option, wanted=text)
