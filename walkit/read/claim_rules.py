"""When a claim may be written: its records are there, its position is of this history, and the log has room for it.

Each rule is asked while the claims' lock is held, of the manifest that was read under it (FORMAT.md F-18).
"""

from __future__ import annotations

import time

from walkit._internal.arguments import as_lsn, refuse
from walkit.errors import ClaimError, DivergenceError
from walkit.events import EventSink
from walkit.format.claim import ClaimMark
from walkit.format.layout import CLAIMS_MAX, LSN_MAX, OWN_CLAIMS_MAX
from walkit.format.manifest import Manifest
from walkit.format.names import claim_of_name
from walkit.read.reader import reader_view_of
from walkit.record import STAMP_MAX
from walkit.recovery.log_scan import read_durable_slot
from walkit.segments.claim_files import OWN, claim_facts, own_error, remove_claims, time_text
from walkit.segments.identity import identity_at, lies_in, parted_at
from walkit.segments.manifest_store import LOCK_NAME
from walkit.storage.interface import Storage


def now_us() -> int:
    """Return the wall clock's time, microseconds since 1970."""
    return time.time_ns() // 1000


def clock_us(name: str) -> int:
    """Return the time that a claim is written with; ClaimError for one that no claim file has."""
    at_us = now_us()
    if 0 <= at_us <= STAMP_MAX:
        return at_us
    raise ClaimError(
        f"the claim {name!r} was not written: this machine's clock is {at_us:,} microseconds after 1970, and a lease "
        "runs by it. Nothing was changed; set the clock right",
        name=name,
        reason="clock",
    )


def as_first(first_lsn: int) -> int:
    """Return the position of a claim as a plain int; OptionsError for one that no record has."""
    first_lsn = as_lsn(first_lsn, "first_lsn")
    if not 1 <= first_lsn <= LSN_MAX:
        refuse("first_lsn", first_lsn, "the LSN of a record")
    return first_lsn


def refuse_back(name: str, first_lsn: int, wanted: int) -> None:
    """OptionsError for a position below the one that a claim has."""
    if wanted < first_lsn:
        refuse("first_lsn", wanted, f"the claim {name!r} is at {first_lsn} and does not move back", first_lsn)


def oldest_lsn(manifest: Manifest, *, complete: bool) -> int:
    """Return the oldest record that a claim can keep; with `complete` the oldest from which on none is missing."""
    oldest = max(manifest.first_lsn, manifest.low_watermark + 1)
    return max(oldest, manifest.complete_from_lsn) if complete else oldest


def refuse_beyond(storage: Storage, name: str, first_lsn: int, manifest: Manifest, *, saved: bool) -> None:
    """Refuse a position after the end of the log.

    OptionsError for one that a caller gives; DivergenceError for one that was `saved`: what came before it was cut.
    """
    last_lsn = _last_lsn(storage, manifest, first_lsn - 1)
    if first_lsn - 1 > last_lsn and saved:
        raise DivergenceError(
            f"the claim {name!r} needs LSN {first_lsn:,} and what follows, and the log ends at {last_lsn:,}: "
            "what its consumer has read was cut. Nothing was changed",
            first_lsn=last_lsn + 1,
        )
    refuse_after(first_lsn, last_lsn)


def refuse_after(first_lsn: int, last_lsn: int) -> None:
    """OptionsError for a position more than one after the last record."""
    if first_lsn - 1 > last_lsn:
        refuse("first_lsn", first_lsn, f"the log ends at {last_lsn}", last_lsn)


def _last_lsn(storage: Storage, manifest: Manifest, wanted: int) -> int:
    """Return the last LSN of the log, or any from `wanted` on that it is known to have: a long scan may be saved."""
    known = max(manifest.end.last_lsn, manifest.vouched_lsn)
    if wanted > known:
        slot = read_durable_slot(storage)
        if slot.epoch_id in {e.id for e in manifest.lineage}:
            known = max(known, slot.lsn)
    return known if wanted <= known else max(known, reader_view_of(storage).last_lsn)


def refuse_another_history(storage: Storage, name: str, mark: ClaimMark, manifest: Manifest) -> None:
    """DivergenceError where the record before the position of a claim is not the one that its consumer knows."""
    if mark.log_id != manifest.log_id:
        raise DivergenceError(
            f"the claim {name!r} is of log {mark.log_id:016x}, and this is log {manifest.log_id:016x}. "
            "Nothing was changed",
            first_lsn=1,
        )
    refuse_another_epoch(name, mark.first_lsn, mark.epoch_id, manifest)
    refuse_beyond(storage, name, mark.first_lsn, manifest, saved=True)


def refuse_another_epoch(name: str, first_lsn: int, epoch_id: int, manifest: Manifest) -> None:
    """DivergenceError, with the first LSN that can differ, where the record before `first_lsn` is not of this epoch."""
    if lies_in(manifest, first_lsn - 1, epoch_id):
        return
    found = identity_at(manifest, first_lsn - 1).epoch_id
    raise DivergenceError(
        f"the claim {name!r} needs LSN {first_lsn:,} and what follows, after a record of epoch {epoch_id:016x}; the "
        f"record there is of epoch {found:016x}: what its consumer has read was cut. Nothing was changed",
        first_lsn=parted_at(manifest, epoch_id),
    )


def taken(name: str, found: ClaimMark, whose: str) -> ClaimError:
    """Return the error of a claim whose file is another's."""
    until = time_text(found.lease_until_us)
    return ClaimError(
        f"the claim {name!r} is {whose}, with a lease until {until}. Nothing was changed; give owner= to continue "
        "a claim of one's own, and take_over=True where its consumer is known to be gone",
        name=name,
        reason="taken",
        owner=found.owner.hex(),
        lease_until_us=found.lease_until_us,
    )


def refuse_taken(name: str, found: ClaimMark, storage: Storage, *, take_over: bool) -> None:
    """ClaimError if another owner has the claim, and its lease, or the process of the log's own writer, lives."""
    if found.owner == OWN and storage.is_locked(LOCK_NAME):
        raise own_error(name)
    if now_us() < found.lease_until_us and not take_over:
        raise taken(name, found, "another owner's")


def make_room(storage: Storage, name: str, own: bool, manifest: Manifest, events: EventSink) -> None:
    """Remove claims that have ended, if there are as many as may be; ClaimError if that is not enough.

    The claims of the log's own writer and those of others are counted apart.
    """
    limit = OWN_CLAIMS_MAX if own else CLAIMS_MAX
    names = {claim_of_name(n) for n in storage.names()} - {None}
    if name in names or len(names) < limit:
        return
    others = [f for f in claim_facts(storage, manifest) if f.is_own is own]
    over = [f for f in others if not f.counts]
    if len(others) - len(over) >= limit:
        raise ClaimError(
            f"the log at {storage.location} has {len(others)} claims, and {limit} are the most: release one, or "
            "drop one whose consumer is gone (walkit claims LOG --drop NAME)",
            name=name,
            reason="full",
        )
    if len(others) < limit:
        return
    for fact in over:
        events.emit(
            "walkit.claim.expire",
            name=fact.name,
            first_lsn=fact.first_lsn,
            oldest=manifest.low_watermark + 1,
            owner=fact.owner,
        )
    remove_claims(storage, [f.name for f in over])
