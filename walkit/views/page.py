"""The dashboard: which pages it has, who may see it, and how a served session begins and ends."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from walkit.storage.address import FILES, is_object_url
from walkit.views.base import pn, ready, served_document, tick
from walkit.views.opened_paths import Given, given
from walkit.views.page_compaction import CompactionPage
from walkit.views.page_crash_lab import CrashLabPage
from walkit.views.page_inspector import InspectorPage
from walkit.views.page_live import LivePage
from walkit.views.page_objects import ObjectsPage
from walkit.views.page_recovery import RecoveryPage
from walkit.views.page_replication import ReplicationPage
from walkit.views.page_runs import RunsPage
from walkit.views.page_states import StatesPage
from walkit.views.shell import Pace, PageKind, Shell, template_of
from walkit.views.workspace import DataRoot, Workspace

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


def listens_elsewhere(command: Sequence[str]) -> bool:
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
    if listens_elsewhere(command):
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


def refused_page(detail: str) -> pn.Template:
    """Return a page with the reason and the remedy. It needs no script and no connection."""
    from importlib.resources import files

    here = files("walkit.views")
    made = pn.Template(here.joinpath("refused.html").read_text(encoding="utf-8"))
    made.add_variable("shell_css", here.joinpath("shell.css").read_text(encoding="utf-8"))
    made.add_variable("detail", detail)
    return made


PAGES = (
    PageKind("live", "Live", LivePage),
    PageKind("recovery", "Recovery", RecoveryPage),
    PageKind("crash-lab", "Crash lab", CrashLabPage),
    PageKind("replication", "Replication", ReplicationPage),
    PageKind("compaction", "Compaction", CompactionPage),
    PageKind("objects", "Object storage", ObjectsPage),
    PageKind("inspector", "Inspector", InspectorPage),
    PageKind("states", "States", StatesPage),
    PageKind("runs", "Runs", RunsPage),
)


def make_shell(*, root: str | os.PathLike[str] = ".", shown: Iterable[Given] = ()) -> Shell:
    """Return the dashboard with a session of its own.

    The paths in `shown` come from the person who starts the server: the Inspector opens on the first log, and the page
    of the first path is shown first. Anything else that pages read by path lies below `root`.
    """
    named = tuple(shown)
    logs = tuple(g.path if is_object_url(g.path) else Path(g.path) for g in named if g.kind == "log")
    runs = tuple(Path(g.path) for g in named if g.kind == "run")
    also = [g.path.removeprefix(FILES) for g in named]
    workspace = Workspace(DataRoot(root, also=also), logs=logs, runs=runs)
    shown_first = {"log": "inspector", "run": "runs"}[named[0].kind] if named else PAGES[0].slug
    return Shell(workspace, PAGES, first=shown_first)


def app(paths: Iterable[str] = ()) -> pn.Template:
    """Return the dashboard as a page of its own, for the session that is being served; it opens on `paths`.

    A path is the folder of a log, which is only read, or the file of a saved Run; see `given` for its errors. Beyond
    this machine the dashboard is shown to those who gave a password; others see a page that says how.
    """
    ready()
    detail = refusal()
    if detail is not None:
        return refused_page(detail)
    return served(make_shell(shown=given(paths)))


def served(shell: Shell) -> pn.Template:
    """Return the page of the session that is being served, refreshed while it lives and closed with it."""
    asked = [
        (name, value.decode("utf-8", "replace"))
        for name, values in pn.state.session_args.items()
        for value in values
    ]
    shell.read_url(urlencode(asked))
    document = served_document()
    assert document is not None, "a session is served"
    pace = Pace(shell, document)
    template = template_of(shell, pace)
    pn.state.onload(lambda: tick(pace))

    def ended(_: Any) -> None:
        # Ending a session waits for its work; the server's loop must not.
        threading.Thread(target=shell.close, name="walkit-session-end").start()

    pn.state.on_session_destroyed(ended)
    return template
