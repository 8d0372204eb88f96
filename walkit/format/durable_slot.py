"""The file `durable`: how far the log, and which manifest, is on stable storage (FORMAT.md F-4).

The durable slot of the frames has two checksummed places, and the promise of the manifest has two more. The writer
stores a slot after durability and before the acknowledgement, and never syncs it: any value found is true, only perhaps
old. Readers in other processes poll it.
"""

from __future__ import annotations

from typing import NamedTuple

from walkit.format.checksum import crc32c
from walkit.format.layout import (
    DURABLE_SLOT,
    DURABLE_SLOT_CHECKED,
    DURABLE_SLOT_STRIDE,
    GENERATION_MAX,
    MANIFEST_SLOTS_OFFSET,
)

_CRC_OFFSET = DURABLE_SLOT.size - 4


class ManifestPromise(NamedTuple):
    """The manifest of this generation is on stable storage. The epoch is the newest one of its lineage."""

    generation: int
    epoch: int
    epoch_id: int


NO_PROMISE = ManifestPromise(0, 0, 0)


class DurableSlot(NamedTuple):
    """Everything below `position` (frames up to `lsn`) is on stable storage. `generation` grows with every store."""

    generation: int
    epoch: int
    epoch_id: int
    position: int
    lsn: int
    promise: ManifestPromise = NO_PROMISE
    """The manifest's promise in the same file, in places of its own."""


NOTHING_DURABLE = DurableSlot(0, 0, 0, 0, 0)


def encode_slot(slot: DurableSlot | tuple[int, int, int, int, int]) -> tuple[int, bytes]:
    """Return (offset in the file, bytes); generations alternate between the two places, so that one is always whole.

    A plain tuple of a slot's own fields is taken, too: there is one for every frame.
    """
    head = DURABLE_SLOT_CHECKED.pack(*slot[:5])
    return (slot[0] & 1) * DURABLE_SLOT_STRIDE, head + crc32c(head).to_bytes(4, "little")


def encode_promise(promise: ManifestPromise, turn: int) -> tuple[int, bytes]:
    """Return (offset in the file, bytes); the caller alternates between turns."""
    _, data = encode_slot((*promise, 0, 0))
    return MANIFEST_SLOTS_OFFSET + (turn & 1) * DURABLE_SLOT_STRIDE, data


def decode_slots(cell: bytes) -> DurableSlot:
    """Return the newest whole slot with the newest whole promise; NOTHING_DURABLE if there is neither."""
    slot, promise = _newest(cell, 0), _newest(cell, MANIFEST_SLOTS_OFFSET)
    return slot._replace(promise=ManifestPromise(*promise[:3]))


def _newest(cell: bytes, first: int) -> DurableSlot:
    best = NOTHING_DURABLE
    for offset in (first, first + DURABLE_SLOT_STRIDE):
        if len(cell) < offset + DURABLE_SLOT.size:
            continue
        *fields, crc = DURABLE_SLOT.unpack_from(cell, offset)
        slot = DurableSlot._make((*fields, NO_PROMISE))
        if (
            best.generation < slot.generation <= GENERATION_MAX
            and crc32c(cell[offset : offset + _CRC_OFFSET]) == crc
        ):
            best = slot
    return best
