"""The reading half of a store: a keyed table that follows a log, as a mapping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar, overload

import pyarrow as pa

from walkit._internal.locks import STATE, alone
from walkit.log.validate import as_bytes
from walkit.read.read_api import ReadApi
from walkit.record import Batch, Link, LinkBytes
from walkit.state.applier import Follower
from walkit.state.table import KeyedTable, checksum_of, table_of

T = TypeVar("T")


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
        return value if type(value) is not LinkBytes else self._fetched(key, value)

    def __getitem__(self, key: Any) -> bytes | None:
        self._see_acknowledged()
        key = key if type(key) is bytes else as_bytes(key, "key")
        value = self._table[key]
        return value if type(value) is not LinkBytes else self._fetched(key, value)

    def _fetched(self, key: bytes, value: LinkBytes) -> bytes:
        """Return the value of a link, from its payload log."""
        return self._values_log().payloads.value(self._table.lsn_of(key) or 0, Link.decode(value))

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
        found = self._copy()
        linked = [(key, value) for key, value in found.items() if type(value) is LinkBytes]
        if linked:
            lsns = [self._table.lsn_of(key) or 0 for key, _ in linked]
            values = self._values_log().payloads.values(lsns, [Link.decode(value) for _, value in linked])
            found.update(zip((key for key, _ in linked), values, strict=True))
        return sorted(found.items())

    def to_arrow(self) -> pa.Table:
        """Return the state of one moment: key, value, and the LSN of the record that set it; in order of keys."""
        table = table_of(self._image())
        if "kind" not in table.column_names:
            return table
        return self._values_log().payloads.with_values(table).drop_columns("kind")

    def checksum(self) -> int:
        """Return 64 bits that are equal for equal keys and values, by any history."""
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
