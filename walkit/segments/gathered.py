"""Files of a gathered log (FORMAT.md F-19) that have their names in the folder, while no manifest has them yet.

Between their renames and that manifest the log in the folder is the one of before. Readers, an examination and an
opening continue with it; the next opening as a replica puts the gathered log in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from walkit.errors import WalkitError
from walkit.format.layout import MANIFEST_BYTES_MAX
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.manifest_file import decode_manifest
from walkit.format.names import BOOTSTRAP_READY_NAME
from walkit.format.segment import SegmentHeader, segment_name
from walkit.storage.interface import Storage
from walkit.storage.whole_file import read_if_there

SNAPSHOT_KEY: Final = "snapshot_lsn"


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a log that is ready to take the place of this one has of files that bear a name of this one's."""

    segments: Mapping[str, SegmentRecord] = field(default_factory=dict)
    """What the plan says of each segment, by the name that it gets."""
    snapshot_lsn: int = 0
    """Where its snapshot is; 0 where it has none."""

    def has(self, name: str, header: SegmentHeader) -> bool:
        """Say whether the segment of this name is one of it."""
        record = self.segments.get(name)
        return record is not None and (record.start_position, record.first_lsn, record.start_chain) == (
            header.start_position,
            header.first_lsn,
            header.chain,
        )


NOTHING_GATHERED: Final = Gathered()


def gathered_in(storage: Storage, manifest: Manifest) -> Gathered:
    """Return what is ready to take the place of the log of this manifest; nothing where none is. StorageError."""
    data = read_if_there(storage, BOOTSTRAP_READY_NAME, MANIFEST_BYTES_MAX + 1)
    if data is None:
        return NOTHING_GATHERED
    try:
        ready = decode_manifest(data, BOOTSTRAP_READY_NAME)
    except WalkitError:
        return NOTHING_GATHERED
    lsn = ready.extra.get(SNAPSHOT_KEY, 0)
    if ready.log_id != manifest.log_id or not isinstance(lsn, int):
        return NOTHING_GATHERED
    first = manifest.next_segment
    return Gathered(
        {segment_name(first + i): record for i, record in enumerate(ready.sealed)}, snapshot_lsn=lsn
    )
