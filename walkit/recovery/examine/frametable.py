"""The frames of a log as rows and as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from walkit._arguments import refuse
from walkit.errors import MissingExtraError, StorageError
from walkit.format.frame import FrameHeader
from walkit.format.layout import CODEC_NAMES
from walkit.record import calendar_us
from walkit.recovery.survey import FrameSpan, SegmentSurvey
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage

if TYPE_CHECKING:
    import pandas as pd


class FrameRow(NamedTuple):
    """One frame as a row of `ScanReport.frames`. `intact` is None where its body was not read."""

    segment: str
    position: int
    first_lsn: int
    last_lsn: int
    records: int
    footprint: int
    body_bytes: int
    raw_bytes: int
    codec: str | None
    durable_position: int
    sealed_us: int
    epoch: int
    mark: bool
    intact: bool | None

    @classmethod
    def of(cls, segment: str, header: FrameHeader, intact: bool | None) -> FrameRow:
        """Return the row of a frame whose header can be trusted."""
        return cls(
            segment,
            header.position,
            header.first_lsn,
            header.last_lsn,
            header.records,
            header.footprint,
            header.body_stored_bytes,
            header.body_raw_bytes,
            CODEC_NAMES[header.codec],
            header.durable_position,
            header.sealed_us,
            header.epoch,
            header.is_marker,
            intact,
        )


def frame_rows(storage: Storage, spans: Sequence[FrameSpan], *, decode: bool = False) -> Iterator[FrameRow]:
    """Yield a row for every frame of the spans whose header can be trusted, in log order.

    Reads the files again, with `decode` every body too; a segment that has been trimmed since is left out.
    """
    for span in spans:
        try:
            file = storage.open(span.name, "read")
        except StorageError:
            continue
        rows: list[FrameRow] = []

        def seen(
            header: FrameHeader, intact: bool, span: FrameSpan = span, rows: list[FrameRow] = rows
        ) -> None:
            rows.append(FrameRow.of(span.name, header, intact if span.bodies or not intact else None))

        try:
            for _ in SegmentSurvey(file, span, decode=decode, seen=seen):
                yield from rows
                rows.clear()
            yield from rows
        finally:
            file.close()


class FrameRows:
    """Reads the rows of a report when it is called; a pickled copy reads them if its storage is one of files."""

    def __init__(self, storage: Storage | None, spans: Sequence[FrameSpan], *, decode: bool) -> None:
        self._storage, self._spans, self._decode = storage, spans, decode

    def __call__(self) -> Iterator[FrameRow]:
        """Return the rows. OptionsError in a copy whose storage was not one of files."""
        if self._storage is None:
            refuse("storage", None, "a copy of a report in another process reads frames from files only")
        return frame_rows(self._storage, self._spans, decode=self._decode)

    def __getstate__(self) -> dict[str, Any]:
        storage = self._storage if isinstance(self._storage, FileStorage) else None
        return {"_storage": storage, "_spans": self._spans, "_decode": self._decode}


def frames_to_pandas(rows: Iterator[FrameRow]) -> pd.DataFrame:
    """Return the rows as a DataFrame with the types of `ScanReport.frames`."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("dashboard", "pandas") from error
    frame = pd.DataFrame.from_records(list(rows), columns=list(FrameRow._fields))
    wholes = [n for n, t in FrameRow.__annotations__.items() if t in (int, "int") and n != "sealed_us"]
    frame = frame.astype(dict.fromkeys(wholes, "int64") | {"mark": "bool", "intact": "boolean"})
    times = frame["sealed_us"].map(calendar_us).astype("Int64").astype("datetime64[us]")
    frame["sealed_us"] = times.dt.tz_localize("UTC")
    return frame.rename(columns={"sealed_us": "sealed"})
