"""Diff: which keys differ between two states, and which records made them differ.

`diff_states` is the comparison; `walkit.diff` feeds it with logs, stores and points of their history, and Spark's
diff feeds it with one part of the keys at a time.

A patch makes the changes of a diff in another store whose state is the diff's left side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkit._internal.arguments import as_lsn, check_progress, refuse
from walkit._internal.arrow import numbers_of, validated
from walkit._internal.report import report_html
from walkit.errors import PayloadGoneError
from walkit.objects.entrance import reader_at
from walkit.read.payloads import AHEAD_BYTES
from walkit.read.read_api import ReadApi
from walkit.record import Kind, Link
from walkit.state.mapping_api import MappingApi
from walkit.state.reconcile import DELETE, Mask
from walkit.state.state_at import StateProgress, deletions, exact_state
from walkit.state.table import KeyedTable
from walkit.storage.address import AnyPlace

INSERTED, DELETED, CHANGED, UNCHANGED = "I", "D", "C", "N"

DIFF_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("left_value", pa.binary()),
        pa.field("right_value", pa.binary()),
        pa.field("left_lsn", pa.int64()),
        pa.field("right_lsn", pa.int64()),
    ]
)
"""The columns of a diff. change: I only right, D only left, C another value, N the same value.

The LSN of a side is that of the newest record of the key there: the one that set a live key, or deleted a dead one. So
`right_lsn` of a D is that of the deletion, and from the other side it is an I with the same LSN as `left_lsn`. It is
null if the key never was on that side, or its delete is no longer among the records: compaction drops deletes that
suppress nothing, trimming drops all records, a snapshot holds none. A key that is live without a value has an LSN and a
null value. A key that is live on neither side is in no diff.
"""

NARROW_BYTES_MAX = (1 << 31) - 1
"""Most bytes that an Arrow `binary` column holds in one piece."""

Source: TypeAlias = ReadApi | MappingApi | KeyedTable | AnyPlace
"""The owner of a state: an open log or reader, a Store, a table, or the place of a log."""
Side: TypeAlias = Source | tuple[Source, int]
"""A source as it is now, or (source, LSN): as it was after that record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffCounts:
    """How many keys differ, by kind of change."""

    inserted: int
    deleted: int
    changed: int

    @classmethod
    def of(cls, diff: pa.Table) -> DiffCounts:
        """Count the rows of a diff."""
        found = {row["values"]: row["counts"] for row in pc.value_counts(diff["change"]).to_pylist()}
        return cls(
            inserted=found.get(INSERTED, 0), deleted=found.get(DELETED, 0), changed=found.get(CHANGED, 0)
        )

    @property
    def total(self) -> int:
        """Keys that differ."""
        return self.inserted + self.deleted + self.changed

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return self.total == 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"equal": self.equal, **asdict(self)}

    def text(self) -> str:
        """Return one line that says it."""
        if self.equal:
            return "equal"
        return f"different: {self.inserted:,} inserted, {self.deleted:,} deleted, {self.changed:,} changed"

    def _repr_html_(self) -> str:
        facts = [(name, f"{count:,}") for name, count in asdict(self).items()]
        return report_html("Diff: equal" if self.equal else "Diff", facts)


def diff(a: Side, b: Side, progress: StateProgress | None = None) -> pa.Table:
    """Return the keys whose values differ between the states of `a` and `b`: a table of `DIFF_SCHEMA`, by key.

    A side is an open log or LogReader, a Store, a KeyedTable, the place of a log (path, URL, storage), or a pair of one
    of these (not a table) and an LSN. change is seen from `a`: I is only in `b`, D only in `a`, C has another value;
    `DiffCounts.of` counts them. Values alone are compared, byte by byte: equal values set by other records are equal.
    Records without a key are left out. If another process writes the log, the durable prefix counts.

    For the LSNs see `DIFF_SCHEMA`: a key that is live on one side only has the LSN of its deletion on the other, as far
    back as the log holds states. A table has no deletions. A Store's deletions are searched in its log, which is read
    only if a key needs it.

    In memory: both states, and the reading of one batch. Values in payload logs are kept for keys that
    differ; equal values under different links are fetched and dropped again, about 8 MiB of each side at a time, or one
    larger value. `progress` is called for each side in turn with (LSNs passed, LSNs to pass).

    Raises HistoryTrimmedError if a state is no longer known exactly, OptionsError for an invalid side, and the errors
    of opening and reading.
    """
    return narrowed(compared(a, b, progress)[2], DIFF_SCHEMA)


