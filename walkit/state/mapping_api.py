"""The reading half of a store: a keyed table that follows a log, as a mapping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import pyarrow as pa

from walkit._internal.locks import STATE, alone
from walkit.errors import PayloadGoneError
from walkit.log.validate import as_bytes
from walkit.read.read_api import ReadApi
from walkit.record import Batch, Link, LinkBytes
from walkit.state.applier import Follower
from walkit.state.table import KeyedTable, checksum_of, table_of

T = TypeVar("T")
U = TypeVar("U")


class MappingApi(ABC):
    """The read methods of a table that follows a log. Safe from any thread.

    Each call sees at least everything acknowledged to a caller before it. A key is bytes or another buffer;
    RecordTypeError for anything else. LogClosedError once the log is closed.
    """

    _table: KeyedTable
    _follower: Follower

    @abstractmethod
    def _see_acknowledged(self) -> None:
        """Apply all acknowledged records, or refuse."""

    @overload
    def get(self, key: Any) -> bytes | None: ...
    @overload
    def get(self, key: Any, default: T) -> bytes | T | None: ...
    def get(self, key: Any, default: T | None = None) -> bytes | T | None:
        """Return the value of a key, or `default` if it is not live."""
        self._see_acknowledged()
        key = key if type(key) is bytes else as_bytes(key, "key")
        value = self._table.get(key, default)
        return (
            value
            if type(value) is not LinkBytes
            else self._fetched(key, lambda: self._table.get(key, default))
        )

    def __getitem__(self, key: Any) -> bytes | None:
        self._see_acknowledged()
        key = key if type(key) is bytes else as_bytes(key, "key")
        value = self._table[key]
        return value if type(value) is not LinkBytes else self._fetched(key, lambda: self._table[key])

    def _fetched(self, key: bytes, look: Callable[[], Any]) -> Any:
        """Return the value of a key whose table entry is a link, from its payload log."""

        def resolve(value: Any) -> Any:
            if type(value) is not LinkBytes:
                return value
            return self._values_log().payloads.value(self._table.lsn_of(key) or 0, Link.decode(value))

        return self._resolved(look, resolve)

    def _resolved(self, look: Callable[[], T], resolve: Callable[[T], U]) -> U:
        """Return what `look` returns, resolved; once more if a value has been freed, as its key was written again."""
        while True:
            looked = look()
            try:
                return resolve(looked)
            except PayloadGoneError as error:
                if error.link is None or Link(*error.link).encode() in self._copy().values():
                    raise

    def _values_log(self) -> ReadApi:
        """Return the log whose payload logs have the values of links."""
        log: ReadApi = vars(self)["log"]
        return log

    def __contains__(self, key: Any) -> bool:
        self._see_acknowledged()
        return (key if type(key) is bytes else as_bytes(key, "key")) in self._table

    def lsn_of(self, key: Any) -> int | None:
        """Return the LSN of the record that set a live key; None if it is not live."""
        self._see_acknowledged()
        return self._table.lsn_of(key if type(key) is bytes else as_bytes(key, "key"))

    def __len__(self) -> int:
        self._see_acknowledged()
        with alone(STATE), self._follower.lock:
            return len(self._table)

    def __bool__(self) -> bool:
        """True, even without keys."""
        return True

    def __iter__(self) -> Iterator[bytes]:
        """Yield the live keys of this moment, in order."""
        return iter(sorted(self._copy()))

    def items(self) -> list[tuple[bytes, bytes | None]]:
        """Return the live keys of one moment with their values, in order of keys."""

        def resolve(found: dict[bytes, bytes | None]) -> list[tuple[bytes, bytes | None]]:
            linked = [(key, value) for key, value in found.items() if type(value) is LinkBytes]
            if linked:
                lsns = [self._table.lsn_of(key) or 0 for key, _ in linked]
                values = self._values_log().payloads.values(lsns, [Link.decode(value) for _, value in linked])
                found.update(zip((key for key, _ in linked), values, strict=True))
            return sorted(found.items())

        return self._resolved(self._copy, resolve)

    def to_arrow(self) -> pa.Table:
        """Return the state of one moment: key, value, and the LSN of the record that set it; in order of keys."""

        def resolve(table: pa.Table) -> pa.Table:
            if "kind" not in table.column_names:
                return table
            return self._values_log().payloads.with_values(table).drop_columns("kind")

        return self._resolved(lambda: table_of(self._image()), resolve)

    def checksum(self) -> int:
        """Return 64 bits that are equal for equal keys and values, by any history.

        A value in a payload log counts by its length and CRC-32C, so not as the same value in the log.
        """
        return checksum_of(self._image())

    def _dated(self) -> tuple[int, pa.Table]:
        """Return the LSN up to which the state of one moment goes, and the state as of `to_arrow`."""
        self._see_acknowledged()
        with alone(STATE), self._follower.lock:
            lsn, image = self._table.applied_lsn, self._table.snapshot()
        return lsn, table_of(image)

    def _image(self) -> Iterator[Batch]:
        self._see_acknowledged()
        with alone(STATE), self._follower.lock:
            return self._table.snapshot()

    def _copy(self) -> dict[bytes, bytes | None]:
        self._see_acknowledged()
        with alone(STATE), self._follower.lock:
            return self._table.to_dict()
