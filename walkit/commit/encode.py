"""Encoding: the body of the submissions that share a frame, and its columns where `ack_sink` keeps them. Pure.

There is one encoder of bodies, for columns. One record, and the puts of one batch, which are most frames, have their
own (`prepare_one`, `prepare_puts`) that make the same bytes without making columns first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from walkit.commit.batch import Submitted
from walkit.format.body import COLUMN_BYTES_PER_RECORD, Columns, one_record
from walkit.format.frame import PreparedBody, prepare_body, prepare_one, prepare_puts
from walkit.format.layout import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE
from walkit.format.packed import PackedBytes


def prepare(
    submissions: Sequence[Submitted], codec: str | None, *, keep: bool
) -> tuple[PreparedBody, int, Columns | None]:
    """Return (the body, the user bytes, with `keep` the columns) of the submissions of a frame."""
    if not keep and len(submissions) == 1:
        only: Any = submissions[0]
        if only.shared:
            keys, values = only.records
            body = prepare_puts(only.kind, keys, values, codec)
            return body, only.size_bytes - COLUMN_BYTES_PER_RECORD * body.count, None
        columns = only.columns
        if columns is None:
            body = prepare_one(only.kind, only.key, only.value, only.timestamp, codec)
            return body, only.size_bytes - COLUMN_BYTES_PER_RECORD, None
        return prepare_body(columns, codec), only.size_bytes - COLUMN_BYTES_PER_RECORD * columns.count, None
    columns, user_bytes = gather(submissions)
    return prepare_body(columns, codec), user_bytes, columns if keep else None


def gather(submissions: Sequence[Submitted]) -> tuple[Columns, int]:
    """Return (the columns of a frame, its user bytes) from the submissions that share it, in their order."""
    if len(submissions) == 1:
        return _gather_one(submissions[0])
    if not any(s.shared or s.columns is not None for s in submissions):
        return _gather_singles(submissions)
    many = [_gather_one(s)[0] for s in submissions]
    user_bytes = sum(s.size_bytes - COLUMN_BYTES_PER_RECORD * s.count for s in submissions)
    if all(_is_packed(c) for c in many):
        return _gather_packed(many), user_bytes
    kinds: list[int] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    stamps: list[int] = []
    for columns in many:
        n = columns.count
        kinds.extend([columns.kinds] * n if isinstance(columns.kinds, int) else columns.kinds)
        keys.extend(_or_empty(columns.keys, n))
        values.extend(_or_empty(columns.values, n))
        stamps.extend([0] * n if columns.timestamps is None else columns.timestamps)
    return _columns(kinds, keys, values, stamps), user_bytes


def _or_empty(items: Sequence[bytes] | PackedBytes | None, count: int) -> Iterable[bytes]:
    return [b""] * count if items is None else items


def _is_packed(columns: Columns) -> bool:
    return all(items is None or isinstance(items, PackedBytes) for items in (columns.keys, columns.values))


def _gather_packed(many: list[Columns]) -> Columns:
    """Put packed columns below each other without making an object of any record."""
    kinds: int | bytes
    if len({c.kinds if isinstance(c.kinds, int) else -1 for c in many}) == 1 and isinstance(
        many[0].kinds, int
    ):
        kinds = many[0].kinds
    else:
        kinds = b"".join(
            bytes((c.kinds,)) * c.count if isinstance(c.kinds, int) else bytes(c.kinds) for c in many
        )
    stamps: array[int] | None = None
    if any(c.timestamps is not None for c in many):
        stamps = array("q")
        for columns in many:
            stamps.extend(array("q", columns.timestamps or bytes(8 * columns.count)))
    return Columns(
        sum(c.count for c in many),
        kinds,
        _stacked([(c.count, c.keys) for c in many]),
        _stacked([(c.count, c.values) for c in many]),
        stamps,
    )


def _stacked(columns: list[tuple[int, Sequence[bytes] | PackedBytes | None]]) -> PackedBytes | None:
    if all(items is None for _, items in columns):
        return None
    return PackedBytes.joined(
        [items if isinstance(items, PackedBytes) else PackedBytes.empties(count) for count, items in columns]
    )


def _gather_one(submission: Submitted) -> tuple[Columns, int]:
    columns = submission.columns
    if columns is None:
        only: Any = submission
        columns = one_record(only.kind, only.key, only.value, only.timestamp)
    return columns, submission.size_bytes - COLUMN_BYTES_PER_RECORD * submission.count


def _gather_singles(tickets: Sequence[Any]) -> tuple[Columns, int]:
    columns = _columns(
        [t.kind for t in tickets],
        [t.key for t in tickets],
        [t.value for t in tickets],
        [t.timestamp for t in tickets],
    )
    return columns, sum(t.size_bytes for t in tickets) - COLUMN_BYTES_PER_RECORD * len(tickets)


def _columns(kinds: list[int], keys: list[bytes], values: list[bytes], stamps: list[int]) -> Columns:
    seen = set(kinds)
    present = 0
    for kind in seen:
        present |= kind
    return Columns(
        len(kinds),
        kinds[0] if len(seen) == 1 else kinds,
        keys if present & HAS_KEY else None,
        values if present & HAS_VALUE else None,
        stamps if present & HAS_TIMESTAMP else None,
    )
