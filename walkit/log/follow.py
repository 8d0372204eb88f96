"""Following an open log: its records, and when to look for more."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Protocol

from walkit._internal.threads import Bell
from walkit.errors import GapError
from walkit.log.live_log import EndWatcher
from walkit.log.parts import LogParts
from walkit.record import Record


class Ringable(EndWatcher, Protocol):
    """Rings if a log has news: a Bell, or something that wakes an event loop."""

    def clear(self) -> None:
        """Forget the news until now; the caller looks at them after this call."""


def followed(parts: LogParts, wanted: int, bell: Ringable) -> Generator[Record | None]:
    """Yield the records from LSN `wanted` on, and None after the newest one: the bell rings if there may be more.

    See `WriteAheadLog.follow` for its end and its errors.
    """
    lifetime, core, driver, ring = parts.lifetime, parts.core, parts.driver, bell.set
    try:
        lifetime.end_watchers.add(bell)
        driver.delivery.add_bell(ring)
        while True:
            bell.clear()
            ended, failed = lifetime.ended, core.failure is not None and not core.in_flight
            newest = core.written_lsn
            view = parts.contents.view()
            if wanted < view.complete_from_lsn:
                raise GapError(wanted, view.complete_from_lsn)
            if wanted <= newest:
                yield from view.records(wanted, newest)
                wanted = newest + 1
            elif failed:
                raise driver.refused()
            elif ended:
                return
            else:
                yield None
    finally:
        lifetime.end_watchers.discard(bell)
        driver.delivery.remove_bell(ring)


def rung(steps: Generator[Record | None], bell: Bell, timeout: float | None) -> Iterator[Record]:
    """Yield the records of `followed`; end if the bell does not ring for `timeout` seconds."""
    with closing(steps):
        for record in steps:
            if record is not None:
                yield record
            elif not bell.wait(timeout):
                return