def compared(
    a: Side, b: Side, progress: StateProgress | None = None, *, unchanged: bool = False
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the states of both sides, and the rows of `diff`, with offsets of 64 bits; raise its errors."""
    check_progress(progress, "(LSNs passed, LSNs to pass)")
    with ExitStack() as stack:
        while True:
            sides = [_state_of(side, stack, progress) for side in (a, b)]
            try:
                left, right = _with_values(*sides, unchanged=unchanged)
                break
            except PayloadGoneError as error:
                if not any(side.has_freed(error) for side in sides):
                    raise
        found = diff_states(left.newest, right.newest, unchanged=unchanged)
        found = _with_deletions(found, left, INSERTED, "left_lsn")
        found = _with_deletions(found, right, DELETED, "right_lsn")
    return left.newest, right.newest, found


class _SideState(NamedTuple):
    """One side: its state, and the log in which deletions up to an LSN may be found that the state does not have."""

    newest: pa.Table
    log: ReadApi | None = None
    up_to: int = 0
    live: MappingApi | None = None
    """The Store, if this was its newest state."""

    def has_freed(self, error: PayloadGoneError) -> bool:
        """Whether a Store has freed a value of this state by now, because its key was written again."""
        if self.live is None or error.link is None:
            return False
        value, column = Link(*error.link).encode(), self.newest["value"]
        is_here = pc.index(column, pa.scalar(value, column.type)).as_py() >= 0
        return is_here and value not in self.live._copy().values()


def _links_of(state: pa.Table) -> dict[tuple[bytes, bytes], int]:
    """Return the rows of a state that have links, by key and link."""
    if "kind" not in state.column_names:
        return {}
    rows = np.flatnonzero(pc.equal(state["kind"], int(Kind.LINK)).to_numpy()).tolist()
    keys, values = (state[name].take(pa.array(rows, pa.int64())).to_pylist() for name in ("key", "value"))
    return dict(zip(zip(keys, values, strict=True), rows, strict=True))


class _Half(NamedTuple):
    """A row of a state, as one half of a pair with the same key."""

    row: int
    kind: int
    value: bytes
    lsn: int

    @property
    def link(self) -> Link | None:
        return Link.decode(self.value) if self.kind == Kind.LINK else None

    @property
    def length(self) -> int:
        link = self.link
        return len(self.value) if link is None else link.length


def _with_equal_links(left: _SideState, right: _SideState) -> _SideState:
    """Return the right side with the left side's link or value where one has a link and the values are equal.

    Values are fetched and compared some megabytes at a time: those that are equal are in memory no longer than that.
    """
    if (
        left.log is None
        or right.log is None
        or not all("kind" in s.newest.column_names for s in (left, right))
    ):
        return right
    equal: dict[int, _Half] = {}
    part: list[tuple[_Half, _Half]] = []
    size = 0
    for pair in _pairs(left.newest, right.newest):
        part.append(pair)
        size += pair[0].length
        if size >= AHEAD_BYTES:
            equal.update(_equal_of(left.log, right.log, part))
            part, size = [], 0
    equal.update(_equal_of(left.log, right.log, part))
    newest = right.newest
    for name in ("kind", "value") if equal else ():
        column = newest[name].to_pylist()
        for row, half in equal.items():
            column[row] = getattr(half, name)
        at = newest.column_names.index(name)
        newest = newest.set_column(at, newest.field(at), pa.array(column, newest.field(at).type))
    return right._replace(newest=newest)


def _pairs(left: pa.Table, right: pa.Table) -> Iterator[tuple[_Half, _Half]]:
    """Yield the rows of both states with the same key, of which one has a link, and whose values may be equal."""
    where = pc.index_in(left["key"], value_set=right["key"])
    columns = [[side[name] for name in ("kind", "value", "lsn")] for side in (left, right)]
    has_link = [pc.equal(kinds, int(Kind.LINK)) for kinds, _, _ in columns]
    either = pc.or_(has_link[0], pc.fill_null(has_link[1].take(where), False))
    for row in np.flatnonzero(pc.and_(either, pc.is_valid(where)).to_numpy()).tolist():
        rows = (row, where[row].as_py())
        halves = [_Half(at, *(c[at].as_py() for c in side)) for at, side in zip(rows, columns, strict=True)]
        if all(half.kind != DELETE and half.value is not None for half in halves):
            mine, other = halves
            sums = [half.link and half.link.crc32c for half in halves]
            if (
                mine.length == other.length
                and mine.value != other.value
                and (None in sums or sums[0] == sums[1])
            ):
                yield mine, other


def _equal_of(left: ReadApi, right: ReadApi, pairs: list[tuple[_Half, _Half]]) -> dict[int, _Half]:
    """Return the left halves of pairs with equal values, by the rows of the right halves."""
    found = []
    for log, halves in zip((left, right), zip(*pairs, strict=True), strict=False):
        linked = [(half.lsn, link) for half in halves if (link := half.link) is not None]
        values = iter(log.payloads.values(*zip(*linked, strict=True)) if linked else ())
        found.append([half.value if half.link is None else next(values) for half in halves])
    return {
        other.row: mine
        for (mine, other), *values in zip(pairs, *found, strict=True)
        if values and values[0] == values[1]
    }


def _with_values(left: _SideState, right: _SideState, *, unchanged: bool) -> list[_SideState]:
    """Return both sides with values instead of links. A link that both have stays, unless `unchanged` shows it."""
    links = [_links_of(side.newest) for side in (left, right)]
    if any(links) and not unchanged:
        right = _with_equal_links(left, right)
        links[1] = _links_of(right.newest)
    both = set() if unchanged else links[0].keys() & links[1].keys()
    sides = []
    for side, ours in zip((left, right), links, strict=True):
        if len(ours) > len(both):
            if side.log is None:
                refuse(
                    "side", "KeyedTable", "its Store or log: a table cannot fetch values from payload logs"
                )
            newest = side.log.payloads.with_values(side.newest, {ours[each] for each in both})
            side = side._replace(newest=newest)  # noqa: PLW2901 - the same side, with its values
        sides.append(side)
    return sides


def _state_of(side: Side, stack: ExitStack, progress: StateProgress | None) -> _SideState:
    source, at_lsn = parts_of_side(side)
    if isinstance(source, KeyedTable) and at_lsn is None:
        return _SideState(source.to_arrow())
    if isinstance(source, MappingApi):
        log = getattr(source, "log", None)
        if at_lsn is None:
            lsn, state = source._dated()
            return _SideState(state, log, lsn, source)
        source = source if log is None else log
    if isinstance(source, MappingApi | KeyedTable):
        refuse("at_lsn", at_lsn, f"a {type(source).__name__} has no earlier states; give its log and the LSN")
    if not isinstance(source, ReadApi):
        source = stack.enter_context(reader_at(source))
    exact = exact_state(source, at_lsn, progress)
    return _SideState(exact.records.newest(), source, exact.base_lsn)


def _with_deletions(found: pa.Table, side: _SideState, change: str, column: str) -> pa.Table:
    """Fill in the LSNs of deletions on one side that its state does not have."""
    if side.log is None or not side.up_to:
        return found
    unknown = pc.and_(pc.equal(found["change"], change), pc.is_null(found[column]))
    keys = found["key"].filter(unknown)
    if not len(keys):
        return found
    known = deletions(side.log, keys.combine_chunks(), side.up_to)
    where = pc.index_in(found["key"], value_set=known["key"].combine_chunks())
    filled = pc.if_else(unknown, known["lsn"].combine_chunks().take(where), found[column])
    return found.set_column(found.column_names.index(column), column, filled)


def parts_of_side(side: Side) -> tuple[Source, int | None]:
    """Return the source of a side, and its LSN if it has one."""
    if not isinstance(side, tuple):
        return side, None
    try:
        source, lsn = side
        return source, as_lsn(lsn)
    except ValueError:  # an OptionsError of as_lsn is one
        refuse("side", side, "a side with an LSN is a pair: (log, LSN)")


def diff_states(left: pa.Table, right: pa.Table, *, unchanged: bool = False) -> pa.Table:
    """Compare two states with columns `key`, `value`, `lsn` (no key twice); rows by key, offsets of 64 bits.

    With a column `kind` deletes may be among them: their keys are not live, and their LSNs are those of the deletions.
    With `unchanged` also the keys whose values are equal. Null-safe: an absent value equals an absent one only.
    """
    left, right = (_whole(_wide(side)) for side in (left, right))
    keys = pa.concat_arrays([left.column("key"), right.column("key")]).dictionary_encode()
    codes, count = keys.indices.to_numpy(), len(keys.dictionary)
    left_rows, right_rows = np.full(count, -1), np.full(count, -1)
    left_rows[codes[: len(left)]] = np.arange(len(left))
    right_rows[codes[len(left) :]] = np.arange(len(right))
    left_live, right_live = _live(left, left_rows), _live(right, right_rows)
    change = np.full(count, CHANGED)
    change[~left_live], change[~right_live] = INSERTED, DELETED
    common = np.flatnonzero(left_live & right_live)
    same = _same(
        left.column("value").take(pa.array(left_rows[common])),
        right.column("value").take(pa.array(right_rows[common])),
    )
    change[common[same]] = UNCHANGED
    shown = left_live | right_live
    picked = np.flatnonzero(shown if unchanged else shown & (change != UNCHANGED))
    picked = picked[pc.sort_indices(keys.dictionary.take(pa.array(picked))).to_numpy()]
    columns: dict[str, pa.Array] = {
        "key": keys.dictionary.take(pa.array(picked)),
        "change": pa.array(change[picked].tolist(), pa.string()),
    }
    sides = (("left", left, left_rows, left_live), ("right", right, right_rows, right_live))
    for side, table, rows, live in sides:
        at = rows[picked]
        columns[f"{side}_value"] = table.column("value").take(pa.array(at, mask=~live[picked]))
        columns[f"{side}_lsn"] = table.column("lsn").take(pa.array(at, mask=at < 0))
    return pa.table(columns).select(DIFF_SCHEMA.names)


def _wide(state: pa.Table) -> pa.Table:
    wide = [("key", pa.large_binary()), ("value", pa.large_binary()), ("lsn", pa.int64())]
    if "kind" in state.column_names:
        wide.append(("kind", pa.int8()))
    return state.select([name for name, _ in wide]).cast(pa.schema(wide))


def _live(state: pa.RecordBatch, rows: np.ndarray[Any, np.dtype[np.int_]]) -> Mask:
    """Say of each key whether it is live in a state; `rows` has its row there, or -1."""
    live: Mask = rows >= 0
    if "kind" in state.schema.names:
        deleted = np.append(numbers_of(state.column("kind"), np.int8) == DELETE, False)
        live &= ~deleted[rows]  # the last one is for the missing rows
    return live


def _whole(table: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _same(left: pa.Array, right: pa.Array) -> Mask:
    equal = pc.fill_null(pc.equal(left, right), False)
    same = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    found: Mask = same.to_numpy(zero_copy_only=False)
    return found


def narrowed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the 32-bit offsets of `schema`, in as many chunks as they need."""
    if table.nbytes <= NARROW_BYTES_MAX or len(table) < 2:
        return table.combine_chunks().cast(schema)
    half = len(table) // 2
    parts = (table.slice(0, half), table.slice(half))
    return pa.concat_tables([narrowed(part, schema) for part in parts])


COLUMNS = ("key", "change", "left_value", "right_value")


class Change(NamedTuple):
    """The new value of one key: `value`, or nothing if it is deleted."""

    key: bytes
    deleted: bool
    value: bytes | None


def changes_of(diff: Any, get: Callable[[bytes, Any], Any]) -> list[Change]:
    """Return the changes of a diff, in its order; `get(key, default)` gives the value of a key here.

    OptionsError if it is not a diff, or a key differs from the diff's left side: then nothing is changed.
    """
    try:
        table = diff if isinstance(diff, pa.Table) else pa.table(diff)
        columns = (validated(table.column(name)).to_pylist() for name in COLUMNS)
        rows = list(zip(*columns, strict=True))
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        refuse("diff", diff, f"a table of {', '.join(COLUMNS)}, as walkit.diff returns: {error}", cause=error)
    changes = []
    absent = object()
    for key, change, left, right in rows:
        if change not in (INSERTED, DELETED, CHANGED, UNCHANGED) or not isinstance(key, bytes):
            refuse("diff", change, f"a change is I, D, C or N, of a key of bytes; this key is {key!r}")
        here, wanted = get(key, absent), absent if change == INSERTED else left
        if here is not wanted and here != wanted:
            text = f"key {key!r} differs from the diff's left side; nothing was changed"
            refuse("diff", None if wanted is absent else wanted, text, None if here is absent else here)
        if change != UNCHANGED:
            changes.append(Change(key, change == DELETED, right))
    return changes
