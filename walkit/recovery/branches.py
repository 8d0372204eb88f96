"""Other histories than the log's in its folder: each becomes a log of its own beside it, whole.

A branch is copied before anything in the folder is changed, and its manifest comes last: `walkit.repair` of the copies
writes it. So a repeated salvage, also after a crash at any operation, finds the same branch and continues with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from walkit._arguments import refuse
from walkit._text import lsn_range
from walkit.errors import NotALogError, WalkitError
from walkit.format.durable_slot import DurableSlot
from walkit.format.manifest import MANIFEST_NAME, LostRecord, Manifest
from walkit.format.names import SALVAGE_NEW_NAME, lsn_of_name
from walkit.format.segment import SegmentHeader, segment_name
from walkit.recovery.lineages import Lineage, epoch_by_frames, headers_of
from walkit.recovery.tolerant_file import TolerantFile
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest
from walkit.segments.rewrite import copy_part, new_file
from walkit.storage.address import storage_at
from walkit.storage.file import FileStorage
from walkit.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A log that a salvage made of another history in the folder, or would make. LSNs are inclusive."""

    location: str
    """Where the log is: open it there."""
    log_id: int
    epoch: int
    """The number of its newest epoch."""
    epoch_id: int
    first_lsn: int
    last_lsn: int
    shared_lsn: int
    """Up to here its records are also those of the log that was salvaged; 0 if they share none."""
    lost: tuple[LostRecord, ...] = ()
    """The ranges that could not be read."""

    def __str__(self) -> str:
        beside = (
            f"the same as this log up to LSN {self.shared_lsn:,}" if self.shared_lsn else "another history"
        )
        lost = sum(g.lsns for g in self.lost)
        without = f", {lost:,} of them lost" if lost else ""
        held = lsn_range(self.first_lsn, self.last_lsn)
        return f"branch: {self.location}: {held}{without}, epoch {self.epoch}, {beside}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchPlan:
    """A branch that is to be made, and the files that it is copied from."""

    storage: Storage
    """Where it comes."""
    line: Lineage
    shared_lsn: int
    beside: tuple[str, ...]
    """Files without a header of a segment that are its own: segments that lost theirs, snapshots, the durable slot."""

    def planned(self) -> Branch:
        """Return what is known of it before it is made."""
        tip = self.line.tip
        return Branch(
            location=self.storage.location,
            log_id=tip.log_id,
            epoch=tip.number,
            epoch_id=tip.id,
            first_lsn=self.line.first_lsn,
            last_lsn=self.line.end.last_lsn,
            shared_lsn=self.shared_lsn,
        )

    def made(self) -> Branch:
        """Return what its manifest says of it."""
        manifest, tip = load_manifest(self.storage), self.line.tip
        return Branch(
            location=self.storage.location,
            log_id=tip.log_id,
            epoch=tip.number,
            epoch_id=tip.id,
            first_lsn=max(manifest.first_lsn, manifest.low_watermark + 1),
            last_lsn=manifest.end.last_lsn,
            shared_lsn=self.shared_lsn,
            lost=manifest.lost,
        )


def plan_branches(
    storage: Storage, log: Manifest, slot: DurableSlot, lines: Iterable[tuple[Lineage, int]]
) -> tuple[BranchPlan, ...]:
    """Say where each of these histories comes and what belongs to it. With each is the last LSN that the log shares.

    OptionsError if no log can be made beside the storage.
    """
    plans: list[BranchPlan] = []
    names = storage.names()
    known = {epoch.id for epoch in log.lineage}
    _, headless = headers_of(storage)
    for line, shared_lsn in lines:
        tip = line.tip
        own = {run.id for run in line.runs if run.id not in known or run.log_id != log.log_id}
        beside = []
        for name in (segment_name(number) for number in headless):
            named = epoch_by_frames(storage, name, tip.log_id)
            beside += [name] if named is not None and named[1].id in own else []
        for name in names:
            lsn = lsn_of_name(name)
            named = None if lsn is None else epoch_by_frames(storage, name, tip.log_id)
            beside += [name] if lsn is not None and named is not None and line.holds(named[1].id, lsn) else []
        if slot.generation and slot.epoch_id == tip.id:
            beside.append(DURABLE_NAME)
        place = _place_of(storage, line, {plan.storage.location for plan in plans})
        plans.append(BranchPlan(storage=place, line=line, shared_lsn=shared_lsn, beside=tuple(beside)))
    return tuple(plans)


