"""Arrow data with invalid offsets, indices, buffers or names, at each door where Arrow data comes in."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

import walkit
from tests.conftest import Checkout
from tests.support.logs import memory_log
from walkit.errors import CorruptionError, OptionsError
from walkit.record import Kind, Record
from walkit.state.value_decoder import from_arrow

ARRAY = pa.Array.from_buffers


def ints(*numbers: int) -> pa.Buffer:
    """Return a buffer of int32."""
    return pa.py_buffer(np.array(numbers, np.int32).tobytes())


def hostile_values() -> dict[str, pa.Array]:
    """Arrays that pyarrow makes without a word, and that end the process or lie when they are used."""
    far = 1 << 28
    found = {
        "offsets that fall": ARRAY(pa.binary(), 3, [None, ints(0, far, 2, 4), pa.py_buffer(b"abcdef")]),
        "offsets before the bytes": ARRAY(pa.binary(), 2, [None, ints(0, -far, 4), pa.py_buffer(b"abcdef")]),
        "a view of no buffer": ARRAY(pa.binary_view(), 1, [None, ints(100, 0, 3, far)]),
    }
    for name, index in (("beyond", far), ("before", -far)):
        indices = pa.array([0, index], pa.int32())
        made = pa.DictionaryArray.from_arrays(indices, pa.array([b"a"]), safe=False)
        found[f"an index {name} the dictionary"] = made
    return found


def hostile_columns() -> dict[str, pa.Array]:
    """Arrays of any type of which the same is true."""
    kinds = pa.array([1, 9], pa.int8())
    one, items = pa.array([1]), pa.array([1, 2, 3])
    views = ARRAY(pa.list_view(pa.int64()), 1, [None, ints(1 << 20), ints(1 << 20)], children=[one])
    return {
        **hostile_values(),
        "text that is not UTF-8": ARRAY(pa.string(), 1, [None, ints(0, 2), pa.py_buffer(b"\xff\xfe")]),
        "a union of no member": pa.UnionArray.from_sparse(kinds, [pa.array([1, 2]), pa.array([3, 4])]),
        "a list beyond its items": ARRAY(pa.list_(pa.int64()), 2, [None, ints(0, 9, 3)], children=[items]),
        "a list view beyond its items": views,
        "a name that is not UTF-8": pa.StructArray.from_arrays([one], fields=[pa.field(b"\xff", pa.int64())]),
        "a zone that is not UTF-8": pa.array([1], pa.timestamp("us", b"\xff")),
        "an array within a struct": pa.StructArray.from_arrays(
            [hostile_values()["an index before the dictionary"]], ["x"]
        ),
    }


def streams() -> Iterator[tuple[str, bytes]]:
    """Yield Arrow IPC streams: of the invalid batches that pyarrow writes, cut short, and with one byte changed."""
    for name in (
        "an index before the dictionary",
        *(n for n in hostile_columns() if n.endswith(("-8", "member"))),
    ):
        batch, sink = pa.record_batch([hostile_columns()[name]], ["x"]), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield name, sink.getvalue().to_pybytes()
    good, sink = pa.record_batch({"x": [b"abc", None, b"d"]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, good.schema) as writer:
        writer.write_batch(good)
    whole = sink.getvalue().to_pybytes()
    at = whole.rindex(np.array([3, 3, 4], np.int32).tobytes())
    yield "offsets that fall", whole[:at] + ints(1 << 28).to_pybytes() + whole[at + 4 :]
    yield from ((f"the first {size} bytes", whole[:size]) for size in range(0, len(whole) - 8, 16))


def used(record: Record) -> None:
    """Look at every value of a bundle, which ends the process if one is out of its memory."""
    record.arrow().to_pydict()


Door: TypeAlias = tuple[str, type[Exception] | tuple[type[Exception], ...], Callable[[], object]]


def doors() -> Iterator[Door]:
    """Yield each door with one hostile argument: its kind, its error, and the call."""
    with memory_log() as log, walkit.Store.open("memory://") as store:
        yield from bulk_doors(log, store)
        yield from stream_doors(log)
        assert log.appended_lsn == store.log.appended_lsn == 0


def bulk_doors(log: walkit.WriteAheadLog, store: walkit.Store) -> Iterator[Door]:
    """Yield the doors that take arrays."""
    for name, array in hostile_columns().items():
        batch = pa.record_batch([array], ["x"])
        yield f"append_bundle of {name}", OptionsError, partial(log.append_bundle, batch)
        column = pa.array([b"k"] * len(array))
        for place in ("key", "change", "left_value", "right_value"):
            names = dict.fromkeys(("key", "change", "left_value", "right_value"), column) | {place: array}
            yield f"a patch, {place}, of {name}", OptionsError, partial(store.apply_patch, pa.table(names))
    for name, array in hostile_values().items():
        good = pa.array([b"v"] * len(array))
        yield f"append_many of {name}", OptionsError, partial(log.append_many, array)
        yield f"append_many by {name}", OptionsError, partial(log.append_many, good, array)
        for names in ({"value": array}, {"value": good, "key": array}):
            yield f"append_arrow of {name}", OptionsError, partial(log.append_arrow, pa.table(names))
    for kind, wrong in (("kind", 2**63), ("timestamp", 2**64 - 1), ("timestamp", -(2**62))):
        of = pa.uint64() if wrong > 0 else pa.int64()
        table = pa.table({"value": [b"v"], kind: pa.array([wrong], of)})
        yield f"append_arrow of {kind} {wrong}", OptionsError, partial(log.append_arrow, table)


def stream_doors(log: walkit.WriteAheadLog) -> Iterator[Door]:
    """Yield the doors that take Arrow IPC streams."""
    for name, value in streams():
        table = pa.table({"value": [value], "kind": [3]})
        yield f"append_arrow of a bundle, {name}", OptionsError, partial(log.append_arrow, table)
        record = Record(1, Kind.BUNDLE, None, value)
        yield f"record.arrow() of {name}", CorruptionError, partial(used, record)
        wrong_stream = (ValueError, pa.ArrowException, OSError, EOFError)
        yield f"Spark's decoder of {name}", wrong_stream, partial(from_arrow, value)


def test_each_door_refuses_invalid_arrow_data() -> None:
    """Give hostile arrays and streams to each door in a child process: a typed error for each, and no crash."""
    child = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, timeout=60)
    lines = child.stdout.splitlines()
    assert child.returncode == 0, f"ended by {child.returncode} at {lines[-1:]}: {child.stderr[-500:]}"
    assert len(lines) > 80
    assert [line for line in lines if not line.endswith(": refused")] == []


READERS = {"open_stream", "open_file", "read_message", "read_record_batch", "read_tensor", "_import_from_c"}


def test_arrow_bytes_have_one_reader(checkout: Checkout) -> None:
    """Look for pyarrow's readers of bytes in the package: in the one module that validates their results."""
    found = {
        name
        for name, text in checkout.files(".py").items()
        if not name.startswith("tests/") and any(reader in text for reader in READERS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in READERS
    }
    assert found == {"walkit/_internal/arrow.py"}


def main() -> None:
    """Call each door, and print its name before and its answer after it."""
    for name, wanted, call in doors():
        print(name, end="", flush=True)
        answer: Any = "taken"
        try:
            call()
        except wanted:
            answer = "refused"
        except Exception as error:  # each other error is a finding
            answer = repr(error)
        print(f": {answer}", flush=True)


if __name__ == "__main__":
    main()
