"""Time bounds of loads and streams: options `since` and `until` as LSNs of a log, by the clock of its writer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from walkit.errors import GapError
from walkit.read.record_count import lsn_at
from walkit.spark.object_log import lsn_at as object_lsn_at
from walkit.spark.object_log import object_end, seen_at
from walkit.storage.address import is_object_url

if TYPE_CHECKING:
    from datetime import datetime

    from walkit.spark.options import LoadOptions
    from walkit.storage.address import StorageOptions


def within_times(path: str, options: LoadOptions) -> LoadOptions:
    """Return the options with LSNs of the log at `path` instead of times; unchanged without times.

    A record has the time at which its frame was sealed, as in `walkit.lsn_at`: after `since`, and not after `until`.
    GapError if the log was trimmed and its oldest record is after `since`: others may have been, too. Raises the errors
    of `lsn_at`.
    """
    first_lsn, last_lsn = options.first_lsn, options.last_lsn
    if options.since is not None:
        first_lsn = first_lsn_since(path, options.since, options.storage_options)
    if options.until is not None:
        last_lsn, _ = _lsn_at(path, options.until, options.storage_options)
    return replace(options, first_lsn=first_lsn, last_lsn=last_lsn)


def _lsn_at(path: str, time: datetime, options: StorageOptions | None) -> tuple[int, int]:
    """Return the LSN that a log had at a time, and its oldest."""
    if not is_object_url(path):
        return lsn_at(path, time), seen_at(path).view.first_lsn
    view = object_end(path, options).now().view
    return object_lsn_at(view, time), view.first_lsn


def first_lsn_since(path: str, since: datetime, options: StorageOptions | None = None) -> int:
    """Return the LSN of the first record sealed after `since`, or the next LSN if nothing was sealed since.

    GapError as `within_times`; raises what `lsn_at` raises.
    """
    before, oldest = _lsn_at(path, since, options)
    if before < oldest and oldest > 1:
        error = GapError(oldest - 1, oldest)
        error.add_note(
            f"Records after {since.isoformat()} (option since) may have been trimmed. Option firstLsn "
            f"{oldest} starts with the oldest record."
        )
        raise error
    return before + 1
