"""What keeps the records that a stream has not read yet: a claim on the log, moved as Spark commits batches."""

from __future__ import annotations

import time
import uuid

from walkit.errors import ClaimError, StorageError
from walkit.events import EventSink
from walkit.read.claim import Claim, claim
from walkit.segments.claim_files import READ_ONLY, claim_facts, claims_locked, remove_claims
from walkit.segments.manifest_store import load_manifest
from walkit.spark.options import own_claim_name
from walkit.spark.stream_offset import UNCLAIMED
from walkit.storage.address import storage_at


class StreamClaim:
    """The claim of one query at the log at `path`; one thread at a time.

    It is never where the query's offset comes from: that is the checkpoint alone. A query that begins again has its
    claim back by the owner id in its offset.
    """

    def __init__(self, path: str, name: str | None, lease_s: float) -> None:
        self._path, self._name, self._lease_s = path, name, lease_s
        self._claim: Claim | None = None
        self._written_at = 0.0
        self._has_released = False
        """Whether the claims that the query had under other names are released."""

    def begin(self, first_lsn: int, complete_from_lsn: int) -> str:
        """Take the claim of a new query whose first record is `first_lsn`; return its owner id.

        Asked again before the first batch is in the checkpoint, it is the same. `UNCLAIMED` where option `claim` is
        none, or the log's folder cannot be written, which is an event. GapError where `first_lsn` is gone, ClaimError
        where another query's claim has the name or the log has as many claims as it may.
        """
        if self._name == "":
            return UNCLAIMED
        if self._claim is not None:
            return self._claim.owner.hex
        owner = uuid.uuid4()
        try:
            self._take(owner, first_lsn, complete=first_lsn >= complete_from_lsn)
        except StorageError as error:
            if error.errno not in READ_ONLY:
                raise
            self._report(error)
            return UNCLAIMED
        return owner.hex

    def ensure(self, owner: str, first_lsn: int, complete_from_lsn: int) -> None:
        """Have the claim of a query whose next record is `first_lsn`: take it up after a restart, renew it in time.

        GapError where records from there on are gone. A log that cannot be written any more is read without. What the
        query claimed under another name, before its option `claim` was changed, is released after that; with "none"
        all that it claimed is.
        """
        if owner in ("", UNCLAIMED) or (self._name == "" and self._has_released):
            return
        try:
            if self._name == "":
                self._release_of(owner, keep=None)
            elif self._claim is None:
                self._take(uuid.UUID(owner), first_lsn, complete=first_lsn >= complete_from_lsn)
                self._release_of(owner, keep=self._claim)
            elif time.monotonic() - self._written_at > self._claim.lease_s / 4:
                self._renew(owner, first_lsn, complete_from_lsn)
        except StorageError as error:
            self._report(error)

    def advance(self, owner: str, first_lsn: int, complete_from_lsn: int) -> None:
        """Say that only records from `first_lsn` on are still needed. What cannot be written is said at the next."""
        self.ensure(owner, first_lsn, complete_from_lsn)
        if self._claim is None or self._claim.first_lsn >= first_lsn:
            return
        try:
            self._claim.advance(first_lsn)
            self._written_at = time.monotonic()
        except ClaimError:
            self._claim = None  # dropped by a person or by the hard cap: the next batch takes it anew
        except StorageError as error:
            self._report(error)

    def _report(self, error: StorageError) -> None:
        # The sink is made here: what a stream's reader holds is pickled for the workers, and a sink cannot be.
        EventSink().emit("walkit.stream.unclaimed", path=self._path, error=str(error))

    def _renew(self, owner: str, first_lsn: int, complete_from_lsn: int) -> None:
        assert self._claim is not None
        try:
            self._claim.renew()
            self._written_at = time.monotonic()
        except ClaimError:
            self._take(uuid.UUID(owner), first_lsn, complete=first_lsn >= complete_from_lsn)

    def _release_of(self, owner: str, *, keep: Claim | None) -> None:
        """Release the claims of a query but one; once, as only a restart can have changed the name."""
        if self._has_released:
            return
        storage = storage_at(self._path)
        with claims_locked(storage):
            mine = [c.name for c in claim_facts(storage, load_manifest(storage)) if c.owner == owner]
            remove_claims(storage, [name for name in mine if keep is None or name != keep.name])
        self._has_released = True

    def _take(self, owner: uuid.UUID, first_lsn: int, *, complete: bool) -> None:
        self._claim = claim(
            self._path,
            self._name or own_claim_name(owner),
            first_lsn,
            self._lease_s,
            owner=owner,
            complete=complete,
        )
        self._written_at = time.monotonic()
