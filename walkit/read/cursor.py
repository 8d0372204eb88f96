"""Cursors: the saved progress of consumers, each in a separate file beside the log (FORMAT.md F-17).

A cursor holds nothing back. A consumer that must not be outrun by trimming takes a claim as well, and moves it after
the cursor. Quiver's cursor sidecar is the source, with one difference: a cursor past the end of the log is refused.
Quiver moves it to the end, which skips records in silence.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from walkit._internal.arguments import as_lsn, refuse
from walkit._internal.html import join, red_lines, titled
from walkit._internal.locks import STATE, alone
from walkit._main_thread import run_uninterrupted
from walkit.errors import CorruptionError, CursorDivergedError, CursorError, GapError
from walkit.format.consumer_file import CursorRecord, encode_cursor
from walkit.format.file_names import cursor_file_name, is_cursor_name
from walkit.format.manifest import Manifest
from walkit.read.read_api import ReadApi, resolved
from walkit.read.view import View
from walkit.record import Record, wall_us
from walkit.segments.consumer_files import (
    ClaimFact,
    CursorFact,
    claim_facts,
    cursor_facts,
    drop_claim,
    stored_cursor,
    time_text,
)
from walkit.segments.history import identity_at, lies_in
from walkit.segments.manifest_store import load_manifest
from walkit.storage.bulk import write_whole
from walkit.storage.interface import Storage, remove_if_there

if TYPE_CHECKING:
    from walkit.read.inventory import LogInventory


class CursorApi(ReadApi):
    """The cursor methods of every log: the same for the writer's object and for readers in other processes."""

    @abstractmethod
    def _cursor_storage(self) -> Storage:
        """Return where the cursors and claims are; LogClosedError once closed."""

    @abstractmethod
    def _make_durable(self, lsn: int) -> int:
        """Make the log durable up to `lsn`, if this object can; return how far it is on stable storage."""

    def _for_consumers(self) -> tuple[View, int]:
        """Return the view of a consumer with saved progress, and its last LSN: records that can become durable."""
        return self._now()

    @abstractmethod
    def follow(self, first_lsn: int, timeout: float | None = None) -> Iterator[Record]:
        """See the classes that can."""

    def cursor(self, name: str, *, start_lsn: int | None = None) -> Cursor:
        """Return the saved progress of the consumer `name`: 1 to 64 letters, digits, "_" and "-".

        One that is not there begins before LSN 1, so that nothing is skipped: of a log that has been trimmed the first
        reading is then a GapError. With `start_lsn` it begins there instead, durably on return; one that is there stays
        as it is. One that is damaged begins before LSN 1 too, with `fault` and the event `walkit.cursor.reset`: its
        consumer sees records twice, and misses none.

        FormatVersionError if a newer walkit has written it. CursorError if it belongs to another log, is beyond the end
        of this one, or its records were cut: `drop_cursor`, and choose a start. LogClosedError, StorageError,
        OptionsError for an invalid name or `start_lsn`.
        """
        check_name(name)
        return Cursor(self, name, start_lsn)

    def cursors(self) -> list[CursorFact]:
        """Return the facts of this log's cursor files, by name; a damaged one has its fault."""
        storage = self._cursor_storage()
        return cursor_facts(storage)

    def inventory(self) -> LogInventory:
        """Return the log's content at this moment, and its consumers: segments, marks, claims, cursors."""
        from walkit.read.inventory import inventory_of

        storage = self._cursor_storage()
        now, newest = self._now()
        claims, cursors = tuple(self._claims_of(now.manifest)), tuple(cursor_facts(storage))
        return inventory_of(storage.location, now, newest, cursors, claims)

    def _claims_of(self, manifest: Manifest) -> list[ClaimFact]:
        """Return the claims as they are now."""
        return claim_facts(self._cursor_storage(), manifest)

    def _drop_claim(self, name: str) -> bool:
        """Remove a claim; False if it was not there."""
        return drop_claim(self._cursor_storage(), name)

    def claims(self) -> list[ClaimFact]:
        """Return the claims of consumers, by name, as they are now; see `walkit.claim` and `log.hold`.

        An unreadable one has its fault. Those whose lease is over stay listed until the next trim.
        """
        return self._claims_of(load_manifest(self._cursor_storage()))

    def drop_claim(self, name: str) -> bool:
        """Remove a claim, durably; False if it is absent. For consumers that never return.

        One that does return gets a ClaimError ("dropped") while its lease runs. ClaimError for a claim of `log.hold`
        in another process that lives. StorageError (ETIMEDOUT) if the claims' lock is not free in time.
        """
        return run_uninterrupted(lambda: self._drop_claim(name), "claim", events=self.events)

    def drop_cursor(self, name: str) -> bool:
        """Remove the saved progress of a consumer, durably; False if it was absent."""
        storage = self._cursor_storage()
        if not remove_if_there(storage, cursor_file_name(name)):
            return False
        storage.sync_directory()
        return True


