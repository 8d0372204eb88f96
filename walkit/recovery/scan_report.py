"""Findings of scanning and verifying: verdicts per range, facts per segment, problems, and the report of them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from walkit._internal.arguments import refuse
from walkit._internal.html import (
    CYAN,
    GREEN,
    GREY,
    PURPLE,
    RED,
    YELLOW,
    Markup,
    Part,
    bar,
    join,
    swatch,
    table,
    tag,
)
from walkit._internal.report import report_html
from walkit._internal.text import bounds, counted, lsn_range, unread
from walkit.errors import MissingExtraError, StorageError, WalkitError
from walkit.format.frame import FrameHeader
from walkit.format.layout import CODEC_NAMES
from walkit.record import calendar_us, to_datetime
from walkit.recovery.survey import FrameSpan, SegmentSurvey
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage

if TYPE_CHECKING:
    import pandas as pd


ROWS_SHOWN_MAX = 40
"""Most ranges and problems that a notebook shows; `to_dict()` and the attributes hold all."""


class Verdict(Enum):
    """Verdicts on a range of a log. Only the last four make `ScanReport.ok` false."""

    INTACT = "intact"
    """Frames that are whole and each follow the one before."""
    NOT_READ = "not read"
    """Frames whose headers are in order and follow each other; their bodies were not read."""
    UNUSED = "unused"
    """Zeros: space made ahead and not written yet."""
    IN_PROGRESS = "in progress"
    """Beyond the durable position of a living writer: not judged."""
    TORN = "torn tail"
    """Nothing promises it: an unfinished write, which the next opening cuts off, keeping its bytes in lost+found."""
    STALE = "stale"
    """Bytes after the end of a sealed segment, or a file that no manifest names: not of the log, and not needed."""
    HOLE = "hole"
    """Frames that were in flight never came to the disk while later ones did: recorded in the manifest, and no loss."""
    LOST = "lost"
    """Acknowledged perhaps, and given up by policy "salvage": recorded in the manifest, and a note."""
    CORRUPT = "corrupt"
    """Promised, and different from the written bytes."""
    FOREIGN = "foreign"
    """Another segment, or one of another log, stands where the manifest names this one."""
    MISSING = "missing"
    """Promised, and not there."""
    UNKNOWN = "unknown"
    """Promised, and not to be judged: of a newer format, or the storage could not read it."""


FAULTS = frozenset({Verdict.CORRUPT, Verdict.FOREIGN, Verdict.MISSING, Verdict.UNKNOWN})
"""The verdicts that always come with a problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeVerdict:
    """The verdict on positions [start_position, end_position) of one segment.

    LSNs are inclusive: those in the range or, for a fault, those that are lost. None if it has none, or if the damage
    leaves it open. `reason` is empty for an intact range.
    """

    segment: str
    start_position: int
    end_position: int
    verdict: Verdict
    first_lsn: int | None = None
    last_lsn: int | None = None
    frames: int = 0
    records: int = 0
    reason: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the range."""
        return self.end_position - self.start_position

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "verdict": self.verdict.value}


SegmentUse: TypeAlias = Literal["sealed", "open", "prepared", "stray"]
"""sealed: ends where the manifest says. open: holds frames. prepared: made ahead, unused. stray: not in the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentFacts:
    """One segment file: the facts of the manifest and its own header, and the worst verdict in it."""

    name: str
    state: SegmentUse
    epoch: int
    start_position: int
    end_position: int
    first_lsn: int | None
    last_lsn: int | None
    frames: int
    records: int
    file_bytes: int
    created_us: int
    verdict: Verdict

    @property
    def size_bytes(self) -> int:
        """Bytes of its frames."""
        return self.end_position - self.start_position

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)} | {"size_bytes": self.size_bytes}
        return plain | {"verdict": self.verdict.value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One fault as a sentence, with the place, the expected and the found value. `error` is the typed error."""

    error: WalkitError
    segment: str | None = None
    position: int | None = None
    expected: Any = None
    found: Any = None
    first_lost_lsn: int | None = None

    @classmethod
    def of(cls, error: WalkitError, *, segment: str | None = None, position: int | None = None) -> Problem:
        """Take the facts from the error's attributes; `segment` and `position` fill gaps."""
        facts = {name: getattr(error, name, None) for name in ("expected", "found", "first_lost_lsn")}
        own_position = getattr(error, "position", None)
        return cls(
            error=error,
            segment=getattr(error, "segment", None) or segment,
            position=position if own_position is None else own_position,
            **facts,
        )

    def __str__(self) -> str:
        return str(self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "code": self.error.code,
            "message": str(self.error),
            "segment": self.segment,
            "position": self.position,
            "expected": _plain(self.expected),
            "found": _plain(self.found),
            "first_lost_lsn": self.first_lost_lsn,
        }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str | bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """The findings of `walkit.scan` or `walkit.verify`. Frozen; holds the ranges, and reads `frames` on request.

    `ok` covers data promised to be on stable storage, and certifies nothing that was not read. Promised data that
    is corrupt, missing, foreign or unreadable is a problem. A torn tail that nothing promised is a note: on an
    honest device it is a write that was never acknowledged as durable. (The promise of the newest frame is in the
    durable slot, which a power cut may take; a marker frame, written when the log falls idle, closes that gap.) Bytes
    that no manifest names are notes too.
    """

    location: str
    tool: Literal["scan", "verify"]
    state: Literal["live", "closed", "unclosed"]
    """live: a writer holds the log. closed: everything is sealed. unclosed: its writer ended without close()."""
    bodies_read: bool
    """Whether every frame was read whole; else the bodies of sealed segments were not, and are in no sum below."""
    format_version: int
    log_id: int
    snapshots_not_read: bool = False
    """Whether the log has snapshots that were not read."""
    generation: int
    """Of the manifest that was read."""
    epochs: int
    low_watermark: int
    first_lsn: int
    """Oldest LSN that can be read; one more than the last if none can be read."""
    last_lsn: int
    """Last LSN of an intact frame, those after damage included; of a live log, up to its durable position."""
    end_position: int
    promised_position: int
    frames_checked: int
    records_checked: int
    bytes_checked: int
    payloads_checked: int | None = None
    """Values in payload logs that were read and are right; None if they were not to be checked."""
    payload_bytes_checked: int = 0
    duration_s: float
    verdict: tuple[RangeVerdict, ...]
    segments: tuple[SegmentFacts, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    frame_rows: Callable[[], Iterator[FrameRow]] = field(repr=False, compare=False)
    """Reads the frames that the report speaks of, one row at a time; segments trimmed since are left out."""

    @property
    def ok(self) -> bool | None:
        """Whether everything that was promised is there and intact; None without a problem if not all was read."""
        return False if self.problems else None if self.not_read else True

    @property
    def not_read(self) -> str:
        """The promised parts that were not read, for people; empty if all were read."""
        left = [r for r in self.verdict if r.verdict is Verdict.NOT_READ]
        frames, records = sum(r.frames for r in left), sum(r.records for r in left)
        parts = (
            [f"the bodies of {counted(frames, 'frame')} with {counted(records, 'record')}"] if frames else []
        )
        return " and ".join([*parts, *(["the snapshots"] if self.snapshots_not_read else [])])

    @property
    def outcome(self) -> str:
        """The outcome in a word or two: ok, NOT OK or not read."""
        return {True: "ok", False: "NOT OK", None: "not read"}[self.ok]

    @cached_property
    def frames(self) -> pd.DataFrame:
        """All frames whose headers can be trusted, in log order: one row each, read when first asked for.

        Columns as in `FrameRow`; positions and sizes are bytes, `sealed` is the UTC time at which the frame was made,
        `intact` is <NA> if the body was not read. Memory grows with the number of frames: use `frame_rows()` for
        more than some millions. Raises MissingExtraError without pandas.
        """
        return frames_to_pandas(self.frame_rows())

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the frames as plain values for JSON."""
        facts = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("verdict", "segments", "problems", "notes", "frame_rows")
        }
        return {
            "ok": self.ok,
            "not_read": self.not_read,
            **facts,
            "verdict": [r.to_dict() for r in self.verdict],
            "segments": [s.to_dict() for s in self.segments],
            "problems": [p.to_dict() for p in self.problems],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Return one sentence: the outcome and its grounds."""
        filled = len({r.segment for r in self.verdict if r.verdict is Verdict.INTACT and r.frames})
        checked = (
            f"{counted(self.frames_checked, 'frame')}, {counted(self.records_checked, 'record')} and "
            f"{counted(self.bytes_checked, 'byte')} in {counted(filled, 'segment')}"
        )
        if self.payloads_checked is not None:
            values, size = (
                counted(self.payloads_checked, "value"),
                counted(self.payload_bytes_checked, "byte"),
            )
            checked += f", and {values} of {size} in payload logs"
        rest = unread(self.not_read)
        if self.problems:
            return f"NOT OK: {counted(len(self.problems), 'problem')}; {checked} are intact{rest}"
        outcome = "headers in order" if rest and not self.frames_checked else f"{checked} checked"
        return f"{'' if rest else 'ok: '}{outcome}; {lsn_range(self.first_lsn, self.last_lsn)}{rest}"

    def __str__(self) -> str:
        """Return the report as text: the extent, each problem and note, the outcome."""
        lines = [f"problem: {p}" for p in self.problems] + [f"note: {note}" for note in self.notes]
        return "\n".join([f"{self.tool} of {self.location} ({self.state})", *lines, self.summary()])

    def _repr_html_(self) -> str:
        title = f"{self.tool} of {self.location} ({self.state}): {self.outcome}"
        facts = [
            ("LSN", bounds(self.first_lsn, self.last_lsn)),
            ("end position", f"{self.end_position:,}"),
            ("promised position", f"{self.promised_position:,}"),
            ("segments", f"{len(self.segments):,}"),
            ("frames checked", f"{self.frames_checked:,}"),
            ("records checked", f"{self.records_checked:,}"),
            ("bytes checked", f"{self.bytes_checked:,}"),
            *([("not read", f"{self.not_read}; walkit.verify reads them")] if self.not_read else []),
            ("time", f"{self.duration_s * 1000:.1f} ms"),
        ]
        lines = [join([tag("b", p.error.code), f": {p}"]) for p in self.problems]
        lines += [join([note]) for note in self.notes]
        return tag(
            "div",
            Markup(report_html(title, facts)),
            _bar_html(self.verdict),
            _ranges_html(self.verdict),
            *(tag("div", line) for line in _shortened(lines)),
        )


_COLOURS = {
    Verdict.INTACT: GREEN,
    Verdict.NOT_READ: GREY,
    Verdict.UNUSED: GREY,
    Verdict.IN_PROGRESS: CYAN,
    Verdict.TORN: YELLOW,
    Verdict.STALE: PURPLE,
}
"""Faults are red."""


def _colour(verdict: Verdict) -> str:
    return _COLOURS.get(verdict, RED)


def _bar_html(ranges: tuple[RangeVerdict, ...]) -> Markup:
    return bar(
        [
            Part(
                r.size_bytes,
                _colour(r.verdict),
                f"{r.segment}: {r.verdict.value}, positions {r.start_position:,} to {r.end_position:,}",
            )
            for r in ranges
            if r.verdict not in (Verdict.UNUSED, Verdict.IN_PROGRESS) and r.size_bytes
        ]
    )


def _ranges_html(ranges: tuple[RangeVerdict, ...]) -> Markup:
    rows = [
        (
            join([swatch(_colour(r.verdict)), " ", r.verdict.value]),
            r.segment,
            f"{r.start_position:,}",
            f"{r.end_position:,}",
            lsn_text(r.first_lsn, r.last_lsn),
            r.reason,
        )
        for r in ranges[:ROWS_SHOWN_MAX]
    ]
    left = len(ranges) - len(rows)
    head = ("verdict", "segment", "from position", "to", "LSN", "reason")
    return join(
        [table(rows, head, right=(2, 3, 4)), *([tag("div", f"and {left:,} more")] if left > 0 else [])]
    )


def _shortened(lines: list[Markup]) -> list[Markup]:
    left = len(lines) - ROWS_SHOWN_MAX
    return lines if left <= 0 else [*lines[:ROWS_SHOWN_MAX], join([f"and {left:,} more"])]


def lsn_text(first: int | None, last: int | None) -> str:
    """Return a range of LSNs for people; "" without one."""
    if first is None and last is None:
        return ""
    if first == last:
        return f"{first:,}"
    return "{} to {}".format(*("?" if lsn is None else f"{lsn:,}" for lsn in (first, last)))


def worst(ranges: list[RangeVerdict]) -> Verdict:
    """Return the gravest verdict among ranges; INTACT without any. A tail of zeros does not count."""
    order = list(Verdict)
    used = [r.verdict for r in ranges if r.verdict not in (Verdict.UNUSED, Verdict.IN_PROGRESS)]
    return max(used, key=order.index, default=ranges[0].verdict if ranges else Verdict.INTACT)


def frame_time(sealed_us: int) -> str:
    """Return the UTC time of a frame for people; its number if no calendar has it."""
    stamp = to_datetime(sealed_us)
    return (
        f"{sealed_us:,} us"
        if stamp is None
        else stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


# -- the frames as rows


class FrameRow(NamedTuple):
    """One frame as a row of `ScanReport.frames`. `intact` is None if its body was not read."""

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


class FrameRows:
    """Reads the rows of a report when it is called; a pickled copy reads them if its storage is one of files."""

    def __init__(self, storage: Storage | None, spans: Sequence[FrameSpan], *, decode: bool) -> None:
        self._storage, self._spans, self._decode = storage, spans, decode

    def __call__(self) -> Iterator[FrameRow]:
        """Yield a row for every frame whose header can be trusted, in log order. OptionsError without its storage.

        Reads the files again, with `decode` every body too; a segment that has been trimmed since is left out.
        """
        storage = self._storage
        if storage is None:
            refuse("storage", None, "a copy of a report in another process reads frames from files only")
        for span in self._spans:
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
                for _ in SegmentSurvey(file, span, decode=self._decode, seen=seen):
                    yield from rows
                    rows.clear()
                yield from rows
            finally:
                file.close()

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
