"""The space of a payload log: what is live in it, and what its owner may free.

A link is live while a record that can be read, or a snapshot beside the log, has it. Payloads have LSNs in the order of
their records, so of the log only the first link matters, and all that comes before it. A snapshot is in the order of
its keys, and is read whole, once.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from itertools import chain

import numpy as np
import pyarrow.compute as pc

from walkit._internal.arrow import pa
from walkit._internal.locks import STATE, marked
from walkit.errors import GapError, LogClosedError, StorageError
from walkit.format.file_names import lsn_of_name, snapshot_name
from walkit.links.writer import PayloadWriter
from walkit.log.log_parts import LogParts
from walkit.read.payloads import LINK, PayloadUsage, is_in_lineage
from walkit.read.view import View
from walkit.record import Link, is_link
from walkit.recovery.snapshot_reader import read_frames, read_header
from walkit.segments.maintenance_worker import MaintenanceWorker

FEW = 256
"""Records of a batch where the first link is looked for."""
LIVE = np.dtype([("lsn", np.int64), ("length", np.int64)])


class PayloadFloor:
    """Moves the floor of a log's payload log, on a thread of its own. Safe from any thread.

    A device that does not answer holds up nothing else: a lock is held for a list of names only.
    """

    def __init__(self, parts: LogParts, writer: PayloadWriter) -> None:
        self._parts, self._writer = parts, writer
        self._worker = MaintenanceWorker("payloads", parts.events, parts.options.write_timeout_ms)
        self._worker.on_failure = parts.driver.poison
        self.wait_idle = self._worker.wait_idle
        self._ended = False
        """The log may have another writer by now: what was decided does not count."""
        # Of the worker's thread.
        self._from_lsn = 1
        """No record before this one has a link to a payload."""
        self._snapshots: dict[int, int | None] = {}
        """The oldest payload of each snapshot; None for one without links."""

    def free(self, *, counts: bool = False) -> None:
        """Free soon what is before the oldest live link, and with `counts` count what is dead then. Never waits.

        The log's own floor is durable. An error is an event.
        """
        self._worker.submit("retain", self._free)
        if counts:
            self._worker.submit("retain", self._count)

    def close(self) -> None:
        """Do the rest of the work, within `write_timeout_ms`: then a device that does not answer is left alone."""
        limit_ms = self._parts.options.write_timeout_ms
        with suppress(StorageError):
            self.wait_idle(None if limit_ms is None else limit_ms / 1000)
        self._worker.close(0)
        self._ended = True

    def _count(self) -> None:
        with suppress(GapError, LogClosedError):
            self.usage()

    def _free(self) -> None:
        up_to_lsn = 0
        with suppress(GapError):  # a trim or checkpoint that drops some calls `free` afterwards
            up_to_lsn = self._dead_lsn()
        if up_to_lsn < self._writer.log.first_lsn:
            return
        self._parts.storage.sync_directory()  # a snapshot that was removed is not back after a power cut
        if not self._ended:
            self._writer.log.trim(up_to_lsn)

    def _dead_lsn(self) -> int:
        """Return the LSN up to which nothing in the payload log is live: 0 if that is not known."""
        acked_lsn, settled_lsn = self._writer.settled()  # first: what comes later has a later payload
        if self._parts.core.failure is not None:
            return 0  # the next opening shows which of the last records have survived
        view, oldest = self._parts.contents.view(), list[int]()
        first = max(view.first_lsn, self._from_lsn)
        # From the record that was first, too: a compaction may have dropped it.
        with closing(self._links(view.batches(first, records=FEW))) as links:
            found = next(links, None)
        self._from_lsn = acked_lsn + 1 if found is None else found[0]
        if found is not None:
            oldest.append(found[1].lsn)
        # After the view: a snapshot that may have links that it has not is whole by now, and listed.
        with marked(STATE), self._parts.trimmer.state_lock:
            standing = self._standing(view)
        self._snapshots = {lsn: self._snapshots[lsn] for lsn in standing if lsn in self._snapshots}
        for lsn in standing:
            if lsn not in self._snapshots:
                lsns = [link.lsn for _, link in self._links_of(lsn)]
                self._snapshots[lsn] = min(lsns, default=None)
        oldest += [lsn for lsn in self._snapshots.values() if lsn is not None]
        return min([settled_lsn, *(lsn - 1 for lsn in oldest)])

    def _standing(self, view: View) -> list[int]:
        found = map(lsn_of_name, view.storage.names())
        return sorted(lsn for lsn in found if lsn is not None)

    def _links(
        self, batches: Iterator[pa.RecordBatch], *, counts: bool = False
    ) -> Generator[tuple[int, Link]]:
        """Yield the LSN and link of each record that links to the payload log, and whose value that log may have.

        A payload log that went back, to an older copy of it, has given the LSNs of lost values to others. The closing
        of the log ends a count.
        """
        payload_log = self._writer.log.parts.manifest_store.current
        for batch in batches:
            if counts and self._parts.lifetime.closed:
                raise LogClosedError(f"the log at {self._parts.storage.location} is closed")
            rows = batch.filter(pc.equal(batch.column("kind"), LINK))
            for lsn, value in zip(
                rows.column("lsn").to_pylist(), rows.column("value").to_pylist(), strict=True
            ):
                if is_link(value) and is_in_lineage(link := Link.decode(value), payload_log):
                    yield lsn, link

    def _links_of(self, snapshot_lsn: int, *, counts: bool = False) -> Generator[tuple[int, Link]]:
        try:
            file = self._parts.storage.open(snapshot_name(snapshot_lsn), "read")
        except StorageError as error:
            if error.errno == errno.ENOENT:  # a checkpoint has removed it
                raise GapError(snapshot_lsn, self._parts.contents.first_lsn) from error
            raise
        with closing(file):
            yield from self._links(read_frames(file, read_header(file)), counts=counts)

    def usage(self) -> PayloadUsage:
        """Count what is live and dead in the payload log. Reads the log and its snapshots: see `payload_usage`."""
        _, settled = self._writer.settled()
        view, log = self._parts.contents.view(), self._writer.log
        floor_lsn = log.first_lsn - 1
        parts = [self._links(view.batches(view.first_lsn), counts=True)]
        parts += (self._links_of(lsn, counts=True) for lsn in self._standing(view))
        live = np.unique(np.fromiter(((k.lsn, k.length) for _, k in chain(*parts)), LIVE))
        live = live[(live["lsn"] > floor_lsn) & (live["lsn"] <= settled)]
        live_bytes, dead = int(live["length"].sum()), settled - floor_lsn - len(live)
        dead_bytes = max(log.statistics().log_bytes - live_bytes, 0) if dead else 0
        self._parts.driver.counters.payload_dead_bytes = dead_bytes
        return PayloadUsage(floor_lsn, len(live), live_bytes, dead, dead_bytes)
