"""Reading many small frames fast: rows of them are checked and taken apart together, to read a log whole.

The same records as `LogView.batches` gives, and the same errors; batches are of other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from walkit._internal.arrow import pa
from walkit.errors import WalkitError
from walkit.format.batch_builder import BatchBuilder
from walkit.format.batch_verify import VerifiedFrames
from walkit.format.frame import FrameHeader, decode_frame
from walkit.read.view import LogView, View

LARGE_BYTES = 256 << 10
"""Frames of so many bytes are read one by one: rows save little, and a frame that fills a batch is not copied."""


def row_batches(
    view: View, first_lsn: int, last_lsn: int, *, records: int, whole_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of RECORD_SCHEMA in LSN order, of so many records or bytes, or of one read.

    Bounds are inclusive; no batch has as many as twice `records`. Records before a damage are yielded before the damage
    is raised. A view without segments has no rows, and gives its own batches.
    """
    if not isinstance(view, LogView):
        yield from view.batches(first_lsn, last_lsn, records=records, whole_bytes=whole_bytes)
        return
    rows = FrameRows(
        first_lsn, last_lsn, BatchBuilder(first_lsn, last_lsn, records=records, whole_bytes=whole_bytes)
    )
    try:
        for span in view.spans:
            if span.last_lsn is not None and span.last_lsn < first_lsn:
                continue
            if span.record.first_lsn > last_lsn or rows.last_lsn >= last_lsn:
                break
            row_seen = None if rows.large else rows.see
            with closing(view.span_frames(span, first_lsn, last_lsn, row_seen=row_seen)) as frames:
                for found in frames:
                    if found is not None:
                        rows.see_one(*found, copied=row_seen is not None)
                    if rows.builder.full:
                        yield from rows.builder.batches()
                    if rows.last_lsn >= last_lsn:
                        break
    except WalkitError:
        yield from rows.builder.batches()
        raise
    yield from rows.builder.batches()


class FrameRows:
    """The rows that were read, and not given out yet. Shares nothing with the memory that frames are read into.

    `see` takes the rows of a walk that finds them (`row_seen`), `see_one` a yielded frame.
    """

    def __init__(self, first_lsn: int, last_lsn: int, builder: BatchBuilder) -> None:
        self._first_lsn, self._last_lsn = first_lsn, last_lsn
        self.builder = builder
        self.last_lsn = 0
        self.large = False
        """Whether the frames that were last seen are large."""

    def see(self, row: VerifiedFrames) -> None:
        """Take the frames of a row; those before a malformed one, whose error is raised."""
        last_lsn = int(row.last_lsns[-1])
        if last_lsn >= self._first_lsn:
            for first_lsn, columns in row.columns(self._last_lsn):
                self.builder.add(first_lsn, columns, len(columns.key_bytes) + len(columns.value_bytes))
        self.last_lsn = max(self.last_lsn, last_lsn)
        self.large = bool(row.heads["footprint"].mean() >= LARGE_BYTES)

    def see_one(self, header: FrameHeader, frame: memoryview, *, copied: bool) -> None:
        """Take a frame that is in no row."""
        if header.records and header.last_lsn >= self._first_lsn and header.first_lsn <= self._last_lsn:
            decoded = decode_frame(header, memoryview(bytes(frame)) if copied else frame)
            self.builder.add(header.first_lsn, decoded, header.body_raw_bytes)
        self.last_lsn = max(self.last_lsn, header.last_lsn)
        self.large = header.footprint >= LARGE_BYTES
