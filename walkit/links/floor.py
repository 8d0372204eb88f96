"""The space of a payload log: what is live in it, and what its owner may free.

A link is live while a record that can be read, or a snapshot beside the log, has it. Payloads have LSNs in the order of
their records, so of the log only the first link matters, and all that comes before it. A snapshot is in the order of
its keys, and is read whole, once.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import numpy as np
import pyarrow.compute as pc

from walkit._internal.arrow import pa
from walkit._internal.locks import WORK, marked
from walkit.errors import WalkitError
from walkit.format.file_names import lsn_of_name, snapshot_name
from walkit.format.manifest import Manifest
from walkit.links.writer import PayloadWriter
from walkit.log.parts import LogParts
from walkit.read.payloads import LINK, PayloadUsage, is_in_lineage
from walkit.read.view import View
from walkit.record import Link, is_link
from walkit.recovery.snapshot_reader import read_frames, read_header


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
    """Moves the floor of a log's payload log. Safe from any thread."""

    def __init__(self, parts: LogParts, writer: PayloadWriter) -> None:
        self._parts, self._writer = parts, writer
        # Held through one freeing, and guards the fields that follow. No lock of the commit path is taken under it.
        self._lock: Any = threading.RLock()
        self._from_lsn = 1
        """No record before this one has a link to a payload."""
        self._snapshots: dict[int, int | None] = {}
        """The oldest payload of each snapshot; None for one without links."""

    def free(self, *, saving: bool = False, counts: bool = False) -> None:
        """Free what is before the oldest live link. The log's own floor is durable. An error is an event.

        Nothing is freed while a snapshot is being written, which may have links that the log has no longer. `saving`
        says that the caller has written it, and holds `Trimmer.state_lock`; it frees then what others have left. With
        `counts` what is dead is counted, too.
        """
        state_lock = self._parts.trimmer.state_lock
        if not saving and not state_lock.acquire(blocking=False):
            return
        try:
            self._free()
            if counts:
                self.usage()
        except WalkitError as error:
            self._parts.events.emit("walkit.maintenance.fail", job="payloads", error=str(error))
        finally:
            if not saving:
                state_lock.release()

    def _acked_lsn(self) -> int:
        # Each view from now on has what is acknowledged now.
        with marked(WORK), self._parts.driver.lock:
            return self._parts.core.acked_lsn

    def _free(self) -> None:
        acked_lsn = self._acked_lsn()  # first: what comes later has a later payload
        with marked(WORK), self._lock:
            settled = self._writer.settled_lsn(acked_lsn)
            if self._parts.core.failure is not None:
                return  # the next opening shows which of the last records have survived
            oldest = self._oldest(acked_lsn)
            up_to_lsn, log = settled if oldest is None else min(settled, oldest - 1), self._writer.log
            if up_to_lsn >= log.first_lsn:
                self._parts.storage.sync_directory()  # a snapshot that was removed is not back after a power cut
                log.trim(up_to_lsn)

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
