"""Rules of a `FaultyStorage`: which operation fails, when and how."""

from __future__ import annotations

import errno as errno_codes
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

from walkit._internal.arguments import check_choice, check_whole

OperationName: TypeAlias = Literal[
    "read",
    "write",
    "synced_write",
    "sync",
    "allocate",
    "shorten",
    "drop_cached",
    "open",
    "create",
    "replace",
    "remove",
    "sync_directory",
    "create_folder",
    "exists",
    "names",
    "lock",
    "is_locked",
    "cell",
    "cell_read",
    "cell_write",
    "size",
    "close",
]
"""`write` is a write without sync, `synced_write` one with; `create` is `open(name, "create")`, `open` the other
modes, `create_folder` the storage's own `create()`. A `replace` has the target as its file. A `close` is that of a file
open for writing: one that fails has closed it."""
ASIDE: frozenset[OperationName] = frozenset(
    ("exists", "names", "lock", "is_locked", "cell", "cell_read", "cell_write", "size", "close")
)
"""Operations that neither read nor change a file: no trace has them."""
ACTIONS: Mapping[str, str] = {
    "synced_write": "write and sync",
    "sync_directory": "sync the folder",
    "create_folder": "create the folder",
    "drop_cached": "drop the cached pages of",
    "exists": "look for the folder",
    "names": "list",
    "is_locked": "ask for the lock",
    "cell": "open the cell",
    "cell_read": "read the cell",
    "cell_write": "write the cell",
    "size": "read the size of",
}
"""Words for an operation after "cannot", if its name fails as a verb: the words of the storage on files."""
_SKIPPABLE = ("sync", "synced_write", "sync_directory")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation as it began. `file` is "" or the folder for one that has no file; `offset` and `size` are bytes.

    `source` is the old name of a replacement.
    """

    name: OperationName
    file: str = ""
    offset: int = 0
    size: int = 0
    sync: bool = False
    source: str = ""


class Fault:
    """One rule of a `FaultyStorage`. Threads may ask and cancel it at any time.

    `hits` counts the operations it met. A hang has two events: `entered` is set when an operation waits in it,
    `release` releases all, those that come later too.
    """

    def __init__(
        self,
        kind: Literal["fail", "delay", "hang", "skip"],
        operation: OperationName,
        file: str,
        nth: int,
        times: int | None,
    ) -> None:
        check_choice(operation, _SKIPPABLE if kind == "skip" else get_args(OperationName), "operation")
        check_whole(nth, "nth")
        check_whole(times, "times", or_none=True)
        self.kind, self.operation, self.file = kind, operation, file
        self.nth, self.times = nth, times
        self.errno = errno_codes.EIO
        self.short_bytes: int | None = None
        self.landed = False
        self.seconds = 0.0
        self.hits = 0
        self.entered = threading.Event()
        self._go_on = threading.Event()
        self._seen = 0
        self._cancelled = False

    def release(self) -> None:
        """Release the operations that hang here; those that come later do not hang."""
        self._go_on.set()

    def cancel(self) -> None:
        """Meet no more operations."""
        self._cancelled = True
        self.release()

    def meets(self, operation: Operation) -> bool:
        """Count the operation if it matches, and say whether this is one of those to fail. Called under a lock."""
        if self._cancelled or operation.name != self.operation or not fnmatchcase(operation.file, self.file):
            return False
        self._seen += 1
        last = None if self.times is None else self.nth + self.times - 1
        if self._seen < self.nth or (last is not None and self._seen > last):
            return False
        self.hits += 1
        return True

    def wait(self) -> None:
        """Delay or hang, by the fault; do nothing for others."""
        if self.kind == "delay":
            time.sleep(self.seconds)
        elif self.kind == "hang":
            self.entered.set()
            self._go_on.wait()