def copy_branch(storage: Storage, plan: BranchPlan) -> None:
    """Copy the files of a branch to its place, durably; a file that is already there is not copied again.

    A segment that it shares with the log ends in the copy where the two part.
    """
    target = plan.storage
    if isinstance(target, FileStorage):
        target.create_for(storage)
    else:
        target.create()
    if MANIFEST_NAME in target.names():
        return
    there = set(target.names())
    # The newest epoch first: its segments say of which branch an unfinished copy is.
    parts = sorted(plan.line.parts(), key=lambda part: part[0].epoch, reverse=True)
    for header, fork in parts:
        if header.name not in there:
            until = None if fork is None else header.offset_of(fork)
            _copy(storage, target, header.name, until, replace(header, manifest_generation=0))
    for name in plan.beside:
        if name not in there:
            _copy(storage, target, name, None)


def _copy(
    storage: Storage, target: Storage, name: str, until: int | None, header: SegmentHeader | None = None
) -> None:
    file = TolerantFile(storage.open(name, "read"))
    try:
        size = file.size()
        with new_file(target, SALVAGE_NEW_NAME) as copy:
            copy_part(file, 0, size if until is None else min(size, until), copy, 0)
            if header is not None:
                copy.write(0, [header.encode()])
            copy.sync()
    finally:
        file.close()
    target.replace(SALVAGE_NEW_NAME, name)
    target.sync_directory()


def _place_of(storage: Storage, line: Lineage, taken: set[str]) -> Storage:
    """Return the first place beside the log that is free, or that this branch already has."""
    for suffix in _suffixes(line.tip.number):
        try:
            place = _beside(storage, suffix)
        except NotALogError:  # a file has the name
            continue
        if place.location not in taken and _is_free_for(place, line):
            return place
    raise AssertionError("suffixes do not end")


def _suffixes(epoch: int) -> Iterator[str]:
    yield f".branch-{epoch}"
    number = 1
    while True:
        yield f".branch-{epoch}.{number}"
        number += 1


def _beside(storage: Storage, suffix: str) -> Storage:
    where = storage.location
    if not os.path.isabs(where) and not where.startswith("memory://"):
        text = "it holds more than one history, and walkit cannot make a log beside it"
        refuse("path", where, f"{text}. Copy its files to a folder and repair that one")
    return storage_at(where + suffix)


def _is_free_for(place: Storage, line: Lineage) -> bool:
    """Say whether this place is empty, or holds the same branch from an earlier salvage, all of it or a part."""
    if not place.exists():
        return True
    names = place.names()
    tip = line.tip
    if MANIFEST_NAME in names:
        try:
            manifest = load_manifest(place)
        except WalkitError:
            return False
        ours = manifest.log_id == tip.log_id and tip.id in {epoch.id for epoch in manifest.lineage}
        return ours and manifest.first_lsn <= line.first_lsn and line.end.last_lsn <= manifest.end.last_lsn
    headers, _ = headers_of(place)
    wanted = {header.name for header in line.headers}
    if not headers:
        return set(names) <= {SALVAGE_NEW_NAME}
    mine = {(run.log_id, run.id) for run in line.runs}
    return any(h.epoch_id == tip.id for h in headers) and all(
        (h.log_id, h.epoch_id) in mine and h.name in wanted for h in headers
    )
