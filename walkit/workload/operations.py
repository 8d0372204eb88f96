"""Operations on keyed state, in event time, which a workload drives and an oracle checks.

A stream is columns, because a real one has more than a million operations. Each operation has a number (its
place in the whole stream, from 0), and keeps it when the stream is cut or routed, so that what was submitted
and acknowledged can be given to an oracle as a mask over operation numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import check_whole, refuse
from walkit._internal.text import counted
from walkit.record import Kind

Int64s: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

READ: Final = 0
"""The kind of an operation that looks a key up, and makes no record."""

KIND_NAMES: dict[int, Literal["put", "delete", "read"]] = {
    Kind.PUT: "put",
    Kind.DELETE: "delete",
    READ: "read",
}
"""The name of each kind an operation may have."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change or read of one key. A delete is a tombstone: its value is None, as a read's is."""

    kind: Literal["put", "delete", "read"]
    key: bytes
    value: bytes | None
    time_us: int
    """Event time: microseconds since 1970 in UTC."""


@dataclass(frozen=True, slots=True)
class OperationGroup:
    """One or more operations that belong in one transaction, in their order."""

    time_us: int
    """Event time of the group: microseconds since 1970 in UTC."""
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OperationStream:
    """Operations in event time, as columns of equal length. Immutable: any thread may read.

    Iterating gives `OperationGroup`s; a driver in a hurry walks `bounds()` over the columns instead. A group
    never crosses a route, and the maker promises that a key never does, so each key has exactly one order
    (except in generated streams, which are marked). Raises OptionsError when the columns do not fit together.
    """

    kinds: npt.NDArray[np.int8]
    """`walkit.record.Kind` of each operation, PUT or DELETE; or READ."""
    keys: list[bytes]
    values: list[bytes | None]
    times_us: Int64s
    """Event times, never falling."""
    groups: Int64s
    """Number of each operation's group in the whole stream: never falling, equal within a transaction."""
    routes: npt.NDArray[np.uint32]
    """A stable hash that decides the writer: equal for operations that must keep their order."""
    numbers: Int64s
    """Number of each operation in the whole stream, rising."""

    def __post_init__(self) -> None:
        n = len(self.keys)
        columns: tuple[Sized, ...] = (
            self.kinds,
            self.values,
            self.times_us,
            self.groups,
            self.routes,
            self.numbers,
        )
        lengths = [n, *map(len, columns)]
        if set(lengths) != {n}:
            refuse("lengths", lengths, "the columns of a stream have the same length")
        same_group = np.diff(self.groups) == 0
        if (np.diff(self.times_us) < 0).any() or (np.diff(self.groups) < 0).any():
            refuse("stream", len(self), "operations in event time: times and groups do not fall")
        if (np.diff(self.numbers) <= 0).any():
            refuse("stream", len(self), "operations whose numbers rise")
        if (same_group & ((self.routes[1:] != self.routes[:-1]) | (np.diff(self.times_us) != 0))).any():
            refuse("stream", len(self), "operations whose groups have one route and one time each")

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[OperationGroup]:
        kinds = [KIND_NAMES[kind] for kind in self.kinds.tolist()]
        operations = list(map(Operation, kinds, self.keys, self.values, self.times_us.tolist()))
        for first, end in self.bounds():
            yield OperationGroup(operations[first].time_us, tuple(operations[first:end]))

    def __repr__(self) -> str:
        return f"OperationStream({counted(len(self), 'operation')} in {counted(self.group_count, 'group')})"

    @property
    def group_count(self) -> int:
        """How many groups the stream has."""
        return int(np.count_nonzero(np.diff(self.groups))) + 1 if len(self) else 0

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of each group, as indices into the columns of this stream."""
        ends = self._ends().tolist()
        return zip([0, *ends[:-1]], ends, strict=True) if ends else iter(())

    def _ends(self) -> Int64s:
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.append(np.flatnonzero(np.diff(self.groups)) + 1, len(self)).astype(np.int64)

    def select(self, indices: Int64s) -> OperationStream:
        """Return the operations at these rising indices; they keep their numbers and groups."""
        chosen = indices.tolist()
        keys, values = self.keys, self.values
        return OperationStream(
            kinds=self.kinds[indices],
            keys=[keys[i] for i in chosen],
            values=[values[i] for i in chosen],
            times_us=self.times_us[indices],
            groups=self.groups[indices],
            routes=self.routes[indices],
            numbers=self.numbers[indices],
        )

    def route(self, writers: int) -> list[OperationStream]:
        """Split into one stream per writer, so that all operations of a key go to one writer in their order.

        Operation i goes to writer `routes[i] % writers`: the same in every process. A writer may get nothing.
        """
        check_whole(writers, "writers")
        owner = self.routes % np.uint32(writers)
        return [self.select(np.flatnonzero(owner == writer)) for writer in range(writers)]

    def numbers_of(self, groups: int) -> Int64s:
        """Return the operation numbers of the first `groups` groups of this stream."""
        check_whole(groups, "groups", 0, self.group_count)
        return self.numbers[: int(self._ends()[groups - 1]) if groups else 0]

    def digest(self, operations: int | None = None) -> str:
        """Return the SHA-256, in hex, of the first `operations` operations (default: all).

        Two streams with one digest hold the same kinds, keys, values, times and groups, byte for byte.
        """
        end = len(self) if operations is None else min(operations, len(self))
        sha = hashlib.sha256()
        for column in (self.kinds.astype("<i1"), self.times_us.astype("<i8"), self.groups.astype("<i8")):
            sha.update(column[:end].tobytes())
        for texts in (self.keys, self.values):
            for text in texts[:end]:
                sha.update(b"-" if text is None else b"%d:%b" % (len(text), text))
        return sha.hexdigest()


def operation_mask(parts: Sequence[OperationStream], groups: Sequence[int], operations: int) -> Mask:
    """Return which of `operations` operations are in the first `groups[i]` groups of `parts[i]`.

    For a routed stream, with a count of groups acknowledged (or submitted) by each writer, which does its
    groups in order. Shape (operations,), indexed by operation number.
    """
    if len(parts) != len(groups):
        refuse("groups", len(groups), f"a count for each of the {len(parts)} streams")
    mask = np.zeros(operations, dtype=np.bool_)
    for part, count in zip(parts, groups, strict=True):
        numbers = part.numbers_of(count)
        if len(numbers) and numbers[-1] >= operations:
            refuse("operations", operations, f"more than {numbers[-1]}, which is the number of an operation")
        mask[numbers] = True
    return mask