class Cursor:
    """How far one consumer has come: everything up to `lsn` is done. Safe from any thread.

    Save it *after* the effect of the records, and a crash in between shows them again: at least once. Save their LSN in
    one step with the effect instead (a snapshot, a database's transaction), take up from there, and let the cursor
    follow: exactly once.
    """

    def __init__(self, log: CursorApi, name: str, start_lsn: int | None) -> None:
        self.name = name
        self.fault: str | None = None
        """Why the file found was ignored; None if it was not."""
        self._log = log
        # Guards `_lsn`, `_found` and `_unsure`, and is held through one save; before the locks that making records
        # durable takes. Its rank is STATE.
        self._lock = threading.Lock()
        self._unsure: list[CursorRecord] = []
        """The records tried to save since the last success: any of them may be on storage."""
        storage, events = log._cursor_storage(), log.events
        view, newest = log._now()
        last = _last_of(view.manifest, newest)
        try:
            self._found = stored_cursor(storage, name)
        except CorruptionError as error:
            self._found, self.fault = None, str(error)
            events.emit("walkit.cursor.reset", name=name, error=str(error))
        self._lsn = 0 if self._found is None else self._found.lsn
        if self._found is not None:
            _refuse_another(self._found, name, view.manifest, last)
        elif start_lsn is not None and self.fault is None:
            start_lsn = as_lsn(start_lsn, "start_lsn")
            if not 1 <= start_lsn <= last + 1:
                refuse("start_lsn", start_lsn, f"an LSN from 1 to {last + 1}, where the log ends", last)
            self._refuse_undurable(start_lsn - 1)
            self._save(storage, view, start_lsn - 1)

    @property
    def lsn(self) -> int:
        """The last LSN that is done; 0 at the beginning."""
        return self._lsn

    def read(self) -> Iterator[Record]:
        """Yield the records after the cursor, as they are at the call; through a reader those on stable storage.

        GapError if one of them was trimmed, or compacted away: never a skip. CursorError if another log is there
        now, or the consumed records were cut. It is not advanced by this.
        """
        view, newest = self._log._for_consumers()
        self._refuse_exchanged(view.manifest)
        first = self._lsn + 1
        if first < view.complete_from_lsn:
            raise GapError(first, view.complete_from_lsn)
        return resolved(self._log, view.record_batches(first, newest)) if first <= newest else iter(())

    def follow(self, timeout: float | None = None) -> Iterator[Record]:
        """Yield the records after the cursor, and continue with new ones: see the log's `follow`.

        CursorError as with `read`.
        """
        self._refuse_exchanged(self._log._now()[0].manifest)
        return self._log.follow(self._lsn + 1, timeout)

    def advance(self, lsn: int) -> None:
        """Save that everything up to `lsn` is done; durable on return, and atomic: the old LSN remains, or the new one.

        Any LSN that can be read is good, also one within a frame or a transaction. If it is not on stable storage yet,
        the log is made durable up to it first: a cursor is never ahead of a power cut. A reader cannot do that, and
        must not: there it is a CursorError ("undurable"), until an opening for writing has done it.

        OptionsError for one below `lsn`, or after the end of the log. CursorError ("moved") if another consumer has
        advanced or dropped the cursor of this name since; two that advance at the very same time are not distinguished.
        CursorError as with `read`. LogClosedError. StorageError: either LSN may be saved, and advancing again is right.
        """
        with alone(STATE), self._lock:
            storage = self._log._cursor_storage()
            view, newest = self._log._now()
            self._refuse_exchanged(view.manifest)
            last = _last_of(view.manifest, newest)
            lsn = as_lsn(lsn)
            if not self._lsn <= lsn <= last:
                text = f"from {self._lsn}, where the cursor {self.name!r} is, to {last}, where the log ends"
                refuse("lsn", lsn, text, self._lsn)
            if lsn == self._lsn:
                return
            self._refuse_moved(storage)
            self._refuse_undurable(lsn)
            self._save(storage, view, lsn)

    def _refuse_exchanged(self, manifest: Manifest) -> None:
        """Refuse to continue in another log or another history than the one in which the work was done."""
        if self._found is not None:
            _refuse_another(self._found, self.name, manifest, None)

    def _refuse_undurable(self, lsn: int) -> None:
        """Have everything up to `lsn` on stable storage; CursorError if this log's object cannot do that."""
        durable = self._log._make_durable(lsn)
        if durable < lsn:
            raise CursorError(
                f"the cursor {self.name!r} cannot be at {lsn:,}: the log is known to be on stable storage up to LSN "
                f"{durable:,}, and later bytes of its dead writer may be gone after a power cut. Nothing was "
                "changed; open the log for writing once, which makes it durable",
                name=self.name,
                reason="undurable",
                lsn=self._lsn,
                expected=lsn,
                found=durable,
            )

    def _refuse_moved(self, storage: Storage) -> None:
        try:
            stored = stored_cursor(storage, self.name)
        except CorruptionError:
            return  # this consumer's own record takes its place now
        if _place_of(stored) == _place_of(self._found) or stored in self._unsure:
            return
        before = 0 if self._found is None else self._found.lsn
        now = 0 if stored is None else stored.lsn
        raise CursorError(
            f"the cursor {self.name!r} was at {before} and is at {now}: another consumer of this name has moved it",
            name=self.name,
            reason="moved",
            lsn=now,
            expected=before,
            found=now,
        )

    def _save(self, storage: Storage, view: View, lsn: int) -> None:
        log_id, epoch, epoch_id = identity_at(view.manifest, lsn)
        mark = CursorRecord(log_id, epoch, epoch_id, lsn, wall_us())
        self._unsure.append(mark)
        write_whole(
            storage, cursor_file_name(self.name), cursor_file_name(self.name, new=True), encode_cursor(mark)
        )
        self._found, self._lsn = mark, lsn
        self._unsure.clear()
        self._check()

    def _check(self) -> None:
        """Assert that the cursor is at its file's position, if that was not damaged."""
        assert self._lsn == (0 if self._found is None else self._found.lsn) >= 0
        assert self._found is None or self._found.log_id, "a mark of no log"

    def __repr__(self) -> str:
        return f"Cursor({self.name!r}, lsn={self._lsn})"

    def _repr_html_(self) -> str:
        when = "never" if self._found is None else time_text(self._found.moved_us)
        facts = [("done up to LSN", f"{self._lsn:,}"), ("saved", when)]
        return join([red_lines([self.fault] if self.fault else ()), titled(f"Cursor {self.name}", facts)])


