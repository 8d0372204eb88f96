"""Values of callers: no buffer, however it looks from outside, can mis-frame the records around it."""

from __future__ import annotations

import asyncio
import ctypes
import io
import mmap
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import walkit
from walkit.errors import RecordTypeError
from walkit.models import CrashingStorage

OPTIONS = walkit.LogOptions(idle_marker_ms=0, segment_bytes=1 << 20, frame_bytes_max=1 << 18)


class Longer(bytes):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 1000


class Shorter(bytes):
    """Says that it is empty, in every way that a subclass can."""

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __bytes__(self) -> bytes:
        return b"other bytes"

    def __iter__(self) -> Iterator[int]:
        return iter(())


class ShorterArray(bytearray):
    """A bytearray whose length is 0."""

    def __len__(self) -> int:
        return 0


def mapped() -> mmap.mmap:
    area = mmap.mmap(-1, 16)
    area[:5] = b"bytes"
    return area


INTS = array("i", [1, -2, 3, 4])
GRID = np.arange(12, dtype=np.int16).reshape(3, 4)
BUFFERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: b"plain",
    "nothing": lambda: b"",
    "bytearray": lambda: bytearray(b"plain"),
    "memoryview": lambda: memoryview(b"plain"),
    "memoryview of int32": lambda: memoryview(INTS),
    "part of a memoryview of int32": lambda: memoryview(INTS)[1:3],
    "memoryview with steps": lambda: memoryview(b"a-b-c-d")[::2],
    "memoryview backwards": lambda: memoryview(b"abcdef")[::-1],
    "memoryview of two dimensions": lambda: memoryview(b"abcdef").cast("B", (2, 3)),
    "memoryview of doubles": lambda: memoryview(array("d", [1.5])),
    "arrow buffer, whole": lambda: pa.py_buffer(b"abc"),
    "bytes that say they are longer": lambda: Longer(b"short"),
    "bytes that say they are empty": lambda: Shorter(b"not empty"),
    "bytearray that says it is empty": lambda: ShorterArray(b"not empty"),
    "array": lambda: INTS,
    "numpy of int16 and two dimensions": lambda: GRID,
    "numpy by columns": lambda: np.asfortranarray(GRID),
    "numpy with steps": lambda: GRID[:, ::2],
    "numpy backwards": lambda: GRID[::-1],
    "numpy transposed": lambda: GRID.T,
    "numpy of no dimension": lambda: np.array(7, np.int64),
    "numpy of nothing": lambda: np.empty((0, 3)),
    "numpy of booleans": lambda: np.array([True, False, True]),
    "numpy bytes": lambda: np.bytes_(b"nb"),
    "ctypes": lambda: (ctypes.c_int32 * 3)(1, 2, 3),
    "mmap": mapped,
    "io buffer": lambda: io.BytesIO(b"in memory").getbuffer(),
    "arrow buffer": lambda: pa.py_buffer(b"arrow bytes").slice(2, 5),
}


