"""A claim that is kept in force for as long as its consumer runs: written in time, and taken again after a loss."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from walkit.errors import StorageError, WalkitError
from walkit.events import EventCallback, EventSink
from walkit.format.manifest import LogEnd
from walkit.read.claim import RENEWALS, Claim, is_due, lease_us_of
from walkit.segments.consumer_files import LOCK_WAIT_S, READ_ONLY
from walkit.storage.address import Place, storage_at

READ_ONLY_S = 60.0
"""The time between two tries in a folder that can only be read, if the lease has time for that."""


class KeptClaim:
    """The claim of one consumer, whose own thread calls `keep` as often as it likes. One thread at a time writes.

    A log that has no claims yet has no place for one: then nothing is written.

    A folder that can only be read has no claim: trims and compaction may overtake the consumer there.
    """

    def __init__(
        self,
        place: Place | None,
        name: str,
        lease_s: float,
        owner: uuid.UUID | None = None,
        *,
        move_s: float = 0.0,
        wait_s: float = LOCK_WAIT_S,
        events: EventCallback | None = None,
    ) -> None:
        """`move_s` is the least time between two writings: each costs a sync."""
        self.name, self.owner = name, owner
        self.label, self.acked = "", LogEnd()
        """Of a replica: written with the next writing."""
        self.lease_s = lease_s
        self._place, self._events = place, events
        self._move_s, self._wait_s = move_s, wait_s
        self._claim: Claim | None = None
        self._tried_s = -math.inf
        self.trouble = ""
        """Why the last writing failed; "" if it did not."""
        self.errno: int | None = None
        """The number of the error with which storage refused the last writing."""

    @property
    def first_lsn(self) -> int | None:
        """The first record that is kept; None without a claim."""
        held = self._claim
        return None if held is None else held.first_lsn

    def line(self) -> str:
        """Describe the kept records."""
        held = self._claim
        if held is None:
            return f"none: {self.trouble}" if self.trouble else "none"
        return f"LSN {held.first_lsn:,} and later, {held.state}"

    def is_time(self, first_lsn: int) -> bool:
        """Whether `keep` writes: to take, move or renew the claim, if the last try is long enough ago."""
        held = self._claim
        pause_s = self._move_s
        if self.errno in READ_ONLY:
            pause_s = min(READ_ONLY_S, self.lease_s / RENEWALS)
        if time.monotonic() - self._tried_s < pause_s:
            return False
        return held is None or first_lsn != held.first_lsn or is_due(held)

    def take(self, first_lsn: int | None, *, epoch_id: int | None = None, complete: bool = False) -> None:
        """Take the claim, from this record on, or from the oldest there is.

        Raises the errors of `walkit.claim`, except for a folder that can only be read, which is a `trouble`.
        """
        try:
            with self._trying():
                self._take(first_lsn, epoch_id, complete)
        except StorageError as error:
            if error.errno not in READ_ONLY:
                raise

    def keep(
        self,
        first_lsn: int,
        *,
        moves: bool = True,
        now: bool = False,
        epoch_id: int | None = None,
        complete: bool = False,
    ) -> bool:
        """Keep the records from here on, if it is time to write that, or `now`; False if storage refused it.

        With `moves` off a claim is renewed at its position, and only a new one begins here. A later call tries again
        after storage has refused. Any other error of `Claim.advance` or `walkit.claim` is raised, and the next call
        takes the claim again.
        """
        held = self._claim
        wanted = first_lsn if held is None or moves else held.first_lsn
        if now or self.is_time(wanted):
            with suppress(StorageError), self._trying():
                if held is None:
                    self._take(first_lsn, epoch_id, complete)
                else:
                    held.label, held.acked = self.label, self.acked
                    held.advance(wanted)
                return True
            return False
        return True

    def release(self) -> None:
        """Give the claim up; if that fails, its lease ends it."""
        held, self._claim = self._claim, None
        if held is not None:
            with suppress(WalkitError), self._trying():
                held.release()

    def _take(self, first_lsn: int | None, epoch_id: int | None, complete: bool) -> None:
        if self._place is None:
            return
        owner, lease_us = self.owner or uuid.uuid4(), lease_us_of(self.lease_s)
        storage, events = storage_at(self._place), EventSink(self._events)
        made = Claim(storage, events, self.name, owner, lease_us, complete=complete, wait_s=self._wait_s)
        made.label, made.acked, made.continues = self.label, self.acked, False
        made.take(first_lsn, epoch_id)
        self._claim, self.owner = made, owner

    @contextmanager
    def _trying(self) -> Iterator[None]:
        self.errno, trouble = None, ""
        try:
            yield
        except StorageError as error:
            self.errno, trouble = error.errno, f"{type(error).__name__}: {error}"
            if error.errno in READ_ONLY:
                trouble = f"the log's folder can only be read, so nothing is kept back: {error}"
            raise
        except WalkitError as error:
            self._claim, trouble = None, f"{type(error).__name__}: {error}"
            raise
        finally:
            self.trouble, self._tried_s = trouble, time.monotonic()
