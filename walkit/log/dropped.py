"""Logs that are dropped without close(): they close themselves, with a warning unless the process is ending."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable

from walkit.commit.interrupts import uninterrupted
from walkit.errors import WalkitError
from walkit.log.engine import LogEngine

DROP_WAIT_S = 5.0

_exiting = threading.Event()


def close_dropped(engine: LogEngine) -> None:
    """Close a log whose object is gone."""
    if engine.closed:
        return
    end_dropped(engine)
    if not _exiting.is_set():
        engine.events.emit("walkit.log.drop", location=engine.storage.location)
        warnings.warn(
            f"the log at {engine.storage.location} was dropped without close(); it is closed now",
            ResourceWarning,
            stacklevel=2,
        )


def end_dropped(engine: LogEngine, then: Callable[[], object] | None = None) -> None:
    """Close an engine from a finaliser and do `then`.

    The collector may run a finaliser anywhere, also on a thread that holds a lock which closing needs, or in the midst
    of a commit. So another thread closes, and is waited for only where this one can do without: for a few seconds.
    """
    if _exiting.is_set():
        _close_quietly(engine, then)
        return
    closer = threading.Thread(target=_close_quietly, args=(engine, then), name="walkit-close")
    with uninterrupted():
        closer.start()
    if engine.driver.is_free() and not threading.current_thread().name.startswith("walkit-"):
        closer.join(DROP_WAIT_S)


def _close_quietly(engine: LogEngine, then: Callable[[], object] | None) -> None:
    try:
        engine.close()
    except WalkitError as error:
        engine.events.emit("walkit.log.poison", cause=repr(error), acked_lsn=engine.core.acked_lsn)
    if then is not None:
        then()


def watch_exit() -> None:
    """Let the finalisers, which run at exit too, know by then that nobody dropped anything.

    Called after each finaliser is made: the newest hook of `atexit` runs first, and theirs may be made with them.
    """
    atexit.unregister(_exiting.set)
    atexit.register(_exiting.set)
