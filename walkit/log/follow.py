"""Following an open log: its records, and when to look for more."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Protocol

from walkit._internal.threads import WakeEvent
from walkit.errors import GapError
from walkit.log.live_log import EndWatcher
from walkit.log.log_parts import LogParts
from walkit.read.read_api import ReadApi, resolved
from walkit.record import Record


class Wakeable(EndWatcher, Protocol):
    """Is set if a log has news: a WakeEvent, or something that wakes an event loop."""

    def clear(self) -> None:
        """Forget the news until now; the caller looks at them after this call."""


def followed(
    parts: LogParts,
    log: ReadApi,
    wanted: int,
    wake: Wakeable,
) -> Generator[Record | None]:
    """Yield the records from LSN `wanted` on, and None after the newest one: `wake` is set if there may be more.

    See `WriteAheadLog.follow` for its end and its errors.
    """
    lifetime, core, driver, waker = parts.lifetime, parts.core, parts.driver, wake.set
    try:
        lifetime.end_watchers.add(wake)
        driver.delivery.add_waker(waker)
        while True:
            wake.clear()
            ended, failed = lifetime.ended, core.failure is not None and not core.in_flight
            newest = core.written_lsn
            view = parts.contents.view()
            if wanted < view.complete_from_lsn:
                raise GapError(wanted, view.complete_from_lsn)
            if wanted <= newest:
                yield from resolved(log, view.record_batches(wanted, newest))
                wanted = newest + 1
            elif failed:
                raise driver.refused()
            elif ended:
                return
            else:
                yield None
    finally:
        lifetime.end_watchers.discard(wake)
        driver.delivery.remove_waker(waker)


def as_they_come(steps: Generator[Record | None], wake: WakeEvent, timeout: float | None) -> Iterator[Record]:
    """Yield the records of `followed`; end if nothing comes for `timeout` seconds."""
    with closing(steps):
        for record in steps:
            if record is not None:
                yield record
            elif not wake.wait(timeout):
                return
