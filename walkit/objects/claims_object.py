"""The object of claims and floor, as one process changes it: by swaps, paced, many changes in one.

Facts that trims, claims, snapshots and compaction rest on; `opening` has A, B and C:

- D. The object is replaced by If-Match alone, and its content is never the same twice (nonce and counter). So each
  change was decided on the content that it replaced: a claim that arrives while a trim decides makes the swap of the
  trim fail, and the trim decides again, with the claim in sight. A claim whose swap comes after that of the trim is
  decided on the new low watermark, and is refused if it needs what is gone.
- E. A writer changes floor, files and claims in a turn that finds its own epoch in the object, and an opening notes its
  epoch there before it reads the floor. So a writer that slept through an opening changes none of them again.
- F. Keys of files are given once: each has the epoch and a random number in it. A key that the object of epoch e does
  not name, and whose own epoch is before e, is named by no later object (E).
- G. Bulks and files are deleted only after the swap that stopped naming them is known to have been done. They are dead
  from then on whatever the deleting process sleeps through: no number at or below the floor is put for the log again,
  and no key is given twice.
"""

from __future__ import annotations

import threading
import time
from _thread import get_ident
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import uniform
from secrets import randbits
from typing import Any, TypeVar

from walkit._internal.locks import once
from walkit.errors import LogFencedError, LogNotFoundError, ObjectStoreError
from walkit.format.manifest import read_manifest
from walkit.objects.layout import CLAIMS_KEY, MANIFEST_KEY, Claims, claims_of
from walkit.objects.requests import PAUSE_MAX_S, PAUSE_S, PatientReads, put_own

T = TypeVar("T")
Change = Callable[[Claims], Claims]


@dataclass(eq=False)
class _Batch:
    """Changes that are put together."""

    stored: Claims
    tag: str
    draft: Claims
    later: list[Change]
    """Changes without a caller that waits; they are in the draft."""
    done: threading.Event
    is_put: bool = False
    error: BaseException | None = None
    dropped: set[str] = field(default_factory=set)
    """Keys of files that are deleted once the changes are put, unless they are named then."""


