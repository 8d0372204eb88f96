"""Orphans: files of an open log that its manifest does not name. They are removed, again after a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from walkit._locks import once
from walkit.segments.manifest_store import ManifestStore
from walkit.storage.interface import Storage, remove_if_there


class OrphanFiles:
    """The files of an open log that are to be removed. The next opening removes what is still there.

    `lock` is held by the thread that gives files up: from taking them, or the records in them, out of the manifest
    until they are noted and removed. Holds are taken under it, too.
    """

    def __init__(self, storage: Storage, manifest_store: ManifestStore) -> None:
        self.lock = threading.RLock()
        self._storage, self._manifest_store = storage, manifest_store
        self._names: list[str] = []

    def add(self, names: Iterable[str]) -> None:
        """Note files; only once the manifest on stable storage does not name them. Needs the lock held."""
        self._names.extend(names)

    def give_up(self, names: list[str]) -> None:
        """Note segments whose publishing failed, and empty `names`; the manifest is written first.

        Where the failure was that of the manifest, the one on stable storage may name them. The next one does not.
        """
        if names:
            self._manifest_store.update(lambda manifest: manifest.next())
            with once(self.lock), self.lock:
                self.add(names)
                names.clear()

    def remove(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Remove them. After a StorageError the next call removes the rest. Needs the lock held.

        The next sync of the folder makes it durable. A power cut before that may bring one back: no manifest names it,
        and the next opening removes it. The manifest then gets space for edits, if it has little.
        `progress` is called with (files removed, files to remove).
        """
        total = len(self._names)
        if total:
            self._manifest_store.look()
        while self._names:
            remove_if_there(self._storage, self._names[0])
            del self._names[0]
            if progress is not None:
                progress(total - len(self._names), total)
        if total:
            self._manifest_store.renew()

    def forget(self) -> None:
        """In a forked child: forget a lock that a thread of the parent may hold."""
        self.lock = threading.RLock()
