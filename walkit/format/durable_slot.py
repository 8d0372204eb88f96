"""The durable slot, in two checksummed places that publish how far the log is on stable storage (FORMAT.md F-4).

The writer stores a slot after durability and before the acknowledgement, and never syncs it: any value found is true,
only perhaps old. Readers in other processes poll it.
"""

from __future__ import annotations

from typing import NamedTuple

from walkit.format.checksum import crc32c
from walkit.format.layout import DURABLE_SLOT, DURABLE_SLOT_CHECKED, DURABLE_SLOT_STRIDE, DURABLE_SLOTS_BYTES

_CRC_OFFSET = DURABLE_SLOT.size - 4


class DurableSlot(NamedTuple):
    """Everything below `position` (frames up to `lsn`) is on stable storage. `generation` grows with every store."""

    generation: int
    epoch: int
    epoch_id: int
    position: int
    lsn: int


NOTHING_DURABLE = DurableSlot(0, 0, 0, 0, 0)


def encode_slot(slot: DurableSlot | tuple[int, int, int, int, int]) -> tuple[int, bytes]:
    """Return (offset in the file, bytes); generations alternate between the two places, so that one is always whole.

    A plain tuple of a slot's fields is taken, too: there is one for every frame.
    """
    head = DURABLE_SLOT_CHECKED.pack(*slot)
    return (slot[0] & 1) * DURABLE_SLOT_STRIDE, head + crc32c(head).to_bytes(4, "little")


def decode_slots(cell: bytes) -> DurableSlot:
    """Return the newest whole slot; NOTHING_DURABLE where there is none."""
    best = NOTHING_DURABLE
    for offset in (0, DURABLE_SLOT_STRIDE):
        if len(cell) < min(offset + DURABLE_SLOT.size, DURABLE_SLOTS_BYTES):
            continue
        *fields, crc = DURABLE_SLOT.unpack_from(cell, offset)
        slot = DurableSlot._make(fields)
        if slot.generation > best.generation and crc32c(cell[offset : offset + _CRC_OFFSET]) == crc:
            best = slot
    return best
