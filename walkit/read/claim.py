"""Claims: the records that a consumer still needs, in a file beside the log (FORMAT.md F-18).

Consumer and writer meet at one lock: the consumer has it while it reads the manifest and writes its claim, the writer
while it reads the claims and publishes what it drops. `log.hold` takes a claim in the writer's own process.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from types import TracebackType
from typing import Self

from walkit._arguments import as_seconds, refuse
from walkit._html import titled
from walkit.commit.to_end import run_to_end
from walkit.errors import OptionsError
from walkit.events import EventCallback, EventSink
from walkit.format.layout import CLAIM_LEASE_US_MAX
from walkit.format.names import is_claim_name
from walkit.read.claim_rules import as_first
from walkit.read.written_claim import WrittenClaim
from walkit.record import STAMP_MAX, to_datetime
from walkit.segments.claim_files import LOCK_WAIT_S, OWN
from walkit.storage.address import Place, storage_at

LEASE_S_DEFAULT = 3600.0


def claim(
    path: Place,
    name: str,
    first_lsn: int | None = None,
    lease_s: float = LEASE_S_DEFAULT,
    *,
    owner: uuid.UUID | None = None,
    take_over: bool = False,
    epoch_id: int | None = None,
    complete: bool = True,
    wait_s: float = LOCK_WAIT_S,
    events: EventCallback | None = None,
) -> Claim:
    """Keep the records of a log from `first_lsn` on, from any process; durable, and in force, on return.

    Trims, retention and compaction of the log's writer keep to it until its lease is over: `lease_s` seconds, at most
    30 days, after it was written, by the wall clock of this machine. `advance` and `renew` write it anew. Only the hard
    cap of a retention (`Retention.hard_bytes_max`) is above a claim.

    `name` is 1 to 64 letters, digits, "_" and "-". `first_lsn` None continues where the claim of this name stands; with
    none there, it is the oldest record there is. `owner` is the consumer's random id, kept with the consumer's own
    state: a consumer that begins again gives it, and has its claim back; None makes a new one (`Claim.owner`). A claim
    of another owner whose lease runs is left to it, unless `take_over`. `epoch_id`, where the consumer has saved it, is
    that of the record before `first_lsn`. With `complete=False` records that compaction has dropped as superseded may
    be missing after `first_lsn`: for a consumer that takes the compacted segments as they are. Each writing of a claim
    waits at most `wait_s` seconds for the claims' lock, which a writer has while it publishes what it drops.

    GapError where records from `first_lsn` on are gone already; DivergenceError where the saved position is of records
    that were cut: the log there is another history. ClaimError where the name is another's, the log has 64 claims, or
    the wall clock is before 1970 or after 9999.
    StorageError: EACCES or EROFS for a consumer that may not write to the log's folder, ETIMEDOUT where the claims'
    lock is not free in time. LogNotFoundError, FormatVersionError, OptionsError. Safe from any thread.

    For local file systems: other machines need locks that work between them, and clocks that agree.
    """
    check_name(name)
    if owner is not None and (not isinstance(owner, uuid.UUID) or owner.bytes == OWN):
        refuse("owner", owner, "a random uuid.UUID, or None")
    written = WrittenClaim(
        storage_at(path),
        EventSink(events),
        name,
        owner or uuid.uuid4(),
        lease_us_of(lease_s),
        complete=complete,
        wait_s=as_seconds(wait_s, "wait_s"),
    )
    first_lsn = None if first_lsn is None else as_first(first_lsn)
    written.take(first_lsn, epoch_id, take_over)
    return Claim(written)


def check_name(name: str) -> None:
    """OptionsError for a name that no claim can have."""
    if not isinstance(name, str) or not is_claim_name(name):
        raise OptionsError(
            f"a claim's name is 1 to 64 letters, digits, '_' and '-', not {name!r}",
            option="name",
            wanted=name,
        )


def lease_us_of(lease_s: float) -> int:
    """Return a lease in microseconds; OptionsError for one that a claim cannot have."""
    lease_us = as_seconds(lease_s, "lease_s") * 1e6
    if not 1 <= lease_us <= CLAIM_LEASE_US_MAX:
        refuse(
            "lease_s",
            lease_s,
            f"a claim has a lease of at least a microsecond and at most {CLAIM_LEASE_US_MAX / 1e6:,.0f} "
            "seconds (30 days)",
        )
    return int(lease_us)


class Claim:
    """Records from `first_lsn` on are kept for one consumer. Made by `walkit.claim`, and by `log.hold`.

    A context manager: a block that ends well releases the claim; if an exception ends it, the claim counts until its
    lease is over, so that the consumer can continue with it. Safe from any thread.

    One of `walkit.claim` is as it was last written, and nothing renews it by itself. One of `log.hold` is kept in
    memory while the log is open: it ends with `release` alone, and each trim of this process sees where it is. Its
    lease counts after the process has died, and is renewed each third of it.
    """

    def __init__(self, written: WrittenClaim) -> None:
        self._written = written

    @property
    def name(self) -> str:
        """The claim's name."""
        return self._written.name

    @property
    def owner(self) -> uuid.UUID:
        """The consumer's random id: save it to take the claim up again. Zero for the log's own writer."""
        return self._written.owner

    @property
    def first_lsn(self) -> int:
        """The first record that is kept."""
        return self._written.first_lsn

    @property
    def epoch_id(self) -> int:
        """The random id of the epoch of the record before the stored position; 0 before the first record."""
        return self._written.mark.epoch_id

    @property
    def lease_s(self) -> float:
        """How long the claim counts after each writing, in seconds."""
        return self._written.lease_us / 1e6

    @property
    def expires(self) -> datetime:
        """When the lease is over, by the wall clock, in UTC."""
        until = to_datetime(min(self._written.mark.lease_until_us, STAMP_MAX))
        assert until is not None, "a time before the year 1"
        return until

    @property
    def state(self) -> str:
        """How the claim stands as far as this object knows.

        "held", "expired" by the clock, "released", "lost", or "log closed" for one of `log.hold`.
        """
        return self._written.state

    def advance(self, first_lsn: int) -> None:
        """Say that only records from `first_lsn` on are still needed: the next one that the consumer needs.

        Of `walkit.claim`: renews the lease, durable on return. One writing with a sync, which takes no room: for now
        and then, not for each record. Of `log.hold`: in memory, for each record; the file follows with the next renewal
        or trim, or the close, and an older position there only keeps more.

        OptionsError for one below `self.first_lsn`, or more than one after the end of the log. GapError where records
        from there on are gone, as after a lease that ran out or a hard cap: the claim is "lost". DivergenceError where
        the records before it were cut. ClaimError where the claim is another's by now, was dropped or released.
        LogClosedError for one of `log.hold` once the log is closed.
        StorageError: either position may be saved, and advancing again is right.
        """
        self._written.advance(first_lsn)

    def renew(self) -> None:
        """Write the claim with a new lease, at the same position; durable on return. Raises what `advance` raises.

        A claim whose lease ran out is in force again, if all that it keeps is still there.
        """
        written = self._written
        run_to_end(lambda: written.renew(None), "claim", events=written.events)

    def release(self) -> None:
        """Give the claim up: its file goes, durably. Releasing twice does nothing, nor where another has the name.

        LogClosedError for one of `log.hold` once the log is closed: the claim counts then until its lease is over.
        """
        written = self._written
        if not written.ended:
            run_to_end(written.release, "claim", events=written.events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        written = self._written
        if error is None:
            self.release()
        else:
            run_to_end(written.leave, "claim", events=written.events)

    def __repr__(self) -> str:
        return f"Claim({self.name!r}, first_lsn={self.first_lsn}, {self.state})"

    def _repr_html_(self) -> str:
        return titled(
            f"Claim {self.name}",
            [
                ("log", self._written.location),
                ("first LSN needed", f"{self.first_lsn:,}"),
                ("lease", f"{self.lease_s:,g} s, until {self.expires.isoformat(' ', 'seconds')}"),
                ("owner", self.owner.hex),
                ("state", self.state),
            ],
        )
