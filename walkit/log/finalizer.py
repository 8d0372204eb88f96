"""Logs that are dropped without close(): they close themselves, with a warning unless the process is ending."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable

from walkit._interrupts import uninterrupted
from walkit._locks import WORK, holds
from walkit._threads import Latch, LogThread, on_log_thread
from walkit.errors import WalkitError
from walkit.events import EventSink
from walkit.log.resources import LogResources

DROP_WAIT_S = 5.0

_exiting = Latch()


def close_dropped(resources: LogResources) -> None:
    """Close a log whose object is gone."""
    if resources.parts.lifetime.closed:
        return
    end_dropped(resources)
    parts = resources.parts
    report_dropped(f"the log at {parts.storage.location}", parts.events, parts.storage.location)


def report_dropped(what: str, events: EventSink, location: str, *, ending: str = "close") -> None:
    """Warn that nothing called the method `ending` of what was dropped; silent where the process is ending."""
    if _exiting.is_set():
        return
    events.emit("walkit.log.drop", location=location)
    done = {"close": "closed", "stop": "stopped"}[ending]
    warnings.warn(f"{what} was dropped without {ending}(); it is {done} now", ResourceWarning, stacklevel=3)


def end_dropped(resources: LogResources, then: Callable[[], object] | None = None) -> None:
    """Close a log from a finaliser and do `then`."""
    run_for_dropped(lambda: _close_quietly(resources, then), resources.parts.driver.is_free)


def run_for_dropped(work: Callable[[], object], may_wait: Callable[[], bool] = lambda: True) -> None:
    """Have another thread do what a finaliser has to do; raises nothing that `work` does not raise at the end.

    The collector may run a finaliser anywhere, also on a thread that holds a lock which closing needs, or in the midst
    of a commit. So another thread closes, and is waited for only where this one can do without: for a few seconds, not
    on a thread of walkit's own, and where `may_wait` says so. Where the process is ending it is done here.
    """
    if _exiting.is_set():
        work()
        return
    closer = LogThread(target=work, name="walkit-close")
    with uninterrupted():
        closer.start()
    if not on_log_thread() and not holds(WORK) and may_wait():
        closer.join(DROP_WAIT_S)


def _close_quietly(resources: LogResources, then: Callable[[], object] | None) -> None:
    try:
        resources.close()
    except WalkitError as error:
        resources.parts.events.emit(
            "walkit.log.poison", cause=repr(error), acked_lsn=resources.parts.core.acked_lsn
        )
    if then is not None:
        then()


def watch_exit() -> None:
    """Let the finalisers, which run at exit too, know by then that nothing was dropped.

    Called after each finaliser is made: the newest hook of `atexit` runs first, and theirs may be made with them.
    """
    atexit.unregister(_exiting.set)
    atexit.register(_exiting.set)
