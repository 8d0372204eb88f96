"""The index of a sealed segment: the positions of its frames, every 64 KiB or so (FORMAT.md F-10).

It is derived and never evidence: `decode_index` returns None for anything but the index of the segment that
is asked for, and the place that it names is verified as a frame before anything is read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit.format.checksum import crc32c
from walkit.format.file_names import INDEX_SUFFIX
from walkit.format.layout import (
    FORMAT_VERSION,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_SEGMENT_BYTES_MIN,
    INDEX_STEP_BYTES,
)
from walkit.format.manifest import SegmentRecord, SegmentState

Numbers: TypeAlias = npt.NDArray[np.uint64]
_CRC_OFFSET = INDEX_HEADER.size - 4


class IndexEntry(NamedTuple):
    """A frame that begins at `position` with `first_lsn`, with `records` records before it in the segment."""

    position: int
    first_lsn: int
    records: int


class IndexIdentity(NamedTuple):
    """Which segment an index is of: every fact that would differ if the segment were another, or ended elsewhere."""

    log_id: int
    number: int
    epoch: int
    start_position: int
    end_position: int
    first_lsn: int
    last_lsn: int
    records: int
    end_chain: int

    @classmethod
    def of(cls, log_id: int, record: SegmentRecord) -> IndexIdentity:
        """Return the identity of a sealed segment as the manifest has it."""
        return cls(
            log_id,
            record.number,
            record.epoch,
            record.start_position,
            record.end_position,
            record.first_lsn,
            record.last_lsn,
            record.records,
            record.end_chain,
        )


class SegmentIndex(NamedTuple):
    """The entries of an index as columns; positions grow, LSNs and counts of records do not fall."""

    positions: Numbers
    first_lsns: Numbers
    records: Numbers

    def entry(self, at: int) -> IndexEntry:
        """Return one entry."""
        return IndexEntry(int(self.positions[at]), int(self.first_lsns[at]), int(self.records[at]))

    def before(self, lsn: int) -> IndexEntry | None:
        """Return the last noted frame that begins at or before an LSN; None if the segment begins after it."""
        at = int(np.searchsorted(self.first_lsns, np.uint64(lsn), side="right")) - 1
        return self.entry(at) if at >= 0 else None

    def position_after(self, lsn: int) -> int | None:
        """Return the start of the first noted frame with all records after an LSN; None without one."""
        at = int(np.searchsorted(self.first_lsns, np.uint64(lsn), side="right"))
        return int(self.positions[at]) if at < len(self.positions) else None


def index_name(segment_name: str) -> str:
    """Return the file name of a segment's index."""
    return segment_name + INDEX_SUFFIX


def has_index(record: SegmentRecord) -> bool:
    """Say whether a segment may have an index: it is sealed, and large enough for one."""
    return record.state is SegmentState.SEALED and record.size_bytes >= INDEX_SEGMENT_BYTES_MIN


def index_bytes_max(record: SegmentRecord) -> int:
    """Return the size limit of a segment's index in bytes; a larger file is not an index, and is not read."""
    return INDEX_HEADER.size + (record.size_bytes // INDEX_STEP_BYTES + 1) * INDEX_ENTRY_BYTES


def encode_index(identity: IndexIdentity, entries: Sequence[IndexEntry]) -> bytes:
    """Return the bytes of an index file: header, then positions, first LSNs and counts of records, column by column."""
    columns = np.array(entries, "<u8").reshape(len(entries), 3).T.tobytes()
    *facts, end_chain = identity
    head = INDEX_HEADER.pack(
        INDEX_MAGIC, FORMAT_VERSION, INDEX_HEADER.size, len(entries), *facts, end_chain, 0
    )[:_CRC_OFFSET]
    return head + crc32c(columns, crc32c(head)).to_bytes(4, "little") + columns


def decode_index(data: bytes, identity: IndexIdentity) -> SegmentIndex | None:
    """Return the index of this segment; None if the bytes are damaged, cut short, newer or of another segment."""
    if len(data) < INDEX_HEADER.size:
        return None
    magic, version, header_bytes, count, *facts, crc = INDEX_HEADER.unpack_from(data)
    columns = data[INDEX_HEADER.size :]
    if (magic, version, header_bytes) != (INDEX_MAGIC, FORMAT_VERSION, INDEX_HEADER.size):
        return None
    if len(columns) != count * INDEX_ENTRY_BYTES or not count:
        return None
    if crc32c(columns, crc32c(data[:_CRC_OFFSET])) != crc or tuple(facts) != tuple(identity):
        return None
    positions, first_lsns, records = np.frombuffer(columns, "<u8").reshape(3, count)
    return SegmentIndex(positions, first_lsns, records) if _can_be(positions, first_lsns, identity) else None


def _can_be(positions: Numbers, first_lsns: Numbers, identity: IndexIdentity) -> bool:
    """Check entries against the segment: a right checksum does not prove that they are right."""
    steps: Any = np.diff(positions.astype(np.int64))
    lsns: Any = np.diff(first_lsns.astype(np.int64))
    return bool(
        int(positions[0]) == identity.start_position
        and int(positions[-1]) < identity.end_position
        and int(first_lsns[0]) == identity.first_lsn
        and int(first_lsns[-1]) <= identity.last_lsn + 1
        and (steps > 0).all()
        and (lsns >= 0).all()
    )
