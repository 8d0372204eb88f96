"""Addresses: HOST:PORT, checked before gRPC sees them, which takes port 99999 for 34463 and other texts for paths.

The address that a primary listens at is refused off the loopback address, unless that was asked for.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, NamedTuple

from walkit._internal.arguments import check_bool, refuse

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
    """Return the address; OptionsError, with the fault in words, if it is invalid. Looks no name up.

    Port 0, a free one, is only for `listening`.
    """
    wrong = "an address is HOST:PORT, like 127.0.0.1:7070 or [::1]:7070"
    if not isinstance(text, str):
        refuse(option, text, wrong)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port:
        refuse(option, text, wrong)
    if not (port.isascii() and port.isdecimal()):
        refuse(option, text, f"the port {port!r} is not a number")
    low = 0 if listening else 1
    if not low <= int(port[:20]) <= PORT_MAX:
        refuse(option, text, f"a port is from {low} to {PORT_MAX}")
    return Address(_host_of(host, text, option), int(port))


def bind_failure(address: Address) -> str:
    """Return the system's error for a socket at this address; "" if it takes one."""
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
            refuse(option, text, f"{host[1:-1]!r} in brackets is not an IPv6 address")
        return host[1:-1]
    if ":" in host:
        refuse(option, text, "an IPv6 address is written in brackets, like [::1]:7070")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            refuse(option, text, f"{host!r} is not an IPv4 address")
    elif len(host) > HOST_BYTES_MAX or not all(map(_LABEL.fullmatch, host.removesuffix(".").split("."))):
        refuse(option, text, f"{host!r} is not a host name")
    return host


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen: the host as it was given, its bound addresses, and the port (0: a free one)."""

    host: str
    bound: tuple[str, ...]
    port: int

    def bind(self, server: Any, credentials: Any = None) -> str:
        """Bind a gRPC server, with TLS if `credentials` are given; return HOST:PORT to connect to.

        OptionsError if none of the addresses can be bound.
        """
        port, taken, failure = self.port, False, ""
        for host in self.bound:
            try:
                place = f"{host}:{port}"
                if credentials is None:
                    port, taken = server.add_insecure_port(place), True
                else:
                    port, taken = server.add_secure_port(place, credentials), True
            except RuntimeError as error:
                failure = str(error)
        if not taken:
            wanted = f"{self.host}:{self.port}"
            failure_text = bind_failure(Address(self.host.strip("[]"), self.port)) or failure
            refuse("listen", wanted, f"this machine cannot listen there: {failure_text}")
        return f"{self.host}:{port}"


def listen_address(
    listen: object, insecure: object, *, tls: bool = False, token: bool = False
) -> ListenAddress:
    """Return the address to listen on; OptionsError for an invalid HOST:PORT.

    Off loopback it is refused too, unless there are TLS and a token, or `insecure` is True.

    A name is looked up here, and the found addresses are bound: a later lookup cannot change them.
    """
    check_bool(insecure, "insecure")
    address = parse_address(listen, "listen", listening=True)
    host = f"[{address.host}]" if ":" in address.host else address.host
    if insecure:
        return ListenAddress(host, (host,), address.port)
    found = _addresses_of(host, listen)
    outside = [address for address in found if not ip_address(address).is_loopback]
    if outside and not (tls and token):
        lacks = "a token" if tls else "TLS" if token else "TLS and a token"
        given = (
            "tls=ServerTLS(certificate=..., key=...) and token=... (walkit serve --tls-certificate FILE --tls-key FILE "
            "--token-file FILE), or insecure=True (--insecure) in a trusted network"
        )
        refuse("listen", listen, f"{outside[0]} is not a loopback address, and needs {lacks}: give {given}")
    bound = tuple(f"[{a}]" if ":" in a else a for a in found)
    is_name = ":" not in host and any(c.isalpha() for c in host)
    # 127.1 is not an address on every system.
    return ListenAddress(host if is_name else bound[0], bound, address.port)


def _addresses_of(host: str, listen: object) -> list[str]:
    """Return the addresses of a host, those of IPv4 first."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
        refuse("listen", listen, f"{host} is not known: {error}", cause=error)
    plain = {str(address[0]).partition("%")[0] for *_, address in found}
    return sorted(plain, key=lambda address: (":" in address, address))
