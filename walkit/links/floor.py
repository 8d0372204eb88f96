"""The space of a payload log: what is live in it, and what its owner may free.

A link is live while a record that can be read, or a snapshot beside the log, has it. Payloads have LSNs in the order of
their records, so of the log only the first link matters, and all that comes before it. A snapshot is in the order of
its keys, and is read whole, once.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow.compute as pc

from walkit._internal.arrow import pa
from walkit._internal.locks import STATE, WORK, marked
from walkit.errors import LogClosedError, StorageError
from walkit.format.file_names import lsn_of_name, snapshot_name
from walkit.format.manifest import Manifest
from walkit.links.writer import PayloadWriter
from walkit.log.log_parts import LogParts
from walkit.log.wal import WriteAheadLog
from walkit.read.payloads import LINK, PayloadUsage, is_in_lineage
from walkit.read.view import View
from walkit.record import Link, is_link
from walkit.recovery.snapshot_reader import read_frames, read_header
from walkit.segments.maintenance_worker import MaintenanceWorker


def links_in(batches: Iterator[pa.RecordBatch], payload_log: Manifest) -> Generator[tuple[int, Link]]:
    """Yield the LSN and the link of each record that links to a payload log, and whose value that log may have.

    A payload log that went back, to an older copy of it, has given the LSNs of lost values to others.
    """
    for batch in batches:
        rows = batch.filter(pc.equal(batch.column("kind"), LINK))
        for lsn, value in zip(rows.column("lsn").to_pylist(), rows.column("value").to_pylist(), strict=True):
            if is_link(value) and is_in_lineage(link := Link.decode(value), payload_log):
                yield lsn, link


FEW = 256
"""Records of a batch where the first link is looked for."""
LIVE = np.dtype([("lsn", np.int64), ("length", np.int64)])


class PayloadFloor:
    """Moves the floor of a log's payload log, on a thread of its own. Safe from any thread."""

    def __init__(self, parts: LogParts, writer: PayloadWriter) -> None:
        self._parts, self._writer = parts, writer
        self._worker = MaintenanceWorker("payloads", parts.events, parts.options.write_timeout_ms)
        self._worker.on_failure = parts.driver.poison
        self.wait_idle = self._worker.wait_idle
        self._is_queued = False
        # Held through one decision, and guards the fields that follow. The payload log's device is not used under it,
        # and no lock of the commit path is taken.
        self._lock: Any = threading.RLock()
        self._ended = False
        self._from_lsn = 1
        """No record before this one has a link to a payload."""
        self._snapshots: dict[int, int | None] = {}
        """The oldest payload of each snapshot; None for one without links."""

    def free(self, *, counts: bool = False) -> None:
        """Free soon what is before the oldest live link, and with `counts` count what is dead then. Never waits.

        The log's own floor is durable. An error is an event.
        """
        if not self._is_queued:
            self._is_queued = True
            self._worker.submit("retain", self._free)
        if counts:
            self._worker.submit("retain", self._count)

    def close(self) -> None:
        """Do the rest of the work, within `write_timeout_ms`: then a payload log that does not answer is left alone."""
        limit_ms = self._parts.options.write_timeout_ms
        with suppress(StorageError):
            self.wait_idle(None if limit_ms is None else limit_ms / 1000)
        self._worker.close(0)
        with marked(WORK), self._lock:
            self._ended = True

    def _count(self) -> None:
        self.usage()

    def _free(self) -> None:
        self._is_queued = False
        # No snapshot is being written here, which may have links that the log has no longer.
        with marked(STATE), self._parts.trimmer.state_lock:
            log, up_to_lsn = self._decide()
        # Now, with no lock held: a payload log that does not answer holds up no checkpoint.
        if up_to_lsn >= log.first_lsn:
            with suppress(LogClosedError):
                log.trim(up_to_lsn)

    def _acked_lsn(self) -> int:
        # Each view from now on has what is acknowledged now.
        with marked(WORK), self._parts.driver.lock:
            return self._parts.core.acked_lsn

    def _decide(self) -> tuple[WriteAheadLog, int]:
        """Return the payload log, and the LSN up to which nothing in it is live: 0 if that is not known."""
        acked_lsn = self._acked_lsn()  # first: what comes later has a later payload
        with marked(WORK), self._lock:
            log, settled = self._writer.log, self._writer.settled_lsn(acked_lsn)
            if self._ended or self._parts.core.failure is not None:
                return log, 0  # the next opening shows which of the last records have survived
            oldest = self._oldest(acked_lsn)
            up_to_lsn = settled if oldest is None else min(settled, oldest - 1)
            if up_to_lsn >= log.first_lsn:
                self._parts.storage.sync_directory()  # a snapshot that was removed is not back after a power cut
            return log, up_to_lsn

    def _oldest(self, acked_lsn: int) -> int | None:
        """Return the LSN of the oldest live payload; None if no payload that is settled is live."""
        view, oldest = self._parts.contents.view(), list[int]()
        first = max(view.first_lsn, self._from_lsn)
        # From the record that was first, too: a compaction may have dropped it.
        with closing(links_in(view.batches(first, records=FEW), self._manifest())) as links:
            found = next(links, None)
        self._from_lsn = acked_lsn + 1 if found is None else found[0]
        if found is not None:
            oldest.append(found[1].lsn)
        standing = self._standing(view)
        self._snapshots = {lsn: self._snapshots[lsn] for lsn in standing if lsn in self._snapshots}
        for lsn in standing:
            if lsn not in self._snapshots:
                lsns = [link.lsn for _, link in self._links_of(lsn)]
                self._snapshots[lsn] = min(lsns, default=None)
        oldest += [lsn for lsn in self._snapshots.values() if lsn is not None]
        return min(oldest, default=None)

    def _standing(self, view: View) -> list[int]:
        found = map(lsn_of_name, view.storage.names())
        return sorted(lsn for lsn in found if lsn is not None)

    def _links_of(self, snapshot_lsn: int) -> Generator[tuple[int, Link]]:
        with closing(self._parts.storage.open(snapshot_name(snapshot_lsn), "read")) as file:
            yield from links_in(read_frames(file, read_header(file)), self._manifest())

    def _manifest(self) -> Manifest:
        """Return the manifest of the payload log."""
        return self._writer.log.parts.manifest_store.current

    def usage(self) -> PayloadUsage:
        """Count what is live and dead in the payload log. Reads the log and its snapshots."""
        acked_lsn = self._acked_lsn()
        with marked(WORK), self._lock:
            view, log = self._parts.contents.view(), self._writer.log
            floor_lsn, settled = log.first_lsn - 1, self._writer.settled_lsn(acked_lsn)
            parts = [links_in(view.batches(view.first_lsn), self._manifest())]
            parts += map(self._links_of, self._standing(view))
            live = np.unique(np.fromiter(((k.lsn, k.length) for _, k in chain(*parts)), LIVE))
            live = live[(live["lsn"] > floor_lsn) & (live["lsn"] <= settled)]
            live_bytes, dead = int(live["length"].sum()), settled - floor_lsn - len(live)
            dead_bytes = max(log.statistics().log_bytes - live_bytes, 0) if dead else 0
            self._parts.driver.counters.payload_dead_bytes = dead_bytes
            return PayloadUsage(floor_lsn, len(live), live_bytes, dead, dead_bytes)
