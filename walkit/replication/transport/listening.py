"""The address that a primary listens at: off the loopback address it is refused, unless that was asked for."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from walkit.config import check_bool
from walkit.errors import OptionsError
from walkit.replication.transport.address import Address, parse_address, why_not_bound


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen: the host as it was given, what is bound for it, and the port (0: a free one)."""

    host: str
    bound: tuple[str, ...]
    port: int

    def bind(self, server: Any, credentials: Any = None) -> str:
        """Bind a gRPC server, with TLS where there are `credentials`; return HOST:PORT to connect to.

        OptionsError where none of the addresses can be had.
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
            why = why_not_bound(Address(self.host.strip("[]"), self.port)) or failure
            raise OptionsError(f"cannot listen at {wanted}: {why}", option="listen", wanted=wanted)
        return f"{self.host}:{port}"


def listen_address(
    listen: object, insecure: object, *, tls: bool = False, token: bool = False
) -> ListenAddress:
    """Return where to listen; OptionsError for what is no HOST:PORT.

    Off loopback it is refused too, unless there are TLS and a token, or `insecure` is True.

    A name is looked up here, and what it means here is bound: it cannot mean another address a moment later.
    """
    check_bool(insecure, "insecure")
    address = parse_address(listen, "listen", listening=True)
    host = f"[{address.host}]" if ":" in address.host else address.host
    if insecure:
        return ListenAddress(host, (host,), address.port)
    found = _addresses_of(host, listen)
    outside = [address for address in found if not ip_address(address).is_loopback]
    if outside and not (tls and token):
        meant = "" if outside[0] == host.strip("[]") else f" ({outside[0]})"
        lacks = "a token" if tls else "TLS" if token else "TLS and a token"
        raise OptionsError(
            f"listen={listen!r}{meant} is not the loopback address, and needs {lacks} there: give "
            "tls=ServerTLS(certificate=..., key=...) and token=... (walkit serve --tls-certificate FILE --tls-key FILE "
            "--token-file FILE), or insecure=True (--insecure) where the network itself can be trusted",
            option="listen",
            wanted=listen,
        )
    bound = tuple(f"[{a}]" if ":" in a else a for a in found)
    is_name = ":" not in host and any(c.isalpha() for c in host)
    # 127.1 is no address to everyone.
    return ListenAddress(host if is_name else bound[0], bound, address.port)


def _addresses_of(host: str, listen: object) -> list[str]:
    """Return the addresses of a host, those of IPv4 first."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
        raise OptionsError(
            f"listen={listen!r}: {host} is not known: {error}", option="listen", wanted=listen
        ) from error
    plain = {str(address[0]).partition("%")[0] for *_, address in found}
    return sorted(plain, key=lambda address: (":" in address, address))
