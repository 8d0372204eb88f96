"""Access to the dashboard: for people on this machine, and elsewhere with a password.

The dashboard runs programs and writes files, so it is never shown by mistake. A server whose command line names an
address beyond loopback shows nothing without a password. `panel serve` without an address listens on all of them: then
a page is shown while each connection of the server comes from this machine. Sockets are checked, not headers, which a
client can forge.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from walkit.views.parts import pn, served_document

DESCRIPTORS = Path("/dev/fd")
GUEST = "guest"


class Sockets(NamedTuple):
    """The IP sockets of this process, as addresses in text."""

    listening: tuple[str, ...]
    """Where it takes connections."""
    peers: tuple[str, ...]
    """Peer addresses of its connections; "" if a peer is no longer known."""


def sockets_of_this_process() -> Sockets:
    """Return the addresses of every open socket that listens, and of the other ends of connections made to those."""
    listening: list[tuple[str, int]] = []
    connected: list[tuple[int, str]] = []
    for found in _open_sockets():
        with found:
            name = found.getsockname()
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.append((str(name[0]), int(name[1])))
                continue
            try:
                connected.append((int(name[1]), str(found.getpeername()[0])))
            except OSError:  # it has just gone: its kind is unknown
                connected.append((int(name[1]), ""))
    ports = {port for _, port in listening}
    return Sockets(
        tuple(address for address, _ in listening), tuple(peer for port, peer in connected if port in ports)
    )


def _open_sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each open stream socket over IP; the caller closes it."""
    for name in os.listdir(DESCRIPTORS):
        try:
            number = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        try:
            found = socket.socket(fileno=number)
        except OSError:  # no socket
            os.close(number)
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            yield found
        else:
            found.close()


def is_loopback(address: str) -> bool:
    """Whether an address in text reaches this machine alone; False for an invalid address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def asked_elsewhere(command: Sequence[str]) -> bool:
    """Whether a command line names an address to listen on that is not loopback."""
    for at, word in enumerate(command):
        name, given, value = word.partition("=")
        if name == "--address":
            wanted = value if given else (command[at + 1] if at + 1 < len(command) else "")
            return wanted != "localhost" and not is_loopback(wanted)
    return False


def why_refused(sockets: Sockets, command: Sequence[str], user: str | None) -> str | None:
    """Return why a page is not shown, as a sentence, or None. `user` has given a password."""
    if user and user != GUEST:
        return None
    elsewhere = [address for address in sockets.listening if not is_loopback(address)]
    if not elsewhere:
        return None
    if asked_elsewhere(command):
        return f"This server listens on {_listed(elsewhere)}, beyond this machine, and asks for no password."
    strangers = [peer or "an address that is not known" for peer in sockets.peers if not is_loopback(peer)]
    if strangers:
        return f"This server asks for no password, and {_listed(strangers)} is connected to it."
    return None


def _listed(addresses: Iterable[str]) -> str:
    found = sorted(set(addresses))
    return ", ".join(found[:3]) + (" and others" if len(found) > 3 else "")


def refusal() -> str | None:
    """Return why the served session may not see the dashboard, as a sentence, or None."""
    if served_document() is None:
        return None
    return why_refused(sockets_of_this_process(), sys.orig_argv, pn.state.user)


def refused_page(why: str) -> pn.Template:
    """Return a page with the reason and the remedy. It needs no script and no connection."""
    from importlib.resources import files

    here = files("walkit.views")
    made = pn.Template(here.joinpath("refused.html").read_text(encoding="utf-8"))
    made.add_variable("shell_css", here.joinpath("shell.css").read_text(encoding="utf-8"))
    made.add_variable("why", why)
    return made
