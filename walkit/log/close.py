"""The last part of closing a log: seal it, let go of the files, free the lock.

It is done on a thread of its own, so that who closes need not hang with the device, and so that Ctrl-C on the thread
that closes does not free the lock under a job of the upkeep thread. That thread frees it, when all is done: a manifest
that is still on its way to a slow disk must not land on that of another writer.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from walkit._interrupts import uninterrupted
from walkit.errors import StorageError
from walkit.log.holds import live_holds

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine

GRACE_S = 1.0
"""A second look at what seems to hang, for processes that were stopped."""


def finish(engine: LogEngine, ended: Callable[[], object]) -> None:
    """Seal what can be sealed, close the files and free the lock; then `ended()`. The commit path has been stopped."""
    try:
        poisoned = engine.core.failure is not None
        engine.segments.close(poisoned=poisoned, hung=engine.driver.hung)
        if not poisoned:
            engine.core.synced(engine.core.sync_begin())  # a seal is durable, with everything in it
        if engine.holds:
            with engine.events.held():
                engine.store.update(lambda m: m.next(holds=live_holds(engine, m)))
    finally:
        with engine.trimming:
            engine.store.close()
        ended()


def finish_in_time(engine: LogEngine, ended: Callable[[], object]) -> None:
    """Do `finish` on another thread, and wait for it as long as something moves within the time limit of the log.

    StorageError (ETIMEDOUT) where the device does not answer, and KeyboardInterrupt for an impatient caller: the other
    thread goes on, and frees the lock when all is done. At the end of the process it is done here.
    """
    done, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            finish(engine, ended)
        except BaseException as error:  # noqa: BLE001 - raised by who closes
            failed.append(error)
        finally:
            done.set()

    try:
        with uninterrupted():  # struck before the thread runs, the lock would never be freed
            threading.Thread(target=work, name="walkit-closing", daemon=True).start()
    except RuntimeError:  # the interpreter is ending, and starts no thread any more
        finish(engine, ended)
        return
    limit_ms = engine.options.write_timeout_ms
    if limit_ms is None:
        done.wait()
    while limit_ms is not None and not done.wait(limit_ms / 1000):
        steps = engine.segments.upkeep.steps
        if not done.wait(GRACE_S) and engine.segments.upkeep.steps == steps:
            raise StorageError(
                f"the device has not answered for {limit_ms / 1000:g} s (write_timeout_ms) while the log at "
                f"{engine.storage.location} was closed; its lock is freed when it does, and recovery seals the log",
                errno=errno.ETIMEDOUT,
            )
    if failed:
        raise failed[0]
