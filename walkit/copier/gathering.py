"""Another log is gathered in a folder until it is whole, by a copy or a bootstrap (FORMAT.md F-19).

The parts stand under names that no log reads, beside the log of a replica or in the folder of a copy. A part that is
there is not fetched again. With its last byte it is put on stable storage, and each frame and chain of it is checked
from the device and not from the page cache: so nothing has to be believed of a part. `switch` gives them their names.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from walkit.copier.plan import MissingRange
from walkit.copier.segment_check import check_segment
from walkit.copier.snapshot_check import verify_snapshot
from walkit.errors import CorruptionError, FormatVersionError, SnapshotError, StorageError, WalkitError
from walkit.format.file_names import BOOTSTRAP_PREFIX, BOOTSTRAP_READY_NAME
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, encode_base
from walkit.format.segment import SegmentHeader
from walkit.segments.history import identity_at
from walkit.segments.orphan_files import SNAPSHOT_KEY
from walkit.storage.bulk import write_whole
from walkit.storage.interface import Storage, StorageFile


def part_name(number: int) -> str:
    """Return the name of the part of the source's segment of this number."""
    return f"{BOOTSTRAP_PREFIX}{number:020d}.part"


def snapshot_part_name(lsn: int) -> str:
    """Return the name of the part of the source's snapshot at this LSN."""
    return f"{BOOTSTRAP_PREFIX}snapshot-{lsn:020d}.part"


class _Part(NamedTuple):
    """A file of the plan."""

    name: str
    """Its name while it is gathered."""
    size: int
    record: SegmentRecord | None
    """The segment that it is; None for a snapshot."""
    snapshot_lsn: int = 0


