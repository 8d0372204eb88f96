"""Live views in a notebook's cell and on the dashboard: sources, a bounded history of them, and what is shown.

A source is a log that is open in this process (through its statistics), a child process (through its pipe) or a
recorded Run. Views only render. Importing this room without panel raises MissingExtraError, which names the extra.
"""

from __future__ import annotations

from walkit.log.wal import WriteAheadLog
from walkit.measure import Run
from walkit.store import Store
from walkit.views.compaction import CompactionView
from walkit.views.demo_store import StepReport
from walkit.views.history import History, Point
from walkit.views.live import LiveView, view_of_run
from walkit.views.page import Dashboard, served
from walkit.views.parts import in_notebook, pn, ready, served_document, tick
from walkit.views.recovery import RecoveryView
from walkit.views.session import KillReport, Session
from walkit.views.sources import ChildSource, LogSource, Reading, RunSource, Source

__all__ = [
    "ChildSource",
    "CompactionView",
    "Dashboard",
    "History",
    "KillReport",
    "LiveView",
    "LogSource",
    "Point",
    "Reading",
    "RecoveryView",
    "RunSource",
    "Session",
    "Source",
    "StepReport",
    "app",
    "dashboard",
    "live",
    "recorded",
]


def live(target: WriteAheadLog | Store) -> LiveView:
    """Return the live page of a log or Store that is open in this process, for the last line of a notebook's cell.

    It moves also while a later cell drives the log, until the log is closed; it does not keep the log open. Outside of
    a notebook and a served session it moves when its `refresh()` is called.
    """
    view = LiveView(
        LogSource(target if isinstance(target, WriteAheadLog) else target.log), in_cell=_prepare()
    )
    tick(view)
    return view


def recorded(run: Run) -> LiveView:
    """Return the same page of a recorded Run."""
    return view_of_run(run, in_cell=_prepare())


def _prepare() -> bool:
    """Say whether a view is for a notebook's cell, which needs nothing; set Panel up anywhere else."""
    if in_notebook() and served_document() is None:
        return True
    ready()
    return False


def dashboard() -> Dashboard:
    """Return the whole dashboard for a notebook's cell: writers in a child process, and killing them."""
    ready()
    page = Dashboard()
    tick(page)
    return page


def app() -> pn.template.BootstrapTemplate:
    """Return the dashboard as a page of its own, for the session that `panel serve` is serving."""
    ready()
    return pn.template.BootstrapTemplate(title="walkit", main=[served()])
