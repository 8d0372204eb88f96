"""The keyed table: the newest value of each key, from a log of puts and deletes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from walkit._internal.arrow import array_of_mask, numbers_of
from walkit._internal.text import counted
from walkit.record import Batch, Kind, Link, LinkBytes, is_link, linked_values
from walkit.state.latest_reducer import FinalState
from walkit.state.machine import check_follows
from walkit.state.reconcile import DELETE, reconcile_arrow

T = TypeVar("T")

PUT, LINK = int(Kind.PUT), int(Kind.LINK)
IMAGE_RECORDS = 4096
"""Records in one batch of a snapshot."""
SETTLE_RECORDS = 1 << 16
"""Records that become objects at a time."""

TABLE_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("lsn", pa.int64(), nullable=False),
    ]
)
"""The state as Arrow: live keys in order, with the LSN of the record that set each."""

_ABSENT = -1
"""The length of an absent value in the checksum."""


class ReplayedLsns:
    """The LSNs of many keys, as a replay left them; a dict once one is asked for. Any thread may be the first."""

    __slots__ = ("_lsns", "_parts")

    def __init__(self) -> None:
        self._parts: list[tuple[list[bytes], npt.NDArray[np.int64]]] = []
        self._lsns: dict[bytes, int] | None = None

    def add(self, keys: list[bytes], lsns: npt.NDArray[np.int64]) -> None:
        """Take more keys, none of which was there, before the first is asked for."""
        self._parts.append((keys, lsns))

    def lsns(self) -> dict[bytes, int]:
        """Return all, for reading only."""
        parts = self._parts  # taken first: the thread that made the dict drops them afterwards
        found = self._lsns
        if found is None:
            found = {}
            for keys, lsns in parts:
                found.update(zip(keys, lsns.tolist(), strict=True))
            self._lsns = found
            self._parts = []
        return found


class KeyedTable:
    """Key to value by the rule of `walkit.state.reconcile`, with the LSN of the record that set each key.

    A state machine that also takes Arrow. Two plain dicts: on CPython 3.11 about 120 bytes per key beside key and
    value; after a replay the LSNs are numbers in columns until one is asked for, which makes the second dict of them. A
    put without a value is a key whose value is None. A value in a payload log is `LinkBytes` here: Store and PastState
    fetch it. Applying a batch again that was applied in part gives the same as once, so after an interrupt call `apply`
    again. Not thread-safe.
    """

    __slots__ = ("_applied_lsn", "_gathered", "_lsns", "_replayed", "_values")

    snapshot_format = "keyed-table/1"

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        self._lsns: dict[bytes, int] = {}
        self._replayed = ReplayedLsns()
        """For keys that are live and not in `_lsns`. A key that was deleted may still be in it."""
        self._applied_lsn = 0
        self._gathered: FinalState | None = None
        """Records newer than those in the dicts."""

    @property
    def applied_lsn(self) -> int:
        """LSN up to which records have been applied, events included."""
        return self._applied_lsn

    # -- records in

    def apply(self, batch: Batch) -> None:
        """See `StateMachine.apply`."""
        lsns, keys, kinds = batch.lsns, batch.keys, batch.kinds
        if not lsns:
            return
        check_follows(self._applied_lsn, lsns[0])
        if self._gathered is not None:
            self.settle()
        if keys is not None:
            if isinstance(kinds, int) and None not in keys:
                self._apply_uniform(batch, kinds, keys)  # type: ignore[arg-type]
            else:
                self._apply_rows(batch)
        self._applied_lsn = lsns[-1]

    def _apply_uniform(self, batch: Batch, kind: int, keys: Iterable[bytes]) -> None:
        """Apply puts alone or deletes alone, all with a key; of a key that comes twice the later one stays."""
        if kind == DELETE:
            for key in keys:
                self._values.pop(key, None)
                self._lsns.pop(key, None)
        elif batch.values is None:
            self._lsns.update(zip(keys, batch.lsns, strict=True))
            self._values.update(dict.fromkeys(keys))
        else:
            self._lsns.update(zip(keys, batch.lsns, strict=True))
            self._values.update(zip(keys, linked_values(batch.values, kind), strict=True))

    def _apply_rows(self, batch: Batch) -> None:
        values, lsns = self._values, self._lsns
        for lsn, kind, key, value in batch.rows():
            if key is None:
                continue
            if kind == DELETE:
                values.pop(key, None)
                lsns.pop(key, None)
            else:
                lsns[key] = lsn  # before the value: a reader would else take an older one from `_replayed`
                values[key] = LinkBytes(value) if kind == LINK and is_link(value) else value

    def apply_arrow(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `walkit.RECORD_SCHEMA`: reduced to its newest record per key before it becomes objects."""
        if not len(batch):
            return
        lsns = batch.column("lsn")
        check_follows(self._applied_lsn, lsns[0].as_py())
        self.settle()
        _apply_newest(self._values, self._lsns, reconcile_arrow(batch))
        self._applied_lsn = lsns[-1].as_py()

    def gather(self, batch: pa.RecordBatch) -> None:
        """Take a batch as `apply_arrow` does, and apply it in `settle`, or when the state is read. Returns soon.

        Many batches are reduced to the newest record of each key together. From then on until `settle` only one
        thread may use the table, also to read it.
        """
        if not len(batch):
            return
        lsns = batch.column("lsn")
        check_follows(self._applied_lsn, lsns[0].as_py())
        if self._gathered is None:
            self._gathered = FinalState(tombstones=bool(self._values))
        self._gathered.take(batch)
        self._applied_lsn = lsns[-1].as_py()

    def reduce(self) -> None:
        """Reduce the gathered batches if they are large, so that memory stays bounded: called after each `gather`.

        An interrupt may end it, and `settle`, at any point: no record is lost or counted twice.
        """
        if self._gathered is not None:
            self._gathered.reduce()

    def settle(self) -> None:
        """Apply the gathered batches; a replay ends with it. It may be called again after an interrupt."""
        if self._gathered is None:
            return
        newest = self._gathered.newest().to_batches(max_chunksize=SETTLE_RECORDS)
        if self._values or self._gathered.tombstones:
            for batch in newest:
                _apply_newest(self._values, self._lsns, batch)
            self._gathered = None
            return
        # An empty table gathers records without tombstones: it stays empty until it has all of them.
        values: dict[bytes, bytes | None] = {}
        replayed = ReplayedLsns()
        for batch in newest:
            keys = batch.column("key").to_pylist()
            values.update(zip(keys, _values_of(batch), strict=True))
            replayed.add(keys, numbers_of(batch.column("lsn"), np.int64))
        self._gathered.tombstones = True  # an interrupt may come before all of the following is done
        self._lsns, self._replayed = {}, replayed
        self._values = values
        self._gathered = None

    # -- state out

    @overload
    def get(self, key: bytes) -> bytes | None: ...
    @overload
    def get(self, key: bytes, default: T) -> bytes | T | None: ...
    def get(self, key: bytes, default: T | None = None) -> bytes | T | None:
        """Return the value of a key, or `default` if the key is not live."""
        if self._gathered is not None:
            self.settle()
        return self._values.get(key, default)

    def live_lsns(self) -> Iterable[int]:
        """Return the LSNs of the records that set the live keys, in no order, for a caller that excludes others."""
        lsns, older = self._lsns, self._replayed.lsns()
        return [lsns.get(key) or older[key] for key in self._values]

    def lsn_of(self, key: bytes) -> int | None:
        """Return the LSN of the record that set a live key; None if it is not live.

        The first call after a replay of many keys makes a dict of them.
        """
        if self._gathered is not None:
            self.settle()
        lsn = self._lsns.get(key)
        return self._replayed.lsns().get(key) if lsn is None and key in self._values else lsn

    def __getitem__(self, key: bytes) -> bytes | None:
        if self._gathered is not None:
            self.settle()
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        if self._gathered is not None:
            self.settle()
        return key in self._values

    def __len__(self) -> int:
        if self._gathered is not None:
            self.settle()
        return len(self._values)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the live keys of this moment, in order."""
        if self._gathered is not None:
            self.settle()
        return iter(sorted(self._values))

    def items(self) -> list[tuple[bytes, bytes | None]]:
        """Return the live keys of this moment with their values, in order of keys."""
        if self._gathered is not None:
            self.settle()
        return sorted(self._values.items())  # keys differ, so values are never compared

    def to_dict(self) -> dict[bytes, bytes | None]:
        """Return a copy of the live keys and their values, in no order."""
        if self._gathered is not None:
            self.settle()
        return self._values.copy()

    def to_arrow(self) -> pa.Table:
        """Return the state as a table of `TABLE_SCHEMA`, in order of keys."""
        return table_of(self.snapshot())

    def snapshot(self) -> Iterator[Batch]:
        """See `StateMachine.snapshot`. Copies dicts at the call, which takes little, and sorts later."""
        if self._gathered is not None:
            self.settle()
        return _image(self._values.copy(), self._lsns.copy(), self._replayed)

    def restore(self, batches: Iterable[Batch], lsn: int) -> None:
        """See `StateMachine.restore`."""
        self._values, self._lsns, self._applied_lsn, self._gathered = {}, {}, 0, None
        self._replayed = ReplayedLsns()
        for batch in batches:
            if batch.keys is None or batch.values is None or None in batch.keys:
                raise ValueError("a snapshot of a keyed table holds puts with a key and a value column")
            values = linked_values(batch.values, batch.kinds)
            self._values.update(zip(batch.keys, values, strict=True))  # type: ignore[arg-type]
            self._lsns.update(zip(batch.keys, batch.lsns, strict=True))  # type: ignore[arg-type]
        self._applied_lsn = lsn

    def checksum(self) -> int:
        """Return a hash of live keys and values in order of keys; LSNs are history and not in it. Sorts the keys."""
        if self._gathered is not None:
            self.settle()
        return checksum_of(_image(self._values, self._lsns, self._replayed))

    def _check(self) -> None:
        """Assert that each live key has one LSN, which has been applied. Takes time by the number of keys."""
        self.settle()
        assert self._lsns.keys() <= self._values.keys(), "an LSN of a key that is not live"
        lsns = list(self.live_lsns())
        assert len(set(lsns)) <= len(lsns) == len(self._values)
        assert all(0 <= lsn <= self._applied_lsn for lsn in lsns)

    def __repr__(self) -> str:
        return f"<KeyedTable of {counted(len(self), 'key')} at LSN {self._applied_lsn}>"


def _apply_newest(values: dict[bytes, bytes | None], lsns: dict[bytes, int], newest: pa.RecordBatch) -> None:
    """Apply records whose keys differ."""
    deleted = numbers_of(newest.column("kind"), np.int8) == DELETE
    if deleted.any():
        for key in newest.column("key").filter(array_of_mask(deleted)).to_pylist():
            values.pop(key, None)
            lsns.pop(key, None)
        newest = newest.filter(array_of_mask(~deleted))
    keys = newest.column("key").to_pylist()
    values.update(zip(keys, _values_of(newest), strict=True))
    lsns.update(zip(keys, numbers_of(newest.column("lsn"), np.int64).tolist(), strict=True))


def _values_of(batch: pa.RecordBatch) -> list[bytes | None]:
    values: list[bytes | None] = batch.column("value").to_pylist()
    is_link = numbers_of(batch.column("kind"), np.int8) == LINK
    return list(linked_values(values, batch.column("kind").to_pylist())) if is_link.any() else values


def _image(
    values: dict[bytes, bytes | None], lsns: dict[bytes, int], replayed: ReplayedLsns
) -> Iterator[Batch]:
    keys = sorted(values)
    older = replayed.lsns()
    for start in range(0, len(keys), IMAGE_RECORDS):
        part = keys[start : start + IMAGE_RECORDS]
        found = [values[k] for k in part]
        kinds: int | list[int] = PUT
        if LinkBytes in set(map(type, found)):
            kinds = [LINK if type(value) is LinkBytes else PUT for value in found]
        yield Batch([lsns.get(k) or older[k] for k in part], kinds, part, found)


def table_of(image: Iterable[Batch]) -> pa.Table:
    """Return the records of a keyed table's snapshot as a table of `TABLE_SCHEMA`; with a column `kind` for links."""
    batches = list(image)
    columns = {
        "key": pa.chunked_array([pa.array(b.keys, pa.binary()) for b in batches], pa.binary()),
        "value": pa.chunked_array([pa.array(b.values, pa.binary()) for b in batches], pa.binary()),
        "lsn": pa.chunked_array([pa.array(b.lsns, pa.int64()) for b in batches], pa.int64()),
    }
    table = pa.table(columns, schema=TABLE_SCHEMA)
    kinds = [[b.kinds] * len(b) if isinstance(b.kinds, int) else b.kinds for b in batches]
    if any(LINK in part for part in kinds):
        table = table.append_column("kind", pa.chunked_array(kinds, pa.int8()))
    return table


def checksum_of(image: Iterable[Batch]) -> int:
    """Return the checksum of a keyed table from its snapshot."""
    digest = blake2b(digest_size=8)
    count = 0
    for batch in image:
        assert batch.keys is not None and batch.values is not None
        lengths = [len(k) for k in batch.keys if k is not None]
        values, links = list(batch.values), dict[int, Link]()
        for row, value in enumerate(values):
            if type(value) is LinkBytes:  # the place of the value is history, too
                link = links[row] = Link.decode(value)
                values[row] = link.crc32c.to_bytes(4, "little")
        sizes = [_ABSENT if v is None else len(v) for v in values]
        for row, link in links.items():
            sizes[row] = _ABSENT - 1 - link.length
        digest.update(np.array(lengths + sizes, "<i8").tobytes())
        digest.update(b"".join(k for k in batch.keys if k is not None))
        digest.update(b"".join(v for v in values if v is not None))
        count += len(batch)
    digest.update(count.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
