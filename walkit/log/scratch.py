"""Scratch logs: real files that need no cleaning up, also after a process that was killed.

All scratch logs of one process share one folder of its own, whose lock it holds while it lives. The kernel frees
that lock at the process's death, however it dies: so the next process finds the leftover files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, Self, TypeVar

from walkit._internal.locks import once
from walkit._main_thread import run_uninterrupted
from walkit.errors import StorageError, WalkitError
from walkit.log.resources import end_dropped
from walkit.log.wal import WriteAheadLog
from walkit.storage.folder import Folder
from walkit.storage.interface import FileNumber, Translated
from walkit.storage.locks import FileLock, take_lock

PREFIX = "walkit-scratch-"
LOCK_FILE = "owner"


class Owner(Protocol):
    """The object opened in a scratch place: a log, or a Store over one."""

    def close(self) -> None:
        """Close the files."""


OwnerT = TypeVar("OwnerT", bound=Owner)


class _Made(NamedTuple):
    """A folder that this process has made, or whose lock it has: the path is its name, the number its identity."""

    path: str
    number: FileNumber

    @classmethod
    def found(cls, path: str) -> Self:
        """Return the folder that is at this path now. OSError."""
        status = os.lstat(path)
        return cls(path, FileNumber(status.st_dev, status.st_ino))

    def is_there(self) -> bool:
        """Say whether it still has its name."""
        try:
            return _Made.found(self.path) == self
        except OSError:
            return False

    def remove(self) -> bool:
        """Remove the folder with all in it; False, and nothing is touched, if another has its name or none."""
        import shutil

        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            status = os.fstat(fd)
            if FileNumber(status.st_dev, status.st_ino) != self.number:
                return False
            with os.scandir(fd) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for name, is_folder in found:  # through the descriptor: it follows a rename
                if is_folder:
                    shutil.rmtree(name, ignore_errors=True, dir_fd=fd)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=fd)
        finally:
            os.close(fd)
        with contextlib.suppress(OSError):  # it is empty: whatever else took the name meanwhile stays
            os.rmdir(self.path)
        return True


class _Scratch:
    """One name's log and its files; knows both weakly, so that a log that is dropped takes its files with it."""

    def __init__(self, owner: Owner, log: WriteAheadLog, place: _Made) -> None:
        self.place = place
        self._owner, self._log = weakref.ref(owner), weakref.ref(log)
        self._finalizer = weakref.finalize(
            log, end_dropped, log._resources, partial(_remove, place, os.getpid())
        )

    def discard(self) -> bool:
        """Close and remove all remaining objects; say whether anything was."""
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

    def __init__(self, before: _Home | None) -> None:
        """`before` is this process's folder that lost its name, as to a program that tidies temporary files."""
        import tempfile

        self.pid = os.getpid()
        self.before = before
        """Kept, and with it its lock: its logs may be open."""
        self.taken: dict[str, _Scratch] = {} if before is None else before.taken
        self._names = {LOCK_FILE}
        # It gets its name when its lock is held: a folder with that name and a free lock is a dead process's.
        made = tempfile.mkdtemp(prefix=f".{PREFIX}")
        lock = take_lock(Folder(made), LOCK_FILE)
        assert isinstance(lock, FileLock)
        parent, name = os.path.split(made)
        self.folder = _Made.found(made)._replace(path=os.path.join(parent, name[1:]))
        os.rename(made, self.folder.path)
        # Made before the finalisers of the logs in it, and so run after them when the process ends.
        weakref.finalize(self, _leave, self.folder, lock, self.pid)

    def fresh_place(self, name: str) -> _Made:
        """Make a folder of a name that this process has not used."""
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name) or "log"
        place, number = safe, 1
        while place in self._names or os.path.lexists(os.path.join(self.folder.path, place)):
            number += 1
            place = f"{safe}-{number}"
        self._names.add(place)
        path = os.path.join(self.folder.path, place)
        os.mkdir(path)
        return _Made.found(path)


# Guards `_home` and the names in it. Taken alone: no log is opened or closed under it.
_lock = threading.RLock()
_home: _Home | None = None


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


# A child forked while another thread opens a scratch log would find the lock taken forever.
os.register_at_fork(after_in_child=_renew_lock)


def open_scratch(
    name: str, opener: Callable[[str], OwnerT], log_of: Callable[[OwnerT], WriteAheadLog]
) -> OwnerT:
    """Open something new in a scratch place; then close and remove this process's earlier one of that name.

    In this order, so options that `opener` refuses leave the earlier one as it is. Removes the remains of dead
    processes, too.
    """
    return run_uninterrupted(
        lambda: _open_scratch(name, opener, log_of), "open", undo=lambda owner: owner.close()
    )


def _open_scratch(
    name: str, opener: Callable[[str], OwnerT], log_of: Callable[[OwnerT], WriteAheadLog]
) -> OwnerT:
    place = _fresh_place(name)
    try:
        owner = opener(place.path)
    except BaseException:
        with contextlib.suppress(OSError):  # a later sweep takes the rest
            place.remove()
        raise
    log = log_of(owner)
    with once(_lock), _lock:
        assert _home is not None
        earlier, _home.taken[name] = _home.taken.get(name), _Scratch(owner, log, place)
    if earlier is not None and earlier.discard():
        log.events.emit(
            "walkit.scratch.replace", name=name, removed=earlier.place.path, location=log.location
        )
    return owner


def _fresh_place(name: str) -> _Made:
    global _home
    with once(_lock), _lock, Translated("make a scratch log", name, "the folder for temporary files"):
        if _home is None or _home.pid != os.getpid():
            _home = _Home(None)
        elif not _home.folder.is_there():
            _home = _Home(_home)
        sweep()
        return _home.fresh_place(name)


def sweep() -> list[str]:
    """Remove the scratch folders of this user whose processes are dead, and return their paths.

    A folder without the lock's file is left alone: something that tidies temporary files has taken that of a living
    process, or it never was a scratch folder. A lock that this call would make there would prove nothing.
    """
    import tempfile

    root, removed = tempfile.gettempdir(), []
    with os.scandir(root) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in paths:
        # Another process may sweep, too, and be first.
        with contextlib.suppress(OSError, StorageError):
            folder, lock_path = _Made.found(path), os.path.join(path, LOCK_FILE)
            if not _is_own_folder(path) or not stat.S_ISREG(os.lstat(lock_path).st_mode):
                continue
            lock = take_lock(Folder(path), LOCK_FILE)
            if isinstance(lock, FileLock):
                try:
                    if folder.remove():
                        removed.append(path)
                finally:
                    lock.release()
    return removed


def _is_own_folder(path: str) -> bool:
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove(folder: _Made, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the finalisers of its parent, whose files these are
        folder.remove()


def _leave(folder: _Made, lock: FileLock, pid: int) -> None:
    if os.getpid() == pid:
        folder.remove()
        lock.release()
