"""Scratch logs: real files that need no cleaning up, also after a process that was killed.

All scratch logs of one process stand in one folder of its own, whose lock it holds while it lives. The kernel frees
that lock at the process's death, however it dies: so the next process to make a scratch log can tell what is left over.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from walkit.commit.to_end import run_to_end
from walkit.errors import StorageError, WalkitError
from walkit.log.finalizer import end_dropped
from walkit.log.wal import WriteAheadLog
from walkit.storage.folder import Folder
from walkit.storage.locks import FileLock, take_lock

PREFIX = "walkit-scratch-"
LOCK_FILE = "owner"


class Owner(Protocol):
    """What is opened in a scratch place: a log, or a Store over one."""

    def close(self) -> None:
        """Close the files."""


OwnerT = TypeVar("OwnerT", bound=Owner)


class _Scratch:
    """One name's log and its files; knows both weakly, so that a log that is dropped takes its files with it."""

    def __init__(self, owner: Owner, log: WriteAheadLog, place: str) -> None:
        self.place = place
        self._owner, self._log = weakref.ref(owner), weakref.ref(log)
        self._finalizer = weakref.finalize(
            log, end_dropped, log._resources, partial(_remove, place, os.getpid())
        )

    def discard(self) -> bool:
        """Close and remove what is still there; say whether anything was."""
        owner = self._owner() or self._log()
        if owner is None:
            return False
        # A poisoned log may fail to close in order; it is thrown away in any case.
        with contextlib.suppress(WalkitError):
            owner.close()
        self._finalizer.detach()
        _remove(self.place, os.getpid())
        return True


class _Home:
    """The folder of this process's scratch logs."""

    def __init__(self) -> None:
        import tempfile

        self.pid = os.getpid()
        self.taken: dict[str, _Scratch] = {}
        self._names = {LOCK_FILE}
        # It gets its name when its lock is held: a folder with that name and a free lock is left over for certain.
        made = tempfile.mkdtemp(prefix=f".{PREFIX}")
        lock = take_lock(Folder(made), LOCK_FILE)
        assert isinstance(lock, FileLock)
        parent, name = os.path.split(made)
        self.path = os.path.join(parent, name[1:])
        os.rename(made, self.path)
        # Made before the finalisers of the logs in it, and so run after them when the process ends.
        weakref.finalize(self, _leave, self.path, lock, self.pid)

    def fresh_place(self, name: str) -> str:
        """Return a path that this process has not used."""
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name) or "log"
        place, number = safe, 1
        while place in self._names or os.path.lexists(os.path.join(self.path, place)):
            number += 1
            place = f"{safe}-{number}"
        self._names.add(place)
        return os.path.join(self.path, place)


_lock = threading.Lock()
_home: _Home | None = None


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


# A child forked while another thread opens a scratch log would find the lock taken for ever.
os.register_at_fork(after_in_child=_renew_lock)


def open_scratch(
    name: str, opener: Callable[[str], OwnerT], log_of: Callable[[OwnerT], WriteAheadLog]
) -> OwnerT:
    """Open something new in a scratch place; then close and remove what this process had under the same name.

    In this order, so that options which `opener` refuses leave the earlier one as it is. Removes what processes that
    are dead have left, too.
    """
    return run_to_end(lambda: _open_scratch(name, opener, log_of), "open", undo=lambda owner: owner.close())


def _open_scratch(
    name: str, opener: Callable[[str], OwnerT], log_of: Callable[[OwnerT], WriteAheadLog]
) -> OwnerT:
    global _home
    with _lock:
        if _home is None or _home.pid != os.getpid():
            _home = _Home()
        sweep()
        place = _home.fresh_place(name)
        try:
            owner = opener(place)
        except BaseException:
            _rmtree(place)
            raise
        log = log_of(owner)
        earlier = _home.taken.get(name)
        _home.taken[name] = _Scratch(owner, log, place)
        replaced = earlier is not None and earlier.discard()
    if earlier is not None and replaced:
        log.events.emit("walkit.scratch.replace", name=name, removed=earlier.place, location=log.location)
    return owner


def sweep() -> list[str]:
    """Remove the scratch folders of this user whose processes are dead, and return their paths."""
    import tempfile

    root, removed = tempfile.gettempdir(), []
    with os.scandir(root) as found:
        folders = [entry.path for entry in found if entry.name.startswith(PREFIX) and _is_own_folder(entry)]
    for path in folders:
        # Another process may sweep, too, and be first.
        with contextlib.suppress(OSError, StorageError):
            lock = take_lock(Folder(path), LOCK_FILE)
            if isinstance(lock, FileLock):
                _rmtree(path)
                lock.release()
                removed.append(path)
    return removed


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False


def _rmtree(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _remove(place: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the finalisers of its parent, whose files these are
        _rmtree(place)


def _leave(path: str, lock: FileLock, pid: int) -> None:
    if os.getpid() == pid:
        _rmtree(path)
        lock.release()
