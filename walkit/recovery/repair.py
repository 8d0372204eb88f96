"""`walkit.repair`: the one tool that changes files without opening a log for writing. It keeps what it removes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from walkit._internal.arguments import check_choice, check_progress
from walkit._internal.html import facts, join, tag
from walkit._internal.text import counted, lsn_range, unread
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.config import RecoveryPolicy
from walkit.errors import LogLockedError
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.names import lsn_of_name
from walkit.recovery.apply import apply_plan, sync_segments
from walkit.recovery.assembly import RecoveryPlan
from walkit.recovery.choice import Branch, BranchPlan, Choice, choose_manifest, copy_branch
from walkit.recovery.log_scan import Progress
from walkit.recovery.lost_found import keep_part
from walkit.recovery.plan import plan_recovery
from walkit.recovery.rebuild import completed, refuse_without_log
from walkit.recovery.report import Outcome
from walkit.recovery.tolerant_file import TolerantFile
from walkit.segments.manifest_store import ManifestStore, settle_manifest
from walkit.segments.writer_lock import refuse_a_writer, take_writer_lock
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairReport(Outcome):
    """What a repair did or, of a dry run, would do."""

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
    """LSN 1 to this one are in no segment and no snapshot, and a manifest made anew cannot tell whether they were
    trimmed or are lost; 0 where they are accounted for."""
    notes: tuple[str, ...]
    """What a manifest made anew cannot know."""
    not_read: str
    """The parts that were not read, for people; empty if all were read."""
    duration_s: float

    @property
    def ok(self) -> bool | None:
        """Whether nothing that was promised had to be given up or may be missing; None for yes if not all was read."""
        given_up = self.lost or self.unaccounted_lsns or any(branch.lost for branch in self.branches)
        return False if given_up or self.foreign_manifest else None if self.not_read else True

    @property
    def lsns_lost(self) -> int:
        """How many LSNs stand for what was given up."""
        return sum(g.lsns for g in self.lost)

    def summary(self) -> str:
        """Return one sentence: what it cost if records were lost, then what was done."""
        did = "would be repaired" if self.dry_run else "repaired"
        if not self.changed:
            did = "needs no repair"
        lost = f"{counted(len(self.lost), 'range')} given up" if self.lost else "nothing given up"
        made = "; manifest made anew" if self.manifest_rebuilt else ""
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
        title, *said, last = self.lines()
        rows = [("policy", self.policy), ("outcome", last), ("end position", f"{self.end_position:,}")]
        return tag("div", tag("b", title), facts(rows), *(tag("div", join([line])) for line in said))


def repair(
    path: Place,
    *,
    policy: RecoveryPolicy = "prefix",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Bring a log that is not open into order, by a recovery policy; what is removed is kept in lost+found.

    Every frame is read. A damaged or missing manifest is made anew of the segments' headers. Damage of what was
    promised is refused by every policy but "salvage", which gives it up and records what is lost. With "salvage" a
    manifest that is older than the segments, or another log's, is rebuilt as well: the log is the history with the
    highest proved end, and each other history becomes a log of its own beside it, PATH.branch-EPOCH. On return
    everything is sealed and durable; repairing again changes nothing, also after a crash during it. `dry_run`
    changes nothing and takes no lock. `progress` is called with (bytes read, bytes to read).

    Raises LogLockedError where a writer lives, CorruptionError where the policy refuses, FormatVersionError where a
    newer walkit is needed, LogNotFoundError, NotALogError, OptionsError, StorageError; then nothing was changed, unless
    a StorageError came in the midst of the work, which can be done again.
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
        return _report(storage, plan, choice, [b.planned() for b in choice.branches], began, dry_run=True)
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
        # Each of them, as the manifest that says which ones are sealed may itself come from their bytes.
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
    """Make a log of its own of another history in the folder, or finish it; return what it holds."""
    copy_branch(storage, branch)
    try:
        # A branch has no branches: its copy ends each shared segment at the fork.
        _repair(branch.storage, "salvage", None, time.perf_counter(), is_branch=True)
    except LogLockedError:
        if MANIFEST_NAME not in branch.storage.names():
            raise
        # An earlier salvage made it, and a writer has opened it since: nothing is left to do.
    return branch.made()


def _plan(
    storage: Storage, choice: Choice, policy: RecoveryPolicy, progress: Progress | None
) -> RecoveryPlan:
    plan = plan_recovery(storage, choice.manifest, choice.slot, policy, deep=True, progress=progress)
    if choice.rebuilt is None:
        return replace(plan, foreign=choice.foreign)
    # Made anew it is written in any case, and nothing that it does not name goes without being kept.
    made = completed(plan.manifest)
    return replace(plan, manifest=made.next(), keeps_strays=True, foreign=choice.foreign)


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
        rebuilt is not None
        or tails
        or bool(plan.steps or found.strays or found.orphan_indexes or found.unfinished or plan.foreign)
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
