"""A column of byte strings that never become objects: their lengths, and their bytes one after the other.

It is what an Arrow binary array already is, so a column that comes from Arrow goes into a frame with one copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from walkit.record import Buffer

Lengths: TypeAlias = npt.NDArray[np.uint32]

LENGTH_DTYPE: Final = np.dtype("<u4")


class PackedBytes:
    """Byte strings as `lengths` (one per item) and `parts`, whose bytes joined are those of all items in their order.

    Immutable. Iterating makes an object per value.
    """

    __slots__ = ("lengths", "parts")

    def __init__(self, lengths: npt.NDArray[Any], parts: Sequence[Buffer]) -> None:
        self.lengths: Lengths = lengths.astype(LENGTH_DTYPE, copy=False)
        self.parts = tuple(parts)

    @classmethod
    def empties(cls, count: int) -> PackedBytes:
        """Return `count` empty items."""
        return cls(np.zeros(count, LENGTH_DTYPE), ())

    @classmethod
    def joined(cls, columns: Sequence[PackedBytes]) -> PackedBytes:
        """Return the items of all columns, one column after the other; no bytes are copied."""
        parts = [part for column in columns for part in column.parts]
        return cls(np.concatenate([column.lengths for column in columns]), parts)

    @property
    def size_bytes(self) -> int:
        """Bytes of all items."""
        return sum(map(len, self.parts))

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        only = self.parts[0] if len(self.parts) == 1 else None
        data = only if isinstance(only, bytes) else b"".join(self.parts)
        start = 0
        for end in np.cumsum(self.lengths, dtype=np.int64).tolist():
            yield data[start:end]
            start = end
