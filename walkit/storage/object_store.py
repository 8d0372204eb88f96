"""Object stores: the port that a log on objects is written over, and the meaning of each answer.

A store keeps objects by key. An object is immutable bytes with a *tag*: an opaque text that a put of other bytes
changes. The same bytes may get the same tag again, as S3's is their hash. A key is one or more parts with "/" between;
no part is empty, "." or "..": each method refuses others by a StorageError with errno EINVAL. Every implementation
passes `walkit.testing.ObjectStoreTests`.

The contract, which every implementation keeps:

- A put is atomic and durable when it returns: every later `get`, of any process, gives the whole new object. Of all
  puts that are conditional on one state of a key, at most one succeeds.
- `list_after` promises no order, may show less than is there (an object that was just put) or more (one that was just
  deleted), and may be missing: ObjectUnsupportedError. No decision about what exists follows from it.
- A put and a deletion are tried once: one whose answer was lost is not repeated. A read or a list may be tried again.

Each error is an `ObjectStoreError` and has `store`, `key`, `status` and `retry_after_s`. Their meaning:

- ObjectExistsError (put_if_absent), ObjectConflictError (put_if_match): it was not done, or an earlier try of one's own
  was done. Nothing is known of the object, which may be missing.
- ObjectMissingError: there is no such object; from a put: no such bucket.
- ObjectRangeError (get_range): the object is there, and it has at most `start` bytes.
- ObjectDeniedError: it was not done. This says nothing about the object.
- ObjectThrottledError: it was refused for now.
- ObjectUnknownError: it may have been done, may still be done later, or never.
- ObjectUnsupportedError: the store cannot do it: list, or put under a condition.

Any other StorageError (a full disk under `objects:`) means that nothing was put. All methods may be called from any
thread, many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from walkit._internal.arguments import refuse
from walkit.record import Buffer


class ObjectBytes(NamedTuple):
    """Bytes of an object, and its tag."""

    data: bytes
    tag: str


class ObjectEntry(NamedTuple):
    """An object in a list: its key, its size in bytes, and its tag, or "" if the lists of the store have none."""

    key: str
    size: int
    tag: str


class ObjectStore(Protocol):
    """Objects by key; see the contract above."""

    @property
    def location(self) -> str:
        """Where it is, for people: a URL without credentials."""

    @property
    def pause_s(self) -> float:
        """The least time between two puts of one object that the store bears, in seconds."""

    def put_if_absent(self, key: str, data: Buffer) -> str:
        """Create an object; return its tag. ObjectExistsError if there is one."""

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str:
        """Replace the object that has this tag; return the new tag. ObjectConflictError if there is no such object."""

    def get(self, key: str) -> ObjectBytes:
        """Return all bytes of an object, and its tag. ObjectMissingError."""

    def get_range(self, key: str, start: int, stop: int) -> ObjectBytes:
        """Return bytes [start, stop) of an object, fewer if it is shorter, and its tag.

        ObjectRangeError if it has at most `start` bytes; ObjectMissingError.
        """

    def list_after(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield the objects below a folder of keys ("" is the store itself) whose keys sort after `after`.

        The entries come in any order. ObjectUnsupportedError, at the first of them, if the store cannot list.
        """

    def delete(self, key: str) -> None:
        """Remove an object, whatever its tag, if there is one."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects in as few requests as the store allows. After an error any part of them may be removed."""

    def close(self) -> None:
        """Release the store's own resources. Closing twice does nothing."""


def checked_range(start: int, stop: int) -> None:
    """Refuse an empty range, to which stores give different answers: OptionsError."""
    if not 0 <= start < stop:
        refuse("start", start, f"at least 0 and below stop={stop}")