class ClaimsObject:
    """The claims object of one log, in one process. Safe from any thread."""

    def __init__(
        self, reads: PatientReads, log_id: int, epoch: int = 0, *, pace_s: float | None = None
    ) -> None:
        """`epoch` is that of the writer, 0 for any other process; `pace_s` the least time between two puts."""
        self.reads, self.log_id, self.epoch = reads, log_id, epoch
        self.pace_s = reads.store.pause_s if pace_s is None else pace_s
        self.known = Claims(log_id=log_id)
        """The newest content that this process has read or put; for a writer, of its own epoch."""
        self._nonce = randbits(63) | 1
        # Held by the thread that changes the draft, or puts it. Taken without the commit lock.
        self._turn: Any = threading.RLock()
        # Guards `_waiting` and `_later`. Taken alone or after `_turn`, for a few steps of Python.
        self._counting: Any = threading.RLock()
        self._waiting = 0
        self._batch: _Batch | None = None
        self._owner: int | None = None
        """The thread that changes the draft now."""
        self._later: list[Change] = []
        """Changes that no put which is known to have succeeded has; the oldest of them may be under way."""
        self._is_passed = False
        """Whether a put has left some out, as the log has a newer writer."""
        self.ready: dict[str, tuple[str, int]] = {}
        """Key and size of segments that were put and have no name yet; for the thread that compacts."""
        self._due_s, self._lost = 0.0, PAUSE_S
        """When the next put may be made, and how long it is put off at most after one that came too late."""

    def read(self) -> Claims:
        """Return the object as it is now; in a turn the draft of it. Raises what `get` raises.

        LogFencedError if this is a writer and the log has a newer one (E), which may have deleted what this one knows.
        """
        claims = self.draft if self.is_current else self._with(self._fetch()[0], list(self._later))
        if self.epoch not in (0, claims.epoch):
            raise LogFencedError(self.reads.store.location, claims.epoch)
        return claims

    @property
    def is_current(self) -> bool:
        """Whether this thread has its turn."""
        return self._owner == get_ident()

    @property
    def draft(self) -> Claims:
        """The content that is being changed: for the thread whose turn it is."""
        assert self._batch is not None and self.is_current, "only in a turn"
        return self._batch.draft

    @draft.setter
    def draft(self, claims: Claims) -> None:
        assert self._batch is not None and self.is_current, "only in a turn"
        self._batch.draft = claims

    def later(self, change: Change) -> None:
        """Let a change be put with the next one, or by `flush`: an object as it was before is no less right."""
        with once(self._counting), self._counting:
            self._later.append(change)

    def drop_ready(self, names: Iterable[str]) -> None:
        """Delete segments that were put, unless they have their name; whether they have is known first (G).

        In a turn they are deleted at its end: until then the stored object may name them.
        """
        if ready := {self.ready.pop(name)[0] for name in names if name in self.ready}:
            # A put of which the outcome is not known may be under way still: none succeeds after this one.
            self.in_turn(lambda: self._drop(ready))

    def _drop(self, keys: set[str]) -> None:
        """Have the draft put, as it is, and these files deleted then; for the thread whose turn it is."""
        assert self._batch is not None
        self._batch.dropped |= keys
        self.draft = replace(self.draft, counter=self.draft.counter + 1)

    def flush(self) -> None:
        """Have the changes put that wait, or are being put. LogFencedError if the log has a newer writer."""
        if self._later or self._is_passed:
            self.in_turn(self.read)

    def in_turn(self, do: Callable[[], T]) -> T:
        """Call `do`, which changes the draft, and return its result once the draft is durable.

        It is called again, on the newest content, if another process was faster. Its error is raised, and drops its
        change. A turn within a turn is part of it. StorageError: the outcome is not known.
        """
        if self.is_current:
            return do()
        while True:
            batch, result = self._joined(do)
            batch.done.wait()
            if batch.error is not None:
                raise batch.error
            if batch.is_put:
                return result

    def _joined(self, do: Callable[[], T]) -> tuple[_Batch, T]:
        with once(self._counting), self._counting:
            self._waiting += 1
        with once(self._turn):
            try:
                self._turn.acquire()
            finally:
                with once(self._counting), self._counting:
                    self._waiting -= 1
            try:
                batch = self._batch or self._new_batch()
                self._batch, self._owner, before = batch, get_ident(), batch.draft
                try:
                    return batch, do()
                except BaseException:
                    batch.draft = before
                    raise
                finally:
                    self._owner = None
                    # Whoever waits joins this batch, and the last one puts it.
                    if not self._waiting:
                        self._batch = None
                        self._put(batch)
            finally:
                self._turn.release()

    def _new_batch(self) -> _Batch:
        """Read the object, when the next put is due: so what is decided on is as new as it can be."""
        time.sleep(max(self._due_s - time.monotonic(), 0))
        stored, tag = self._fetch()
        later = list(self._later)
        return _Batch(stored, tag, self._with(stored, later), later, threading.Event())

    def _put(self, batch: _Batch) -> None:
        try:
            if batch.draft == batch.stored:
                batch.is_put = True
                return
            after = replace(batch.draft, nonce=self._nonce, counter=batch.draft.counter + 1)
            tag = put_own(self.reads, CLAIMS_KEY, after.encode(), batch.tag)
            batch.is_put = tag is not None
            if tag is None:
                # Others are changing it: not all of them are to look again at the same moment.
                self._due_s = time.monotonic() + uniform(0, self._lost)
                self._lost = min(2 * self._lost, PAUSE_MAX_S)
            else:
                self._due_s, self._lost = time.monotonic() + self.pace_s, PAUSE_S
                self.known = after
                gone = batch.dropped | {key for key, _ in batch.stored.files.values()}
                self._delete(sorted(gone - {key for key, _ in after.files.values()}))
        except BaseException as error:  # noqa: BLE001 - each caller of the batch raises it
            batch.error = error
        finally:
            if batch.is_put and batch.later:
                with once(self._counting), self._counting:
                    del self._later[: len(batch.later)]
                self._is_passed |= batch.draft.epoch != self.epoch
            batch.done.set()

    def _delete(self, keys: list[str]) -> None:
        """Delete files that are no longer named (G). After an error the next opening deletes the rest."""
        with suppress(ObjectStoreError):
            self.reads.repeat(lambda: self.reads.store.delete_many(keys))

    def _fetch(self) -> tuple[Claims, str]:
        location, found = self.reads.store.location, self.reads.find(CLAIMS_KEY)
        if found is None:
            manifest = self.reads.find(MANIFEST_KEY)
            if manifest is None or not read_manifest(manifest.data, location).manifest.lineage:
                raise LogNotFoundError(location, "it is being made")
            found = self.reads.find(CLAIMS_KEY)  # it is put before the first lineage
        claims = claims_of(found, location, self.log_id)
        assert found is not None
        if self.epoch in (0, claims.epoch):
            self.known = claims
        return claims, found.tag

    @staticmethod
    def _with(claims: Claims, changes: list[Change]) -> Claims:
        for change in changes:
            claims = change(claims)
        return claims

    def forget(self) -> None:
        """In a forked child: the parent's threads have the locks."""
        self._turn, self._counting, self._owner = threading.RLock(), threading.RLock(), None
