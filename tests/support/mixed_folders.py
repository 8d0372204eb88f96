"""Folders with the files of several histories: each made by real writers, and by copies as people make them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import walkit
from tests.support.logs import SEGMENTS, TINY
from walkit.format.manifest import MANIFEST_NAME, decode_manifest, encode_base
from walkit.segments.history import header_of
from walkit.segments.manifest_store import DURABLE_NAME
from walkit.storage.file import FileStorage

Rows = dict[int, bytes]
"""The acknowledged records of one history, by LSN."""


@dataclass
class Mixed:
    """A folder, and the histories in it."""

    folder: Path
    log: Rows
    """The history that a salvage has to follow."""
    others: list[Rows] = field(default_factory=list)
    """The records of other histories in the folder."""


def appended(log: walkit.WriteAheadLog, text: str, count: int) -> Rows:
    """Append so many records; return those that were acknowledged, by LSN."""
    rows = {}
    for number in range(count):
        value = f"{text} {number:04d} ".encode() * 40
        rows[log.append(value).first_lsn] = value
    return rows


def written(folder: Path, text: str, count: int) -> Rows:
    """Open a log, append so many records and close it; return them by LSN."""
    with walkit.open(folder, options=TINY) as log:
        return appended(log, text, count)


def rows_of(folder: str | Path) -> Rows:
    """Return the records of a log, by LSN."""
    with walkit.open(folder, mode="r") as log:
        return {record.lsn: bytes(record.value or b"") for record in log.read()}


def first(rows: Rows, last_lsn: int) -> Rows:
    """Return the records up to this LSN."""
    return {lsn: value for lsn, value in rows.items() if lsn <= last_lsn}


def number_from(folder: Path, number: int) -> None:
    """Let the next segment of a closed log have this number, as if segments had been made and dropped before."""
    path = folder / MANIFEST_NAME
    path.write_bytes(encode_base(replace(decode_manifest(path.read_bytes(), str(path)), next_segment=number)))


def add_segments(folder: Path, source: Path) -> None:
    """Copy the segments that a folder does not have into it."""
    for path in source.glob(SEGMENTS):
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)


def renamed_under_its_writer(root: Path, *, snapshot: bool = False) -> Mixed:
    """Writer A's folder is renamed, B makes a log at the old path and closes, and what A writes then stands over B's.

    A writes in a folder of its own here, and its new files are copied: so a writer that goes by absolute paths does.
    """
    folder, own = root / "orders", root / "orders.old"
    with walkit.Store.open(own, options=TINY) as store:
        ours = appended(store.log, "a", 60)
        store.log.wait_idle()
        before = {p.name for p in own.glob(SEGMENTS)}
        theirs = written(folder, "b", 45)
        ours |= appended(store.log, "a", 150)
        if snapshot:
            ours |= {store.put(b"key", b"%0500d" % n).first_lsn: b"%0500d" % n for n in range(40)}
            store.checkpoint(trim=False)
    written_since = sorted(p for p in own.glob(SEGMENTS) if p.name not in before)
    for path in [*written_since, *own.glob("snapshot-*")]:
        assert not (folder / path.name).exists()
        shutil.copy(path, folder / path.name)
    shutil.copy(own / MANIFEST_NAME, folder / MANIFEST_NAME)
    header = header_of(FileStorage(str(own)), written_since[0].name)
    assert header is not None
    return Mixed(folder, theirs, [{lsn: value for lsn, value in ours.items() if lsn >= header.first_lsn}])


def with_a_snapshot_of_the_other(root: Path) -> Mixed:
    """The same, and A's snapshot, at an LSN that B never reached, comes with its files."""
    return renamed_under_its_writer(root, snapshot=True)


def _old_manifest(root: Path, *, reopened: bool, slot: bool = True) -> Mixed:
    folder, kept = root / "orders", root / "kept"
    rows = written(folder, "a", 30)
    shutil.copy(folder / MANIFEST_NAME, kept)
    if reopened:
        rows |= written(folder, "a", 60)
    rows |= written(folder, "a", 90)
    shutil.copy(kept, folder / MANIFEST_NAME)
    if not slot:
        (folder / DURABLE_NAME).unlink()
    return Mixed(folder, rows)


def old_manifest(root: Path) -> Mixed:
    """A manifest of two openings ago is put back over a newer one."""
    return _old_manifest(root, reopened=True)


def old_manifest_without_a_slot(root: Path) -> Mixed:
    """A manifest of the opening before is put back, and the durable slot is gone: the segments alone tell."""
    return _old_manifest(root, reopened=False, slot=False)


def old_manifest_over_a_compaction(root: Path) -> Mixed:
    """A manifest from before a compaction is put back: its segments were replaced by one that it does not know."""
    folder, kept = root / "orders", root / "kept"
    with walkit.Store.open(folder, options=TINY) as store:
        for number in range(120):
            store[b"key %d" % (number % 7)] = b"%0500d" % number
        store.log.wait_idle()
    shutil.copy(folder / MANIFEST_NAME, kept)
    with walkit.Store.open(folder, options=TINY) as store:
        store.compact()
    rows = rows_of(folder)
    shutil.copy(kept, folder / MANIFEST_NAME)
    return Mixed(folder, rows)