class Gathering:
    """The files of one plan as far as they came, in a folder. Used by one thread, which has the writer's lock."""

    def __init__(self, storage: Storage, step: Callable[[], object] = lambda: None) -> None:
        """`step` is called every few frames that are checked, and may end the work by an error."""
        self.storage, self._step = storage, step
        self._manifest = Manifest(log_id=0)
        self._parts: tuple[_Part, ...] = ()
        self._checked: dict[str, object] = {}
        """The parts that are whole, on stable storage and right, with the record that each was checked by."""
        self._records: dict[int, SegmentRecord] = {}
        """The whole records of the segments that were checked."""
        self._file: StorageFile | None = None
        self._index = -1

    def prepare(
        self, manifest: Manifest, sizes: tuple[int, ...], snapshot_lsns: tuple[int, ...] = ()
    ) -> tuple[MissingRange, ...]:
        """Begin to gather this plan, and return its missing parts; parts of an earlier one are used.

        `sizes` are those of the manifest's segments, all of them sealed, then of the snapshots. A part of all the bytes
        is checked first, and missing if it is damaged. StorageError.
        """
        self.close()
        self._manifest = manifest
        segments = [(part_name(record.number), record, 0) for record in manifest.sealed]
        snapshots = [(snapshot_part_name(lsn), None, lsn) for lsn in snapshot_lsns]
        files = zip((*segments, *snapshots), sizes, strict=True)
        self._parts = tuple(_Part(name, size, record, lsn) for (name, record, lsn), size in files)
        names = set(self.storage.names())
        there = {part.name: self._bytes_of(part) for part in self._parts if part.name in names}
        self._clear({name for name, size in there.items() if size})
        self._checked = {name: what for name, what in self._checked.items() if there.get(name)}
        missing = []
        for index, part in enumerate(self._parts):
            have = there.get(part.name, 0)
            if have == part.size:
                try:
                    self._check(part)
                except (CorruptionError, FormatVersionError):
                    have = 0
            missing.append(MissingRange(index, have, part.size))
        return tuple(missing)

    def store(self, index: int, offset: int, data: bytes) -> None:
        """Write bytes into the part of this index; on stable storage and checked once its last byte was stored.

        CorruptionError, FormatVersionError if it is damaged then: it is removed, to be fetched again. StorageError.
        """
        part = self._parts[index]
        if self._index != index or self._file is None:
            self.close()
            there = part.name in self.storage.names()
            self._file = self.storage.open(part.name, "write" if there else "create")
            self._index = index
        self._checked.pop(part.name, None)
        self._file.write(offset, [data])
        if offset + len(data) == part.size:
            self._check(part)

    def manifest(self) -> Manifest:
        """Return the manifest of the plan, all of which was gathered, with facts from its parts."""
        missing = [part.name for part in self._parts if part.name not in self._checked]
        assert not missing, missing
        return replace(self._manifest, segments=tuple(self._records[r.number] for r in self._manifest.sealed))

    def finish(self) -> None:
        """Note that all was gathered, and is to take the place of the log in this folder. Durable on return."""
        self.close()
        self.storage.sync_directory()
        snapshot_lsn = max((part.snapshot_lsn for part in self._parts), default=0)
        facts = replace(self.manifest(), extra={SNAPSHOT_KEY: snapshot_lsn})
        write_whole(self.storage, BOOTSTRAP_READY_NAME, f"{BOOTSTRAP_READY_NAME}.new", encode_base(facts))

    def clear(self) -> None:
        """Remove all that is gathered: the log in this folder is continued after all."""
        self.close()
        self._clear(set())

    def close(self) -> None:
        """Close the part that is open."""
        file, self._file, self._index = self._file, None, -1
        if file is not None:
            file.close()

    def _clear(self, keep: set[str]) -> None:
        for name in self.storage.names():
            if name.startswith(BOOTSTRAP_PREFIX) and name not in keep:
                self.storage.remove(name)

    def _bytes_of(self, part: _Part) -> int:
        """Return how many bytes of a part there are; 0 if the file of its name is another, or larger."""
        file = self.storage.open(part.name, "read")
        try:
            size, record = file.size(), part.record
            if record is not None and not _begins(file, record):
                return 0
            return size if size <= part.size else 0
        finally:
            file.close()

    def _settle(self, name: str) -> None:
        """Put a part on stable storage and drop its cached pages: a check then reads from the device.

        A part whose sync fails is removed, to be fetched again: its pages look clean after that, here and to the next
        sync (FORMAT.md F-19.2). StorageError.
        """
        file = self.storage.open(name, "write")
        try:
            file.sync()
            file.drop_cached()
        except StorageError:
            with suppress(StorageError):
                self.storage.remove(name)
            raise
        finally:
            file.close()

    def _check(self, part: _Part) -> None:
        """Check a part that has all its bytes, unless it was; one that is damaged goes."""
        self.close()
        manifest = self._manifest
        meant = (*part, manifest.log_id, manifest.lineage, manifest.gaps)
        if self._checked.get(part.name) == meant:
            return
        self._settle(part.name)
        try:
            if part.record is not None:
                whole = check_segment(self.storage, manifest, part.record, name=part.name, step=self._step)
                self._records[whole.number] = whole
            else:
                self._check_snapshot(part)
        except StorageError:
            raise
        except WalkitError:
            self.storage.remove(part.name)
            raise
        self._checked[part.name] = meant

    def _check_snapshot(self, part: _Part) -> None:
        lsn = part.snapshot_lsn
        try:
            verify_snapshot(self.storage, lsn, identity=identity_at(self._manifest, lsn), name=part.name)
        except SnapshotError as error:
            if isinstance(error.__cause__, StorageError):
                raise error.__cause__ from error
            text = f"the snapshot at LSN {lsn:,} came damaged: {error}. It is fetched again"
            raise CorruptionError(text, segment=part.name) from error


def _begins(file: StorageFile, record: SegmentRecord) -> bool:
    """Say whether the gathered bytes are the beginning of this segment: it may have been in use then."""
    try:
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), record.name)
    except (CorruptionError, FormatVersionError):
        return False
    if header is None:
        return False
    found = (header.start_position, header.first_lsn, header.chain, header.epoch, header.created_us)
    expected = (record.start_position, record.first_lsn, record.start_chain, record.epoch, record.created_us)
    return found == expected and int(header.flags) == record.flags
