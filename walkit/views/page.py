"""The dashboard: which pages it has, and how a served session begins and ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from walkit.storage.address import FILES, is_object_url
from walkit.views.access import refusal, refused_page
from walkit.views.given import Given, given
from walkit.views.page_compaction import CompactionPage
from walkit.views.page_crash_lab import CrashLabPage
from walkit.views.page_inspector import InspectorPage
from walkit.views.page_live import LivePage
from walkit.views.page_objects import ObjectsPage
from walkit.views.page_recovery import RecoveryPage
from walkit.views.page_replication import ReplicationPage
from walkit.views.page_runs import RunsPage
from walkit.views.page_states import StatesPage
from walkit.views.parts import pn, ready, served_document, tick
from walkit.views.shell import Pace, PageKind, Shell, template_of
from walkit.views.workspace import DataRoot, Workspace

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
    why = refusal()
    if why is not None:
        return refused_page(why)
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
