"""The places of the records that a diff names: the frame and its segment, or the reason that a record is gone.

A worker looks the LSNs of a batch up in the headers of frames, of those segments alone that may hold one of them; no
body is read. The manifest is that of the moment of the look-up: what was compacted since `load()` is found where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField

from walkit._internal.arguments import refuse
from walkit.errors import GapError
from walkit.format.layout import SegmentFlag
from walkit.read.reader import view_of
from walkit.read.view import LogView
from walkit.spark.facts import LogFacts
from walkit.storage.address import is_object_url, storage_at

FRAME, COMPACTED, SNAPSHOT, DROPPED, OBJECT = "frame", "compacted", "snapshot", "dropped", "object"
"""The record is in a frame as it was written; in one that compaction made; in a snapshot alone; or nowhere.

A record of a log on object storage has `OBJECT` alone: to find its frame costs requests.
"""

LOOK_UPS_MAX = 3
"""A look-up starts at most so many times, each time after a trim or compaction during it."""

NUMBERS = ("segment", "position", "frame_lsn", "from_lsn", "to_lsn")
"""Columns of a side after `source`, all int64."""

Numbers = npt.NDArray[np.int64]


def cause_fields(side: str) -> list[StructField]:
    """Return the columns that a diff has of the place of one side's record."""
    return [
        StructField(f"{side}_source", StringType()),
        *(StructField(f"{side}_{name}", LongType()) for name in NUMBERS),
    ]


@dataclass(frozen=True, slots=True)
class SideLog:
    """The log that one side of a diff was loaded from, and the last LSN that counts. Picklable."""

    facts: LogFacts
    at_lsn: int


def with_causes(found: pa.Table, left: SideLog, right: SideLog) -> pa.Table:
    """Return the rows of a diff with the columns of `cause_fields` for both sides."""
    for name, side, other in (("left", left, right), ("right", right, left)):
        lsns, others = found[f"{name}_lsn"], found["right_lsn" if name == "left" else "left_lsn"]
        columns = _causes(side, other, _numbers(lsns), _numbers(others))
        for column, values in columns.items():
            found = found.append_column(f"{name}_{column}", values)
    return found


def _numbers(column: pa.ChunkedArray) -> Numbers:
    """Return LSNs as numbers, 0 for null."""
    return np.asarray(column.fill_null(0).to_numpy(), np.int64)


def _causes(side: SideLog, other: SideLog, lsns: Numbers, other_lsns: Numbers) -> dict[str, pa.Array]:
    sources = np.full(len(lsns), None, object)
    numbers = {name: np.full(len(lsns), -1, np.int64) for name in NUMBERS}
    here = lsns > 0
    in_snapshot = here & (lsns <= side.facts.snapshot_lsn)
    sources[in_snapshot] = SNAPSHOT
    wanted = here & ~in_snapshot
    if is_object_url(side.facts.path):
        sources[wanted] = OBJECT
        wanted = here & False
    found = _places(side.facts, np.unique(lsns[wanted]))
    at = np.searchsorted(found.lsns, lsns[wanted])
    sources[wanted] = found.sources[at]
    for name in ("segment", "position", "frame_lsn"):
        numbers[name][wanted] = found.numbers[name][at]
    # The log was trimmed since it was loaded: where the record was is known, and that it is gone.
    gone = wanted & (sources == DROPPED)
    numbers["from_lsn"][gone] = numbers["to_lsn"][gone] = lsns[gone]
    _fill_dropped(side, other, ~here & (other_lsns > 0), other_lsns, sources, numbers)
    columns = {"source": pa.array(sources.tolist(), pa.string())}
    return columns | {name: pa.array(values, pa.int64(), mask=values < 0) for name, values in numbers.items()}


def _fill_dropped(
    side: SideLog,
    other: SideLog,
    absent: npt.NDArray[np.bool_],
    other_lsns: Numbers,
    sources: npt.NDArray[Any],
    numbers: dict[str, Numbers],
) -> None:
    """Say of keys that the older state of the same log has, and this one does not, in which LSNs their delete was."""
    if other.facts.log_id != side.facts.log_id:
        return  # in another log the key may never have been
    # The delete is not among the records: what has dropped it is the snapshot, or the compaction up to here.
    last = min(side.at_lsn, max(side.facts.snapshot_lsn, side.facts.exact_from_lsn - 1))
    deleted = absent & (other_lsns < last)
    sources[deleted] = DROPPED
    numbers["from_lsn"][deleted] = other_lsns[deleted] + 1
    numbers["to_lsn"][deleted] = last


@dataclass(slots=True)
class _Places:
    lsns: Numbers
    sources: npt.NDArray[Any]
    numbers: dict[str, Numbers]


def _places(facts: LogFacts, lsns: Numbers) -> _Places:
    """Return where the records of these LSNs are, which are in order."""
    for attempt in range(LOOK_UPS_MAX):
        found = _Places(lsns, np.full(len(lsns), DROPPED, object), {})
        for name in ("segment", "position", "frame_lsn"):
            found.numbers[name] = np.full(len(lsns), -1, np.int64)
        if not len(lsns):
            break
        view, _ = view_of(storage_at(facts.path))
        if f"{view.manifest.log_id:016x}" != facts.log_id:
            log_id = f"{view.manifest.log_id:016x}"
            refuse("path", facts.path, f"it was loaded as log {facts.log_id} and is log {log_id} now", log_id)
        try:
            for part in _spans_of(view, lsns):
                _fill(found, part, lsns)
            break
        except GapError:
            if attempt == LOOK_UPS_MAX - 1:
                raise
    return found


def _spans_of(view: LogView, lsns: Numbers) -> Iterator[LogView]:
    """Yield a view for each segment that may hold one of the LSNs."""
    for span in view.spans:
        first, last = span.record.first_lsn, span.last_lsn
        after = np.searchsorted(lsns, first)
        if after < len(lsns) and (last is None or lsns[after] <= last):
            yield replace(view, spans=(span,))


def _fill(found: _Places, view: LogView, lsns: Numbers) -> None:
    """Fill in the places of the LSNs that are in the one segment of the view."""
    (span,) = view.spans
    low = int(lsns[np.searchsorted(lsns, span.record.first_lsn)])
    headers = [
        (header.first_lsn, header.last_lsn, header.position)
        for header, _, _ in view.frames(low, int(lsns[-1]), body=False)
    ]
    if not headers:
        return
    first, last, position = np.array(headers, np.int64).T
    frame = np.searchsorted(first, lsns, "right") - 1
    inside = (frame >= 0) & (lsns <= last[frame])
    source = COMPACTED if span.record.flags & SegmentFlag.COMPACTED else FRAME
    found.sources[inside] = source
    found.numbers["segment"][inside] = span.record.number
    found.numbers["position"][inside] = position[frame[inside]]
    found.numbers["frame_lsn"][inside] = first[frame[inside]]
