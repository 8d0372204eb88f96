"""Live views in a notebook's cell and on the dashboard: sources, a bounded history of them, and the views.

A source is a log that is open in this process (through its statistics), a child process (through its pipe) or a
recorded Run. Views only render. Importing this room without panel raises MissingExtraError, which names the extra.
"""

from __future__ import annotations

from walkit.log.wal import WriteAheadLog
from walkit.measure import Run
from walkit.store import Store
from walkit.views.base import in_notebook, ready, served_document, tick
from walkit.views.fault_lab import FaultReport
from walkit.views.history import History, Point
from walkit.views.live import LiveView
from walkit.views.opened_paths import Given, given
from walkit.views.page import app, make_shell
from walkit.views.page_compaction import CompactionView
from walkit.views.page_recovery import RecoveryView
from walkit.views.serving import serve
from walkit.views.session import Session, StepReport
from walkit.views.shell import Shell
from walkit.views.sources import ChildSource, LogSource, Reading, RunSource, Source

__all__ = [
    "ChildSource",
    "CompactionView",
    "FaultReport",
    "Given",
    "History",
    "LiveView",
    "LogSource",
    "Point",
    "Reading",
    "RecoveryView",
    "RunSource",
    "Session",
    "Shell",
    "Source",
    "StepReport",
    "app",
    "dashboard",
    "given",
    "live",
    "recorded",
    "serve",
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
    return LiveView(RunSource(run), in_cell=_prepare())


def _prepare() -> bool:
    """Return whether a view is for a notebook's cell, which needs nothing; set Panel up anywhere else."""
    if in_notebook() and served_document() is None:
        return True
    ready()
    return False


def dashboard() -> Shell:
    """Return the whole dashboard for a notebook's cell."""
    ready()
    shell = make_shell()
    tick(shell)
    return shell