def old_manifest_over_a_trim(root: Path) -> Mixed:
    """A manifest from before a trim is put back: its oldest segments are gone, and the end of one has a new number."""
    folder, kept = root / "orders", root / "kept"
    rows = written(folder, "a", 150)
    shutil.copy(folder / MANIFEST_NAME, kept)
    with walkit.open(folder, options=TINY) as log:
        log.trim(70)
        log.wait_idle()
        rows |= appended(log, "a", 30)
    rows = {lsn: value for lsn, value in rows.items() if lsn > 70}
    shutil.copy(kept, folder / MANIFEST_NAME)
    return Mixed(folder, rows)


def _foreign_manifest(root: Path, *, slot: str) -> Mixed:
    folder, other = root / "orders", root / "other"
    rows = written(folder, "a", 120)
    written(other, "b", 180)
    shutil.copy(other / MANIFEST_NAME, folder / MANIFEST_NAME)
    if slot == "foreign":
        shutil.copy(other / DURABLE_NAME, folder / DURABLE_NAME)
    elif slot == "none":
        (folder / DURABLE_NAME).unlink()
    return Mixed(folder, rows)


def foreign_manifest(root: Path) -> Mixed:
    """The manifest of another log is put over that of this one."""
    return _foreign_manifest(root, slot="own")


def foreign_manifest_and_slot(root: Path) -> Mixed:
    """The manifest and the durable slot of another log are put over those of this one."""
    return _foreign_manifest(root, slot="foreign")


def foreign_manifest_without_a_slot(root: Path) -> Mixed:
    """The manifest of another log is put over that of this one, and no durable slot is there."""
    return _foreign_manifest(root, slot="none")


def _branches(root: Path, ours: int, theirs: int, *, manifest: bool = False) -> Mixed:
    folder, copied = root / "orders", root / "copied"
    shared = written(folder, "shared", 40)
    shutil.copytree(folder, copied)
    number_from(copied, 50)
    if manifest:
        number_from(folder, 80)
    left, right = shared | written(folder, "left", ours), shared | written(copied, "right", theirs)
    add_segments(folder, copied)
    if not manifest:
        (folder / MANIFEST_NAME).unlink()
    longest, other = (left, right) if ours >= theirs or manifest else (right, left)
    return Mixed(folder, longest, [other])


def two_epochs_branch(root: Path) -> Mixed:
    """No manifest, and the segments of two epochs with one number that both follow LSN 40."""
    return _branches(root, 90, 60)


def two_epochs_branch_and_the_slot_is_of_the_shorter(root: Path) -> Mixed:
    """The same, and the durable slot promises the branch that ends earlier."""
    return _branches(root, 60, 90)


def a_branch_beside_a_right_manifest(root: Path) -> Mixed:
    """The manifest is right, and the segments of a branch are beside those that it names."""
    return _branches(root, 60, 90, manifest=True)


def _branch_within_a_segment(root: Path, ours: int, theirs: int) -> Mixed:
    folder, copied = root / "orders", root / "copied"
    with walkit.open(folder, options=TINY) as log:
        rows = appended(log, "left", 50)
        log.wait_idle()
        shutil.copytree(folder, copied)  # as a backup of a log in use takes it
        shared, rows = rows, rows | appended(log, "left", ours)
    with walkit.open(copied, options=TINY):
        pass
    number_from(copied, 50)
    other = shared | written(copied, "right", theirs)
    add_segments(folder, copied)
    (folder / MANIFEST_NAME).unlink()
    longest, shorter = (rows, other) if ours >= theirs else (other, rows)
    return Mixed(folder, longest, [shorter])


def branch_within_a_segment(root: Path) -> Mixed:
    """A new epoch begins in the middle of a segment whose own writer continued, and ends before that one."""
    return _branch_within_a_segment(root, 70, 30)


def longer_branch_within_a_segment(root: Path) -> Mixed:
    """A new epoch begins in the middle of a segment whose own writer continued, and ends after that one."""
    return _branch_within_a_segment(root, 30, 70)


def three_histories(root: Path) -> Mixed:
    """Two branches of one log and the segments of another one, whose epochs have the same numbers; no manifest."""
    mixed = _branches(root, 90, 60)
    third = root / "third"
    written(third, "third", 1)
    number_from(third, 80)
    rows = written(third, "third", 40)
    mixed.others.append(rows)
    add_segments(mixed.folder, third)
    return mixed


MIXED: Iterable[Callable[[Path], Mixed]] = (
    renamed_under_its_writer,
    with_a_snapshot_of_the_other,
    old_manifest,
    old_manifest_without_a_slot,
    old_manifest_over_a_compaction,
    old_manifest_over_a_trim,
    foreign_manifest,
    foreign_manifest_and_slot,
    foreign_manifest_without_a_slot,
    two_epochs_branch,
    two_epochs_branch_and_the_slot_is_of_the_shorter,
    a_branch_beside_a_right_manifest,
    branch_within_a_segment,
    longer_branch_within_a_segment,
    three_histories,
)
