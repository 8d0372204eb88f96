"""The space of a payload log: what is live in it, and what its owner may free.

A link is live while a record that can be read, or a snapshot beside the log, has it. Payloads have LSNs in the order of
their records, so of the log only the first link matters, and all that comes before it. A snapshot is in the order of
its keys, and is read whole, once.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import pyarrow.compute as pc

from walkit._internal.arrow import pa
from walkit._internal.locks import WORK, marked
from walkit.errors import WalkitError
from walkit.format.file_names import lsn_of_name, snapshot_name
from walkit.links.writer import PayloadWriter
from walkit.log.parts import LogParts
from walkit.read.payloads import LINK, PayloadUsage
from walkit.read.view import View
from walkit.record import Link
from walkit.recovery.snapshot_reader import read_frames, read_header


def links_in(batches: Iterator[pa.RecordBatch], log_id: int) -> Generator[tuple[int, Link]]:
    """Yield the LSN and the link of each record that links to a payload log."""
    for batch in batches:
        rows = batch.filter(pc.equal(batch.column("kind"), LINK))
        for lsn, value in zip(rows.column("lsn").to_pylist(), rows.column("value").to_pylist(), strict=True):
            link = Link.decode(value)
            if link.log_id == log_id:
                yield lsn, link


FEW = 256
"""Records of a batch where the first link is looked for."""


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

    def free(self, saving: bool) -> None:
        """Free what is before the oldest live link. The log's own floor is durable. An error is an event.

        Nothing is freed while a snapshot is being written, which may have links that the log has no longer. `saving`
        says that the caller has written it, and holds `Trimmer.state_lock`; it frees then what others have left.
        """
        state_lock = self._parts.trimmer.state_lock
        if not saving and not state_lock.acquire(blocking=False):
            return
        try:
            with marked(WORK), self._lock:
                self._free()
        except WalkitError as error:
            self._parts.events.emit("walkit.upkeep.fail", job="payloads", error=str(error))
        finally:
            if not saving:
                state_lock.release()

    def _free(self) -> None:
        settled = self._writer.settled_lsn()  # first: what comes later has a later payload
        if self._parts.core.failure is not None:
            return  # the next opening shows which of the last records have survived
        oldest = self._oldest()
        self._writer.log.trim(settled if oldest is None else min(settled, oldest - 1))

    def _oldest(self) -> int | None:
        """Return the LSN of the oldest live payload; None if no payload that is settled is live."""
        next_lsn = self._parts.core.written_lsn + 1
        view, oldest = self._parts.contents.view(), list[int]()
        first = max(view.first_lsn, self._from_lsn)
        # From the record that was first, too: a compaction may have dropped it.
        with closing(links_in(view.batches(first, records=FEW), self._writer.log_id)) as links:
            found = next(links, None)
        self._from_lsn = next_lsn if found is None else found[0]
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

    def _links_of(self, snapshot_lsn: int) -> Iterator[tuple[int, Link]]:
        with closing(self._parts.storage.open(snapshot_name(snapshot_lsn), "read")) as file:
            yield from links_in(read_frames(file, read_header(file)), self._writer.log_id)

    def usage(self) -> PayloadUsage:
        """Count what is live and dead in the payload log. Reads the log, its snapshots and the payload log's sizes."""
        view, log = self._parts.contents.view(), self._writer.log
        live = {
            link.lsn: link.length for _, link in links_in(view.batches(view.first_lsn), self._writer.log_id)
        }
        for lsn in self._standing(view):
            live.update((link.lsn, link.length) for _, link in self._links_of(lsn))
        payloads = log.parts.contents.view()
        sizes = dict[int, int]()
        for batch in payloads.batches(payloads.first_lsn):
            lengths = pc.binary_length(batch.column("value")).to_pylist()
            sizes.update(zip(batch.column("lsn").to_pylist(), lengths, strict=True))
        dead = [size for lsn, size in sizes.items() if lsn not in live]
        return PayloadUsage(payloads.first_lsn - 1, len(live), sum(live.values()), len(dead), sum(dead))
