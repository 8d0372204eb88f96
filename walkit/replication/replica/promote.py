"""Promotion: a replica's folder becomes a log that is written like any other, with an epoch of its own.

One replacement of the manifest does it: with the new epoch in its lineage the log is another history than that of the
old primary from here on, also before its first record. Nothing here reaches the old primary, and nothing stops it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from walkit._internal.arguments import refuse
from walkit._internal.html import Markup, join, tag
from walkit._internal.report import report_html
from walkit._main_thread import run_uninterrupted
from walkit.config import LogOptions
from walkit.copier.gathering import Gathering
from walkit.errors import LogFencedError, LogNotFoundError
from walkit.events import EventCallback, EventSink
from walkit.format.manifest import EpochRecord, Manifest
from walkit.objects.entrance import object_store_of
from walkit.objects.layout import MANIFEST_KEY
from walkit.objects.open import OPENING_S
from walkit.objects.opening import Opening
from walkit.objects.requests import Patience, PatientReads, put_own
from walkit.objects.vouched import encoded, manifest_of
from walkit.replication.logs.folder_role import (
    PROMOTED_KEY,
    REPLICA_KEY,
    as_promoted,
    is_promoted,
    is_replica,
)
from walkit.replication.logs.importer import Importer
from walkit.replication.logs.object_importer import IDENTITY_KEY
from walkit.replication.replica.identity_file import drop_identity
from walkit.segments.manifest_store import load_manifest, next_epoch
from walkit.storage.address import AnyPlace, Place, storage_at
from walkit.storage.interface import Storage
from walkit.storage.object_store import ObjectStore

NOT_A_REPLICA = "it is a log that can be written, not a replica's; nothing was changed"
NOT_FENCED = (
    "The old primary is not fenced: if it still runs, it takes records, and those are in no log but its own. "
    "Stop it, and point its writers here"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromotionReport:
    """The outcome of one `promote`."""

    location: str
    log_id: int
    epoch: int
    """The number of the new epoch."""
    first_lsn: int
    """Its first LSN: the next record here has it, and at the old primary a record with this LSN is another one."""
    already: bool
    """Whether an earlier call had done it."""

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        done = (
            "was promoted before, and nothing was changed" if self.already else "is a primary of its own now"
        )
        facts = [f"  {name}: {value}" for name, value in self._facts()]
        return [f"{self.location} {done}", *facts, f"{NOT_FENCED}."]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"old_primary_fenced": False}

    def _facts(self) -> list[tuple[str, str]]:
        return [
            ("log id", f"{self.log_id:016x}"),
            ("epoch", f"{self.epoch:,}"),
            ("its first LSN", f"{self.first_lsn:,}"),
        ]

    def _repr_html_(self) -> str:
        report = Markup(report_html(f"Promotion of {self.location}", self._facts()))
        return join([report, tag("div", f"{NOT_FENCED}.")])


def promote(
    dir: AnyPlace,  # noqa: A002 - as of Replica
    events: EventCallback | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> PromotionReport:
    """Make a replica's folder a log of its own: `walkit.open` and `Store.open` write it from here on.

    Recovers and seals the log, starts a new epoch, and forgets whose replica it was. Durable on return. A crash leaves
    a replica or a promoted one, and the same call does the rest; once more it changes nothing. Replicas of this one
    continue with it. The old primary is not fenced: it can continue, and from this epoch on its log is another history,
    which replication refuses as a DivergenceError.

    LogLockedError while the replica runs; OptionsError for a log that is not a replica; LogNotFoundError if there is no
    log yet. The errors of opening a replica; then only recovery has changed the folder.
    """
    store, sink = object_store_of(dir, storage_options), EventSink(events)
    if store is not None:
        return run_uninterrupted(lambda: _promote_objects(store, sink), "promote", events=sink)
    storage = storage_at(cast(Place, dir))
    return run_uninterrupted(lambda: _promote(storage, sink), "promote", events=sink)


def _promote_objects(store: ObjectStore, events: EventSink) -> PromotionReport:
    """Begin an epoch by a fence, and note the promotion in the manifest."""
    reads = PatientReads(store, lambda: Patience(OPENING_S))
    found = reads.find(MANIFEST_KEY)
    if found is None:
        raise LogNotFoundError(store.location)
    manifest = manifest_of(found, store.location)
    already = is_promoted(manifest)
    if not already:
        if REPLICA_KEY not in manifest.extra:
            refuse("dir", store.location, NOT_A_REPLICA)
        with closing(store):  # its next put opens it again
            manifest = _detached_by_a_fence(reads)
    return _reported(store.location, manifest, already, events)


def _detached_by_a_fence(reads: PatientReads) -> Manifest:
    opening = Opening(reads)
    opening.run()
    before, epoch = opening.manifest, opening.manifest.lineage[-1]
    rest = {key: value for key, value in before.extra.items() if key != IDENTITY_KEY}
    before = replace(before, extra=as_promoted(rest, epoch.number, epoch.first_lsn))
    manifest, data = encoded(before, opening.epoch_id, {})
    if put_own(reads, MANIFEST_KEY, data, opening.manifest_tag) is None:
        raise LogFencedError(opening.location, epoch.number)
    return manifest


def _promote(storage: Storage, events: EventSink) -> PromotionReport:
    _require_replica(storage, load_manifest(storage))
    importer = Importer(storage, LogOptions(), events)
    try:
        manifest = importer.manifest_store.current
        _require_replica(storage, manifest)  # now that no other process changes it
        already = is_promoted(manifest)
        if not already:
            manifest = importer.manifest_store.update(_detached)
        drop_identity(storage)
        Gathering(storage).clear()  # parts of another log's files: nothing asks for them now
    finally:
        importer.close()
    return _reported(storage.location, manifest, already, events)


def _reported(location: str, manifest: Manifest, already: bool, events: EventSink) -> PromotionReport:
    facts = manifest.extra[PROMOTED_KEY]
    report = PromotionReport(
        location=location,
        log_id=manifest.log_id,
        epoch=int(facts["epoch"]),
        first_lsn=int(facts["first_lsn"]),
        already=already,
    )
    if not already:
        events.emit(
            "walkit.replica.promote", location=report.location, epoch=report.epoch, first_lsn=report.first_lsn
        )
    return report


def _require_replica(storage: Storage, manifest: Manifest) -> None:
    if not is_promoted(manifest) and not is_replica(storage, manifest):
        refuse("dir", storage.location, NOT_A_REPLICA)


def _detached(manifest: Manifest) -> Manifest:
    """Return the manifest of the same log with a new epoch at its end, and nothing of a replica."""
    number, end = next_epoch(manifest), manifest.end
    first_lsn = max(end.last_lsn, manifest.vouched_lsn) + 1
    begun = EpochRecord(
        number=number,
        id=secrets.randbits(64) | 1,
        first_lsn=first_lsn,
        position=end.position,
        chain=end.chain,
    )
    return manifest.next(
        lineage=(*manifest.lineage, begun), extra=as_promoted(manifest.extra, number, first_lsn)
    )