def _last_of(manifest: Manifest, newest: int) -> int:
    """Return the last LSN that was given, as far as the rest shows."""
    return max(newest, manifest.vouched_lsn)


def _place_of(mark: CursorRecord | None) -> tuple[int, ...]:
    """Return where a mark stands, whenever it was saved: its record's full identity; () without a mark or a record."""
    return () if mark is None or not mark.lsn else (mark.log_id, mark.epoch, mark.epoch_id, mark.lsn)


def _refuse_another(mark: CursorRecord, name: str, manifest: Manifest, last: int | None) -> None:
    """CursorError if the log cannot be continued from this mark without a guess; `last` is its last LSN, if known.

    It is a CursorDivergedError if the records before the mark were cut.
    """

    def message(what: str) -> str:
        return (
            f"the cursor {name!r} is at LSN {mark.lsn:,} {what}. Nothing was changed; drop_cursor({name!r}), and "
            f"cursor({name!r}, start_lsn=...) starts it again"
        )

    if mark.log_id != manifest.log_id:
        raise CursorError(
            message("of another log"),
            name=name,
            reason="foreign",
            lsn=mark.lsn,
            expected=manifest.log_id,
            found=mark.log_id,
        )
    if last is not None and mark.lsn > last:
        raise CursorDivergedError(
            message(f"and the log ends at {last:,}"),
            name=name,
            reason="beyond",
            lsn=mark.lsn,
            first_lsn=last + 1,
            expected=last,
            found=mark.lsn,
        )
    identity = identity_at(manifest, mark.lsn)[1:]
    if identity[0] not in (0, mark.epoch) or not lies_in(manifest, mark.lsn, mark.epoch_id):
        found = (mark.epoch, mark.epoch_id)
        what = (
            f"of epoch {mark.epoch}, and the record there is of epoch {identity[0]}: what it had done was cut"
        )
        after = [e.first_lsn for e in manifest.lineage if e.number > mark.epoch]
        raise CursorDivergedError(
            message(what),
            name=name,
            reason="identity",
            lsn=mark.lsn,
            first_lsn=min([*after, mark.lsn]),
            expected=identity,
            found=found,
        )


def check_name(name: str) -> None:
    """Raise OptionsError unless a claim or a cursor can have this name."""
    if not isinstance(name, str) or not is_cursor_name(name):
        refuse("name", name, "1 to 64 letters, digits, '_' and '-'")