def plain(buffer: Any) -> bytes:
    """The bytes of a buffer, row by row: to be read back."""
    return memoryview(buffer).tobytes()


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log in memory; it holds the record b"before" already."""
    with walkit.open(storage=CrashingStorage(), options=OPTIONS) as opened:
        opened.append(b"before", key=b"first")
        yield opened


def contents(log: walkit.WriteAheadLog) -> list[tuple[bytes | None, bytes | None]]:
    """(key, value) of every record, the last one appended here: it must be found whole after the others."""
    log.append(b"after", key=b"last")
    rows = [(r.key, r.value) for r in log.read()]
    assert rows[0] == (b"first", b"before") and rows[-1] == (b"last", b"after")
    return rows[1:-1]


@pytest.mark.parametrize("name", BUFFERS)
def test_one_record(log: walkit.WriteAheadLog, name: str) -> None:
    """F-5.7: as key and as value of append and submit, a buffer is read back as its bytes, in row order."""
    make = BUFFERS[name]
    log.append(make(), key=make())
    log.submit(make(), key=make()).result(10)
    assert contents(log) == [(plain(make()), plain(make()))] * 2


@pytest.mark.parametrize("name", BUFFERS)
def test_many_records(log: walkit.WriteAheadLog, name: str) -> None:
    """F-5.7: among plain bytes in append_many and submit_many a buffer does not shift its neighbours."""
    make = BUFFERS[name]
    values, keys = [b"one", make(), b"three"], [b"k1", make(), b"k3"]
    log.append_many(values, keys)
    log.submit_many(values, keys).result(10)
    assert contents(log) == [(b"k1", b"one"), (plain(make()), plain(make())), (b"k3", b"three")] * 2


@pytest.mark.parametrize("name", BUFFERS)
def test_a_transaction(log: walkit.WriteAheadLog, name: str) -> None:
    """F-5.5, F-5.7: in a transaction, as put, event and tombstone, a buffer does not shift the operations around it."""
    make = BUFFERS[name]
    with log.transaction() as tx:
        tx.put(b"k1", make())
        tx.append(make())
        tx.delete(make())
        tx.put(make(), b"v4")
    raw = plain(make())
    assert contents(log) == [(b"k1", raw), (None, raw), (raw, None), (raw, b"v4")]


def test_all_buffers_in_one_frame(log: walkit.WriteAheadLog) -> None:
    """F-5.7: all kinds of buffers together, in one call, share one frame and come back in order."""
    made = [make() for make in BUFFERS.values()]
    log.append_many(made, [b"k%d" % i for i in range(len(made))])
    assert [value for _, value in contents(log)] == [plain(b) for b in made]
    assert log.statistics().frames_written == 3


def test_a_buffer_that_changes_afterwards(log: walkit.WriteAheadLog) -> None:
    """F-5.7: values are copied at the call: changing or resizing it later changes no record."""
    buffer = bytearray(b"as it was")
    grid = GRID.copy()
    one, many = log.submit(buffer, key=buffer), log.submit_many([buffer, grid])
    with log.transaction() as tx:
        tx.put(buffer, grid)
        buffer[:] = b"changed!!!!!!"
        grid[:] = 0
    one.result(10)
    many.result(10)
    old = b"as it was"
    assert contents(log) == [(old, old), (None, old), (None, plain(GRID)), (old, plain(GRID))]


SEQUENCES: dict[str, Callable[[], Any]] = {
    "arrow binary": lambda: pa.array([b"a", b"", b"ccc"], pa.binary()),
    "arrow large binary": lambda: pa.array([b"a", b"", b"ccc"], pa.large_binary()),
    "arrow fixed size": lambda: pa.array([b"aa", b"bb"], pa.binary(2)),
    "a slice of arrow": lambda: pa.array([b"no", b"a", b"", b"ccc", b"no"], pa.binary()).slice(1, 3),
    "arrow chunks": lambda: pa.chunked_array([[b"a"], [], [b"", b"ccc"]], pa.binary()),
    "numpy of bytes": lambda: np.array([b"a", b"bb", b"ccc"]),
    "numpy rows": lambda: GRID,
    "a tuple": lambda: (b"a", b"", b"ccc"),
    "views of a dict": {b"b": b"1", b"a": b"2"}.keys,
    "buffers": lambda: [bytearray(b"x"), memoryview(b"yz")],
    "a generator": lambda: (b"x" * n for n in range(3)),
    "nulls": lambda: [b"a", None, b"", None],
    "only nulls": lambda: [None, None],
    "arrow dictionary": lambda: pa.array([b"q", b"r", b"q"]).dictionary_encode(),
    "arrow fixed size with a null": lambda: pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "arrow large binary with nulls": lambda: pa.array([b"a", None, b"", None], pa.large_binary()),
    "arrow without rows": lambda: pa.array([], pa.binary()),
    "only arrow nulls": lambda: pa.nulls(2, pa.binary()),
    "arrow nulls": lambda: pa.array([b"a", None, b""], pa.binary()),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(log: walkit.WriteAheadLog, name: str) -> None:
    """F-5.4, F-5.7: sequences of every shape give a record for each item; a null is absent, not empty."""
    log.append_many(SEQUENCES[name]())
    items = SEQUENCES[name]()
    listed = items.to_pylist() if isinstance(items, pa.Array | pa.ChunkedArray) else list(items)
    assert contents(log) == [(None, None if item is None else plain(item)) for item in listed]


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


NOT_BYTES: dict[str, Any] = {
    "text": "text",
    "a number": 7,
    "a list": [1, 2],
    "a float": 1.5,
    "an object": object(),
    "numpy text": np.str_("text"),
    "numpy dates": np.array(["2020-01-01"], "M8[s]"),
    "numpy objects": np.array([object()]),
    "a released view": released(),
}


@pytest.mark.parametrize("name", NOT_BYTES)
def test_what_is_not_bytes(log: walkit.WriteAheadLog, name: str) -> None:
    """F-7.4: a value other than bytes is a RecordTypeError from every way in; nothing is written, the log continues."""
    wrong = NOT_BYTES[name]
    for call in (
        lambda: log.append(wrong),
        lambda: log.append(b"v", key=wrong),
        lambda: log.delete(wrong),
        lambda: log.submit(wrong),
        lambda: log.append_many([b"good", wrong, b"good"]),
        lambda: log.append_many([b"good", b"good"], [b"k", wrong]),
        lambda: log.submit_many([b"good", wrong]),
        lambda: asyncio.run(log.append_async(wrong)),
    ):
        with pytest.raises(RecordTypeError, match="Nothing was written") as caught:
            call()
        assert caught.value.found == type(wrong).__name__ and isinstance(caught.value, TypeError)
    with log.transaction() as tx:
        with pytest.raises(RecordTypeError):
            tx.put(b"k", wrong)
        with pytest.raises(RecordTypeError):
            tx.delete(wrong)
    assert contents(log) == []
