"""The claim that keeps the records that a stream has not read yet, moved as Spark commits batches.

A stream of changes needs the state before its next record too. So its claim begins after a snapshot, which a checkpoint
then keeps: see `Checkpointer`.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from walkit.errors import ClaimError, FormatVersionError, GapError, SnapshotError, StorageError
from walkit.events import EventSink
from walkit.objects.view import ObjectEnd
from walkit.read.kept_claim import KeptClaim
from walkit.read.reader import ViewSource
from walkit.segments.consumer_files import claim_facts, in_claims_turn, remove_claims
from walkit.segments.manifest_store import load_manifest
from walkit.spark.object_log import source_at
from walkit.spark.options import LoadOptions, own_claim_name
from walkit.spark.stream_offset import UNCLAIMED
from walkit.state.load_snapshot import newest_base
from walkit.state.snapshot import snapshot_lsns

MOVE_S = 60.0
"""The lease of the claim that holds a snapshot while a query's claim moves there."""


class StreamClaim:
    """The claim of one query; one thread at a time.

    The query's offset never comes from it: the checkpoint alone has that. A query that starts again has its claim back
    by the owner id in its offset. With view `changes` the claim keeps the state before the next record as well.
    """

    def __init__(self, options: LoadOptions) -> None:
        self._options, self._path, self._name = options, options.paths[0], options.claim
        self._of_state = options.view == "changes"
        self._source: ViewSource | None = None
        self._kept: KeptClaim | None = None
        self._has_released = False
        """Whether the claims that the query had under other names are released."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: it takes the claim up itself, with its own client of a store."""
        return {**self.__dict__, "_kept": None, "_source": None}

    def close(self) -> None:
        """Release what is held of object storage; the claim stays."""
        if isinstance(self._source, ObjectEnd):
            self._source.reads.store.close()

    def source(self) -> ViewSource:
        """Return where the query's views of the log come from."""
        self._source = self._source or source_at(self._path, self._options.storage_options)
        return self._source

    def begin(self, first_lsn: int, complete_from_lsn: int) -> str:
        """Take the claim of a new query whose first record is `first_lsn`; return its owner id.

        Asked again before the first batch is in the checkpoint, it is the same. `UNCLAIMED` where option `claim` is
        none, or the log's folder cannot be written, which is an event. GapError where `first_lsn` is gone, ClaimError
        where another query's claim has the name or the log has as many claims as it may.
        """
        if self._name == "":
            return UNCLAIMED
        kept = self._kept
        if kept is None or kept.first_lsn is None:
            kept = self._kept_of(uuid.uuid4())
            complete = not self._of_state and first_lsn >= complete_from_lsn
            kept.take(self._taken_from(first_lsn), complete=complete)
            if kept.first_lsn is None:
                self._report(kept.trouble)
                return UNCLAIMED
            self._has_released = True  # a new owner has no other
        assert kept.owner is not None
        return kept.owner.hex

    def ensure(self, owner: str, first_lsn: int, complete_from_lsn: int) -> None:
        """Have the claim of a query whose next record is `first_lsn`: take it up after a restart, renew it in time.

        GapError if records from there on are gone. A log that has become read-only is read without a claim. After that
        the query's claim under another name, from before its option `claim` was changed, is released; with "none" each
        of its claims is.
        """
        if owner in ("", UNCLAIMED) or (self._name == "" and self._has_released):
            return
        try:
            if self._name == "":
                self._release_of(owner, keep="")
                return
            kept = self._kept or self._kept_of(uuid.UUID(owner))
            try:
                self._keep(kept, first_lsn, complete_from_lsn, moves=False)
            # Dropped by a person or by the hard cap, another session's, or trimmed since it was looked at.
            except (ClaimError, GapError):
                self._keep(kept, first_lsn, complete_from_lsn, moves=False)
            if kept.first_lsn is not None:
                self._release_of(owner, keep=kept.name)
        except StorageError as error:
            self._report(str(error))

    def advance(self, owner: str, first_lsn: int, complete_from_lsn: int) -> None:
        """Say that only records from `first_lsn` on are still needed. A failure is reported by the next call."""
        self.ensure(owner, first_lsn, complete_from_lsn)
        kept = self._kept
        if kept is None or kept.first_lsn is None or kept.first_lsn >= first_lsn:
            return
        with suppress(
            ClaimError, FormatVersionError, SnapshotError, StorageError
        ):  # the next batch tries again
            if self._of_state:
                self._move_to_snapshot(kept, kept.first_lsn, first_lsn - 1)
            else:
                self._keep(kept, first_lsn, complete_from_lsn, moves=True)

    def _move_to_snapshot(self, kept: KeptClaim, held_lsn: int, up_to_lsn: int) -> None:
        """Have the claim begin after the newest snapshot from which the state at `up_to_lsn` follows."""
        found = newest_base(self.source().now().view, held_lsn - 1, up_to_lsn)
        if found is None:
            return
        folder = self.source().folder()
        # A checkpoint removes no snapshot after which a claim begins. So a second claim holds this one while the first
        # claim moves, which cannot move back.
        holder = KeptClaim(folder, own_claim_name(uuid.uuid4()), MOVE_S)
        holder.take(found + 1)
        if holder.first_lsn is not None and found in snapshot_lsns(folder):
            self._keep(kept, found + 1, 0, moves=True)
        holder.release()

    def _taken_from(self, first_lsn: int) -> int:
        """Return where the claim begins when it is taken: for a state at the oldest record, and `advance` moves it."""
        return self.source().now().view.first_lsn if self._of_state else first_lsn

    def _keep(self, kept: KeptClaim, first_lsn: int, complete_from_lsn: int, *, moves: bool) -> None:
        complete = not self._of_state and first_lsn >= complete_from_lsn
        position = self._taken_from(first_lsn) if kept.first_lsn is None else first_lsn
        if not kept.keep(position, moves=moves, complete=complete):
            self._report(kept.trouble)

    def _report(self, error: str) -> None:
        # The sink is made here: what a stream's reader holds is pickled for the workers, and a sink cannot be.
        EventSink().emit("walkit.stream.unclaimed", path=self._path, error=error)

    def _kept_of(self, owner: uuid.UUID) -> KeptClaim:
        self._kept = KeptClaim(
            self.source().folder(), self._name or own_claim_name(owner), self._options.claim_s, owner
        )
        return self._kept

    def _release_of(self, owner: str, *, keep: str) -> None:
        """Release the claims of a query but one; once, as only a restart can have changed the name."""
        if self._has_released:
            return
        storage = self.source().folder()

        def release() -> None:
            mine = [c.name for c in claim_facts(storage, load_manifest(storage)) if c.owner == owner]
            remove_claims(storage, [name for name in mine if name != keep])

        in_claims_turn(storage, release)
        self._has_released = True
