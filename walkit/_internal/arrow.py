"""pyarrow, loaded when it is first asked for: `import walkit`, opening a log and appending to it do without.

`pa` and `pc` are `pyarrow` and `pyarrow.compute`. A name that was asked for once is kept, so that a loop pays for a
plain attribute; a module that needs them at import time (a base class, a constant) pays for pyarrow there.

`pa.array`, `to_numpy` and `cast` import pandas, if it is installed, and `pyarrow.compute`, a third of a second in each
process for a question (is this a pandas object?) whose answer is known here. The functions below do without.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from walkit.errors import StorageError, WalkitError

__all__ = [
    "array_of_mask",
    "array_of_numbers",
    "load",
    "mask_of",
    "numbers_of",
    "pa",
    "pc",
    "stream_batches",
    "stream_table",
    "validated",
]

T = TypeVar("T")


def load(name: str) -> ModuleType:
    """Import a module; StorageError if its file cannot be read, as without a free descriptor."""
    try:
        return import_module(name)
    except OSError as error:
        if isinstance(error, WalkitError):
            raise
        raise StorageError(
            f"cannot load {name}: {error.strerror or error}. Nothing was changed",
            errno=error.errno,
            name=name,
        ) from error


class _Later(ModuleType):
    """A module that is imported when a name of it is asked for; any thread may be the first to ask."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(load(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = _Later("pyarrow")
    pc = _Later("pyarrow.compute")


def array_of_numbers(
    numbers: npt.NDArray[Any], kind: pa.DataType, present: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return numbers of the width of `kind` as an array of it, without a copy; absent where `present` is false."""
    absent = 0 if present is None else len(present) - int(np.count_nonzero(present))
    validity = (
        pa.py_buffer(np.packbits(present, bitorder="little")) if present is not None and absent else None
    )
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind, len(numbers), [validity, data], null_count=absent)


def array_of_mask(mask: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a mask as a boolean array, to filter with."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits], null_count=0)


def numbers_of(array: pa.Array, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return the numbers of a fixed-width array without a copy, read-only; the bytes under a null are arbitrary."""
    if not len(array):
        return np.zeros(0, dtype)
    start = array.offset * np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), start)


def mask_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which items of an array with a validity bitmap, or without nulls, are present."""
    validity = array.buffers()[0] if array.null_count else None
    if validity is None:
        return np.ones(len(array), np.bool_)
    bits = np.unpackbits(
        np.frombuffer(validity, np.uint8), count=array.offset + len(array), bitorder="little"
    )
    return bits[array.offset :].view(np.bool_)


def validated(given: T) -> T:
    """Return an array, batch or table whose every offset, index, buffer and name has been checked.

    pyarrow checks none of them when it computes: an invalid one is read past its memory and ends the process. So each
    place where Arrow data comes from a caller or from stored bytes calls this first. pa.ArrowException.
    """
    given.validate(full=True)  # type: ignore[attr-defined]
    try:
        _read_names(given.type if hasattr(given, "type") else pa.struct(list(given.schema)))  # type: ignore[attr-defined]
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"a name is not text: {error}") from error
    return given


def _read_names(kind: pa.DataType) -> None:
    """Read the zone and each name in a type as text, as every use of them will. UnicodeDecodeError."""
    getattr(kind, "tz", None)
    for number in range(kind.num_fields):
        field = kind.field(number)
        assert field.name is not None
        _read_names(field.type)
    if pa.types.is_dictionary(kind):
        _read_names(kind.value_type)
    elif isinstance(kind, pa.BaseExtensionType):
        _read_names(kind.storage_type)


def stream_batches(source: Any) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Read an Arrow IPC stream to its end and return validated batches: the only reader of Arrow bytes.

    pa.ArrowException, OSError or EOFError for other bytes.
    """
    with pa.ipc.open_stream(source) as reader:
        return reader.schema, [validated(batch) for batch in reader]


def stream_table(source: Any) -> pa.Table:
    """Return the batches of `stream_batches` as one table."""
    schema, batches = stream_batches(source)
    return pa.Table.from_batches(batches, schema)
