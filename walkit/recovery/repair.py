"""`walkit.repair`: the one tool that changes files without opening a log for writing. It keeps the bytes it removes.

It goes by the manifest in the folder, or by one made of the headers. Each other history in the folder becomes a log of
its own beside it, whole. A branch is copied before anything in the folder is changed, and its manifest comes last:
`walkit.repair` of the copies writes it. So a repeated salvage, also after a crash at any operation, finds the same
branch and continues with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from walkit._internal.arguments import check_choice, check_progress, refuse
from walkit._internal.html import facts, join, tag
from walkit._internal.text import counted, lsn_range, unread
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.config import RecoveryPolicy
from walkit.errors import CorruptionError, LogLockedError, NotALogError, WalkitError
from walkit.format.durable_slot import NOTHING_DURABLE, DurableSlot
from walkit.format.file_names import SALVAGE_NEW_NAME, lsn_of_name
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import MANIFEST_NAME, LogEnd, LostRecord, Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader, segment_name
from walkit.recovery.apply import apply_plan, is_kept, keep_part, numbered, sync_segments
from walkit.recovery.log_scan import Progress, is_known, read_durable_slot, scan_folder
from walkit.recovery.plan import RecoveryPlan, plan_recovery
from walkit.recovery.rebuild import (
    Lineage,
    Rebuilt,
    completed,
    first_frame,
    foreign_snapshots,
    headers_of,
    lineages_of,
    log_id_of,
    manifest_from_headers,
    manifest_of,
    refuse_without_log,
    regions_of,
)
from walkit.recovery.report import Outcome
from walkit.recovery.survey import TolerantFile, nonzero_until
from walkit.segments.history import check_identity
from walkit.segments.manifest_store import (
    DURABLE_NAME,
    LOST_FOLDER,
    ManifestStore,
    load_manifest,
    settle_manifest,
)
from walkit.segments.orphan_files import orphaned_by, staged_in
from walkit.segments.rewrite import copy_part, new_file
from walkit.segments.writer_lock import refuse_a_writer, take_writer_lock
from walkit.storage.address import Place, storage_at
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

    def branch(self, manifest: Manifest | None = None) -> Branch:
        """Return its manifest's facts or, before it is made, the known ones."""
        tip, first_lsn, last_lsn = self.line.tip, self.line.first_lsn, self.line.end.last_lsn
        if manifest is not None:
            first_lsn, last_lsn = max(manifest.first_lsn, manifest.low_watermark + 1), manifest.end.last_lsn
        return Branch(
            location=self.storage.location,
            log_id=tip.log_id,
            epoch=tip.number,
            epoch_id=tip.id,
            first_lsn=first_lsn,
            last_lsn=last_lsn,
            shared_lsn=self.shared_lsn,
            lost=() if manifest is None else manifest.lost,
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
            frame = first_frame(storage, name, tip.log_id)
            beside += [name] if frame is not None and frame.epoch_id in own else []
        for name in names:
            lsn = lsn_of_name(name)
            frame = None if lsn is None else first_frame(storage, name, tip.log_id)
            beside += (
                [name] if lsn is not None and frame is not None and line.holds(frame.epoch_id, lsn) else []
            )
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
    for suffix in numbered(f".branch-{line.tip.number}"):
        try:
            place = _beside(storage, suffix)
        except NotALogError:  # a file has the name
            continue
        if place.location not in taken and _is_free_for(place, line):
            return place
    raise AssertionError("numbers do not end")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The manifest of a repair, and the other files to keep."""

    manifest: Manifest
    slot: DurableSlot
    """The durable slot; nothing if the one in the folder promises another history."""
    rebuilt: Rebuilt | None = None
    """How the manifest was made of the headers; None if it is the one in the folder."""
    replaced: Manifest | None = None
    """The manifest in the folder that contradicts the files, and can be read."""
    foreign_manifest: bool = False
    """Whether that one is another log's and the durable slot, too: the segments may have been put over its own."""
    branches: tuple[BranchPlan, ...] = ()
    """The other histories in the folder that hold records."""
    foreign: tuple[str, ...] = ()
    """The durable slot and snapshots that belong to other histories."""


def choose_manifest(storage: Storage, *, salvage: bool) -> Choice:
    """Return the manifest for a repair. With `salvage` the headers replace a manifest that contradicts the files.

    CorruptionError, without `salvage`, if the manifest is missing and the headers tell more than one history: which of
    them is the log is for a person to say.
    """
    manifest, rebuilt, _ = manifest_of(storage)
    slot = read_durable_slot(storage)
    if not salvage:
        if rebuilt is not None and rebuilt.branches:
            raise _several(storage, rebuilt)
        return Choice(manifest=manifest, slot=slot, rebuilt=rebuilt)
    if rebuilt is not None:
        return _of_rebuilt(storage, rebuilt, slot, None)
    headers, _ = headers_of(storage)
    if _is_contradicted(storage, manifest, headers, slot):
        rebuilt = manifest_from_headers(storage)
        if rebuilt is not None:
            return _of_rebuilt(storage, rebuilt, slot, manifest)
    return _of_manifest(storage, manifest, headers, slot)


def _several(storage: Storage, rebuilt: Rebuilt) -> CorruptionError:
    first = rebuilt.branches[0]
    many = counted(len(rebuilt.branches) + 1, "history", "histories")
    return CorruptionError(
        f"{storage.location} has no manifest, and its segments tell {many}: "
        f'policy "salvage" keeps each as a log of its own. Nothing was changed',
        segment=first.tip.segments[0].name,
        expected=f"segments of epoch {rebuilt.line.tip.number} of one log",
        found=f"epoch {first.tip.number} of log {first.tip.log_id:#x}",
    )


def _of_rebuilt(storage: Storage, rebuilt: Rebuilt, slot: DurableSlot, replaced: Manifest | None) -> Choice:
    manifest = rebuilt.manifest
    if replaced is not None and replaced.log_id == manifest.log_id:
        # Numbers of generations and segments are given once.
        manifest = replace(
            manifest,
            generation=max(manifest.generation, replaced.generation),
            next_segment=max(manifest.next_segment, replaced.next_segment),
        )
    lines = [(line, line.shared_lsn(rebuilt.line)) for line in rebuilt.branches]
    own, foreign = _slot_of(manifest, slot), sorted(rebuilt.foreign_snapshots)
    return Choice(
        manifest=manifest,
        slot=own,
        rebuilt=rebuilt,
        replaced=replaced,
        foreign_manifest=replaced is not None
        and replaced.log_id != manifest.log_id
        and slot.epoch_id in {epoch.id for epoch in replaced.lineage},
        branches=plan_branches(storage, manifest, slot, lines),
        foreign=(*([] if own == slot else [DURABLE_NAME]), *foreign),
    )


def _of_manifest(
    storage: Storage, manifest: Manifest, headers: list[SegmentHeader], slot: DurableSlot
) -> Choice:
    """Return a choice for a manifest that the files bear out; unknown segments may be another history."""
    own = _slot_of(manifest, slot)
    foreign = [] if own == slot else [DURABLE_NAME]
    known = {(manifest.log_id, epoch.id) for epoch in manifest.lineage}
    staged = staged_in(storage, manifest)
    strange = [
        h
        for h in headers
        if (h.log_id, h.epoch_id) not in known
        and orphaned_by(h, manifest) is None
        and not staged.has(h.name, h)
    ]
    if not strange:
        return Choice(manifest=manifest, slot=own, foreign=tuple(foreign))
    lines = lineages_of(storage, headers, slot)
    ours = [line for line in lines if (line.tip.log_id, line.tip.id) in known]
    names = {h.name for h in strange}
    others = [
        line
        for line in lines
        if line not in ours
        and names & {h.name for h in line.tip.segments}
        and (line.records_beside(ours[0]) if ours else line.end.last_lsn >= line.first_lsn)
    ]
    if ours:
        foreign += sorted(foreign_snapshots(storage, ours[0], [line for line in lines if line not in ours]))
    shared = [(line, line.shared_lsn(ours[0]) if ours else 0) for line in others]
    return Choice(
        manifest=manifest,
        slot=own,
        branches=plan_branches(storage, manifest, slot, shared),
        foreign=tuple(foreign),
    )


def _slot_of(manifest: Manifest, slot: DurableSlot) -> DurableSlot:
    """Return the slot if it promises this history, which knows its epoch and has no later one that begins before."""
    later = [e.position for e in manifest.lineage if e.number > slot.epoch]
    if not slot.generation:
        return slot
    return (
        slot
        if is_known(manifest, slot) and slot.position <= min(later, default=slot.position)
        else NOTHING_DURABLE
    )


def _is_contradicted(
    storage: Storage, manifest: Manifest, headers: list[SegmentHeader], slot: DurableSlot
) -> bool:
    """Say whether the files show that this manifest is older than they are, or another log's.

    1. No segment belongs to its log, or most belong to another and the durable slot does not confirm it.
    2. It is older than a segment or the durable file say: opening refuses that as well.
    3. A segment that it names is another of the same log: two writers gave one number.
    4. A sealed segment is not there, and a segment of the same log that it does not name holds that LSN.
    5. The durable slot promises more of an epoch than there is of it before the next one.
    6. The frames of a sealed segment continue after its end: another writer wrote them since.
    """
    if not headers:
        return False
    ids = {h.log_id for h in headers}
    confirmed = slot.generation and any(epoch.id == slot.epoch_id for epoch in manifest.lineage)
    if manifest.log_id not in ids or (not confirmed and log_id_of(headers, slot) != manifest.log_id):
        return True
    if any(h.manifest_generation > manifest.generation for h in headers if h.log_id == manifest.log_id):
        return True
    if confirmed and _slot_of(manifest, slot) != slot:
        return True
    try:
        scan_folder(storage, manifest, slot, salvage=True)
    except CorruptionError:
        return True
    found = {h.name: h for h in headers if h.log_id == manifest.log_id}
    named = {s.name for s in manifest.segments}
    for record in manifest.segments:
        if record.name in found:
            try:
                check_identity(manifest, record, found[record.name])
            except CorruptionError:
                return True
    orphans = [h for n, h in found.items() if n not in named and orphaned_by(h, manifest) != "trimming"]
    if any(_continues(storage, s, found[s.name]) for s in manifest.sealed if s.name in found):
        return True
    there, staged = set(storage.names()), staged_in(storage, manifest)
    absent = [s for s in manifest.sealed if s.name not in there]
    return any(
        s.first_lsn <= h.first_lsn <= s.last_lsn and not staged.has(h.name, h)
        for s in absent
        for h in orphans
    )


def _continues(storage: Storage, record: SegmentRecord, header: SegmentHeader) -> bool:
    """Say whether an intact frame follows the last one of a sealed segment.

    Bytes kept under lost+found already were cut off by a decision: a rewind, or a salvage that was interrupted.
    """
    if header.flags & SegmentFlag.COMPACTED:
        return False
    file = TolerantFile(storage.open(record.name, "read"))
    try:
        end, size = header.offset_of(record.end_position), file.size()
        if size <= end:
            return False
        after = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
        with closing(regions_of(storage, header, None, begin=after)) as regions:
            first = next(regions, None)
        if first is None or not first.intact:
            return False
        begin, until = f"{LOST_FOLDER}/{record.name}.{record.end_position}.", nonzero_until(file, end, size)
        kept = [n for n in storage.names(LOST_FOLDER) if n.startswith(begin)]
        return not any(is_kept(storage, n, file, end, stop) for n in kept for stop in (until, size))
    finally:
        file.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport(Outcome):
    """The actions of a repair; of a dry run, the planned ones."""

    dry_run: bool
    changed: bool
    """Whether any file was, or would be, changed."""
    manifest_rebuilt: bool
    """Whether the manifest was rebuilt from the segments' headers: it was damaged, missing, or contradicted them."""
    first_lsn: int
    foreign_manifest: bool
    """Whether the manifest and the durable slot were those of another log, whose own segments may have been here."""
    branches: tuple[Branch, ...]
    """The other histories in the folder, each a log of its own beside it now; only policy "salvage" makes them."""
    unaccounted_lsns: int
    """LSN 1 to this one are in no segment and no snapshot, and a rebuilt manifest does not show whether they were
    trimmed or lost; 0 if they are accounted for."""
    notes: tuple[str, ...]
    """The facts that a rebuilt manifest lacks."""
    not_read: str
    """The parts that were not read, for people; empty if all were read."""
    duration_s: float

    @property
    def ok(self) -> bool | None:
        """Whether nothing that was promised had to be given up or may be missing; None for yes if not all was read."""
        has_loss = self.lost or self.unaccounted_lsns or any(branch.lost for branch in self.branches)
        return False if has_loss or self.foreign_manifest else None if self.not_read else True

    @property
    def lsns_lost(self) -> int:
        """The number of LSNs in ranges that were given up."""
        return sum(g.lsns for g in self.lost)

    def summary(self) -> str:
        """Return one sentence: the cost if records were lost, then the actions."""
        did = "would be repaired" if self.dry_run else "repaired"
        if not self.changed:
            did = "needs no repair"
        lost = f"{counted(len(self.lost), 'range')} given up" if self.lost else "nothing given up"
        made = "; manifest rebuilt" if self.manifest_rebuilt else ""
        if self.unaccounted_lsns:
            made += f"; {lsn_range(1, self.unaccounted_lsns)} were trimmed, or are missing"
        if self.branches:
            made += f"; {counted(len(self.branches), 'branch', 'branches')} beside it"
        loss = f"{self.loss()}; " if self.lost else ""
        span = lsn_range(self.first_lsn, self.last_lsn)
        return (
            f"{loss}{did}: {span}; {lost}; {counted(len(self.cuts), 'tail')} cut{made}{unread(self.not_read)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"ok": self.ok, "lsns_lost": self.lsns_lost}

    def lines(self) -> list[str]:
        """Return the report as text: first the loss if there is one, then a line for each decision, cut and note."""
        return [
            *filter(None, [self.loss()]),
            f"repair of {self.location} (policy {self.policy})",
            *self.outcome_lines(),
            *(str(branch) for branch in self.branches),
            *(f"note: {note}" for note in self.notes),
            self.summary(),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        title, *lines, last = self.lines()
        rows = [("policy", self.policy), ("outcome", last), ("end position", f"{self.end_position:,}")]
        return tag("div", tag("b", title), facts(rows), *(tag("div", join([line])) for line in lines))


def repair(
    path: Place,
    *,
    policy: RecoveryPolicy = "prefix",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Repair a log that is not open, by a recovery policy; lost+found keeps all removed bytes.

    Every frame is read. A damaged or missing manifest is rebuilt from the segments' headers. Damage of
    promised data is refused by every policy except "salvage", which gives it up and records the loss. With "salvage" a
    manifest that is older than the segments, or another log's, is rebuilt as well: the log is the history with the
    highest proved end, and each other history becomes a log of its own beside it, PATH.branch-EPOCH. On return
    everything is sealed and durable; repairing again changes nothing, also after a crash during it. `dry_run`
    changes nothing and takes no lock. `progress` is called with (bytes read, bytes to read).

    Raises LogLockedError if a writer lives, CorruptionError if the policy refuses, FormatVersionError if a newer walkit
    is needed, LogNotFoundError, NotALogError, OptionsError, StorageError; then nothing was changed, unless a
    StorageError came during the work, which can be done again.
    """
    check_choice(policy, get_args(RecoveryPolicy), "policy")
    check_progress(progress, "(bytes read, bytes to read)")
    storage = storage_at(path)
    began = time.perf_counter()
    refuse_without_log(storage)  # only a log gets a lock file
    if dry_run:
        refuse_a_writer(storage)
        choice = choose_manifest(storage, salvage=policy == "salvage")
        plan = _plan(storage, choice, policy, progress)
        return _report(storage, plan, choice, [b.branch() for b in choice.branches], began, dry_run=True)
    return run_uninterrupted(lambda: _repair(storage, policy, ending_early(progress), began), "repair")


def _repair(
    storage: Storage,
    policy: RecoveryPolicy,
    progress: Progress | None,
    began: float,
    *,
    is_branch: bool = False,
) -> RepairReport:
    salvage = policy == "salvage"
    lock = take_writer_lock(storage)
    try:
        settle_manifest(storage)
        # Each of them, as the manifest, which knows the sealed ones, may itself come from their bytes.
        sync_segments(storage, [n for n in storage.names() if n.endswith(".segment")], salvage=salvage)
        choice = choose_manifest(storage, salvage=salvage)
        plan = _plan(storage, choice, policy, progress)
        # Before anything in the folder is changed, so that a repeated repair finds the same histories in it.
        branches = [] if is_branch else [_branched(storage, branch) for branch in choice.branches]
        if choice.rebuilt is not None and MANIFEST_NAME in storage.names():
            _keep_manifest(storage)
        apply_plan(storage, ManifestStore(storage, plan.findings.manifest), plan)
    finally:
        lock.release()
    return _report(storage, plan, choice, branches, began, dry_run=False)


def _branched(storage: Storage, branch: BranchPlan) -> Branch:
    """Make a log of its own of another history in the folder, or finish it; return its content."""
    copy_branch(storage, branch)
    try:
        # A branch has no branches: its copy ends each shared segment at the fork.
        _repair(branch.storage, "salvage", None, time.perf_counter(), is_branch=True)
    except LogLockedError:
        if MANIFEST_NAME not in branch.storage.names():
            raise
        # An earlier salvage made it, and a writer has opened it since: nothing is left to do.
    return branch.branch(load_manifest(branch.storage))


def _plan(
    storage: Storage, choice: Choice, policy: RecoveryPolicy, progress: Progress | None
) -> RecoveryPlan:
    plan = plan_recovery(storage, choice.manifest, choice.slot, policy, deep=True, progress=progress)
    if choice.rebuilt is None:
        return replace(plan, foreign=choice.foreign)
    # A rebuilt manifest is written in any case, and every file outside it is kept before it goes.
    made = completed(plan.manifest)
    return replace(plan, manifest=made.next(), keeps_orphans=True, foreign=choice.foreign)


def _keep_manifest(storage: Storage) -> None:
    """Keep a damaged manifest under lost+found, whatever its size; pages that cannot be read are zeros there."""
    file = TolerantFile(storage.open(MANIFEST_NAME, "read"))
    try:
        keep_part(storage, MANIFEST_NAME, file, 0, file.size())
    finally:
        file.close()


def _report(
    storage: Storage,
    plan: RecoveryPlan,
    choice: Choice,
    branches: Sequence[Branch],
    began: float,
    *,
    dry_run: bool,
) -> RepairReport:
    manifest, rebuilt = plan.manifest, choice.rebuilt
    found = plan.findings
    tails = any(f.nonzero_until > f.end_offset or f.file_bytes > f.end_offset for f in found.sealed)
    changed = (
        rebuilt is not None or tails or bool(plan.steps or found.orphans or found.obsolete or plan.foreign)
    )
    return RepairReport(
        **plan.outcome(storage),
        dry_run=dry_run,
        changed=changed or manifest is not found.manifest,
        manifest_rebuilt=rebuilt is not None,
        first_lsn=max(manifest.first_lsn, manifest.low_watermark + 1),
        foreign_manifest=choice.foreign_manifest,
        branches=tuple(branches),
        unaccounted_lsns=0 if rebuilt is None else rebuilt.unaccounted_lsns,
        notes=_notes(choice),
        not_read=snapshots_not_read(storage),
        duration_s=time.perf_counter() - began,
    )


def snapshots_not_read(storage: Storage) -> str:
    """Return the parts that no repair reads, for people: the snapshots, if the log has any."""
    return "the snapshots" if any(lsn_of_name(name) is not None for name in storage.names()) else ""


def _notes(choice: Choice) -> tuple[str, ...]:
    if choice.rebuilt is None:
        return ()
    replaced, notes = choice.replaced, list(choice.rebuilt.doubts)
    if replaced is not None and replaced.log_id == choice.manifest.log_id:
        notes.insert(0, f"the manifest in the folder was older or newer: up to LSN {replaced.end.last_lsn:,}")
    elif replaced is not None:
        here = (
            "not all of its"
            if any(b.line.tip.log_id == replaced.log_id for b in choice.branches)
            else "none of its"
        )
        notes.insert(
            0,
            f"the manifest in the folder was that of log {replaced.log_id:016x}, sealed up to LSN "
            f"{replaced.end.last_lsn:,}; {here} segments are here",
        )
    return tuple(notes)
