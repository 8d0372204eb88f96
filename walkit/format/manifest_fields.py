"""The parts of a manifest as plain values of JSON, and back: every field is checked (FORMAT.md F-12.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, Final, TypeVar, get_type_hints

from walkit.format.layout import LSN_MAX, POSITION_MAX
from walkit.format.manifest import (
    EpochRecord,
    HoleRecord,
    LogEnd,
    LostRecord,
    Manifest,
    SegmentRecord,
    SegmentState,
)

TUPLES: Final[dict[str, type[Any]]] = {
    "lineage": EpochRecord,
    "holes": HoleRecord,
    "lost": LostRecord,
}


def plain_of(record: Any) -> dict[str, Any]:
    """Return the values of a record by the names of its fields."""
    return {name: getattr(record, name) for name, _ in types_of(type(record))}


def row_of(record: Any) -> list[Any]:
    """Return the values of a record in the order of its fields, as JSON has them."""
    values = [getattr(record, name) for name, _ in types_of(type(record))]
    return [value.value if isinstance(value, SegmentState) else value for value in values]


T = TypeVar("T")
_INT_MAX: Final = (1 << 64) - 1


def from_plain(plain: dict[str, Any]) -> Manifest:
    """Return the manifest of the JSON of a base; KeyError, TypeError or ValueError if it is invalid."""
    parts: dict[str, Any] = {name: tuple(_checked(c, e) for e in plain[name]) for name, c in TUPLES.items()}
    names = [name for name, _ in types_of(SegmentRecord)]
    if {*map(len, plain["segments"])} - {len(names)}:
        raise TypeError("a segment has other fields")
    parts["segments"] = segments_of(map(itemgetter(*names), plain["segments"]))
    return checked_whole(_checked(Manifest, {**plain, **parts, "end": _checked(LogEnd, plain["end"])}))


def checked_whole(manifest: Manifest) -> Manifest:
    """Return the manifest; ValueError if its parts cannot be of one log."""
    if manifest.ack_order not in ("append", "completion"):
        raise ValueError(f"ack_order is {manifest.ack_order!r}")
    position = 0
    for gap in manifest.gaps:
        if not position <= gap.start_position < gap.end_position or gap.lsns < 0 or not gap.first_lsn:
            what = "a hole" if isinstance(gap, HoleRecord) else "a lost range"
            raise ValueError(
                f"{what} from position {gap.start_position} to {gap.end_position} cannot be there"
            )
        position = gap.end_position
    check_numbers(manifest.segments, manifest.end)
    for what, numbers in (
        ("segment", [s.number for s in manifest.segments]),
        ("epoch", [e.number for e in manifest.lineage]),
    ):
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"a number of a {what} is given twice")
    return manifest


def check_numbers(segments: Iterable[SegmentRecord], end: LogEnd) -> None:
    """Raise ValueError if numbers of segments and end are beyond 63 bits, or cannot be of one log."""
    sealed = SegmentState.SEALED
    for s in segments:
        if s.reserved_bytes > POSITION_MAX:
            raise ValueError("a position, an LSN or a size is beyond 63 bits")
        if s.state is not sealed:
            continue
        framed = s.start_position < s.end_position and 0 < s.first_lsn <= s.last_lsn + 1
        if not framed or s.end_position > end.position or s.last_lsn > end.last_lsn:
            raise ValueError(f"segment {s.number} is sealed without a frame, at LSN 0 or after the log's end")
    if end.position > POSITION_MAX or end.last_lsn > LSN_MAX:
        raise ValueError("a position, an LSN or a size is beyond 63 bits")


def segments_of(rows: Iterable[Sequence[Any]]) -> tuple[SegmentRecord, ...]:
    """Return segments of rows of values, in the order of their fields; TypeError or ValueError as `of_row`.

    Checked by columns: there are thousands of rows.
    """
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    if not columns:
        return ()
    types = types_of(SegmentRecord)
    for i, ((name, wanted), column) in enumerate(zip(types, columns, strict=True)):
        if name == "state":
            states = {value: SegmentState(value) for value in {*column}}
            columns[i] = [states[value] for value in column]
        elif {*map(type, column)} != {wanted} or min(column) < 0 or max(column) > _INT_MAX:
            for value in column:
                check_value(name, wanted, value)
    return tuple(map(SegmentRecord._make, zip(*columns, strict=True)))


def of_row(cls: type[T], row: Any) -> T:
    """Return a `cls` of these values, in the order of its fields."""
    names = [name for name, _ in types_of(cls)]
    return _checked(cls, dict(zip(names, row, strict=True)))


def _checked(cls: type[T], plain: Any) -> T:
    """Return a `cls` of exactly these fields; KeyError, TypeError or ValueError if one is not as it should be."""
    if not isinstance(plain, dict):
        raise TypeError(f"a {type(plain).__name__} is where the fields of a {cls.__name__} belong")
    for name, wanted in types_of(cls):
        check_value(name, wanted, plain[name])
    return cls(**plain)


def check_value(name: str, wanted: type[Any] | None, value: Any) -> None:
    """Raise TypeError for a value of another type, or for a number that 64 bits do not hold."""
    if wanted is None:
        return
    if type(value) is not wanted or (wanted is int and not 0 <= value <= _INT_MAX):
        raise TypeError(f"{name} is a {type(value).__name__}, or a number that is not in 64 bits")


def types_of(cls: type[Any]) -> tuple[tuple[str, type[Any] | None], ...]:
    """Return the fields of a class of the manifest and what JSON gives for each; None if others look at it."""
    return _plain_types(cls)  # type: ignore[arg-type]  # a class is hashable


@cache
def _plain_types(cls: type[Any]) -> tuple[tuple[str, type[Any] | None], ...]:
    plain: Mapping[Any, type[Any]] = {int: int, str: str, Mapping[str, Any]: dict}
    return tuple((name, plain.get(kind)) for name, kind in get_type_hints(cls).items())
