"""The durable slot: two places for it, of which one is always whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import read_durable
from tests.support.makers import flipped
from walkit.format.checksum import crc32c
from walkit.format.durable_slot import (
    NO_PROMISE,
    NOTHING_DURABLE,
    DurableSlot,
    ManifestPromise,
    decode_slots,
    encode_promise,
    encode_slot,
)
from walkit.format.layout import DURABLE_SLOTS_BYTES

U64 = st.integers(0, (1 << 64) - 1)
MARKS = st.builds(DurableSlot, st.integers(1, (1 << 63) - 1), *[U64] * 4, st.just(NO_PROMISE))


def stored(cell: bytes, mark: DurableSlot) -> bytes:
    """The cell after a whole store of this mark."""
    offset, slot = encode_slot(mark)
    return cell[:offset] + slot + cell[offset + len(slot) :]


def mark_of(generation: int) -> DurableSlot:
    return DurableSlot(generation, 3, 0xE1E1E1E1, 128 * generation, 7 * generation)


EMPTY = bytes(DURABLE_SLOTS_BYTES)


@given(mark=MARKS, older=MARKS)
def test_round_trip(mark: DurableSlot, older: DurableSlot) -> None:
    """F-4.1: a stored mark comes back; of two the one with the higher generation, here and by FORMAT.md."""
    assert decode_slots(stored(EMPTY, mark)) == mark
    cell = stored(stored(EMPTY, older), mark)
    wanted = mark if (mark.generation - older.generation) % 2 == 0 else max(mark, older)
    assert decode_slots(cell) == wanted
    plain = read_durable(cell)
    assert plain is not None and tuple(plain.values())[:5] == wanted[:5]


def test_slots_alternate() -> None:
    """F-4.1: over many generations each store goes to the slot that the last one left alone, and is found."""
    cell, offsets = EMPTY, []
    for generation in range(1, 40):
        offset, slot = encode_slot(mark_of(generation))
        assert len(slot) == 44 and offset + len(slot) <= DURABLE_SLOTS_BYTES
        offsets.append(offset)
        cell = stored(cell, mark_of(generation))
        assert decode_slots(cell) == mark_of(generation)
        without = cell[:offset] + bytes(64) + cell[offset + 64 :]
        assert decode_slots(without) == (mark_of(generation - 1) if generation > 1 else NOTHING_DURABLE)
    assert offsets == [64 * (generation % 2) for generation in range(1, 40)]


def test_promises_of_the_manifest_have_places_of_their_own() -> None:
    """F-4.6: store promises in turn, torn at each byte: the newest whole one is found, and the slot stays as it was."""
    cell = stored(stored(EMPTY, mark_of(6)), mark_of(7))
    before = NO_PROMISE
    for turn, generation in enumerate((3, 4, 6, 8)):
        promise = ManifestPromise(generation, 2, 0xE2)
        offset, data = encode_promise(promise, turn)
        assert offset == 128 + 64 * (turn % 2) and offset + len(data) <= DURABLE_SLOTS_BYTES
        for size in range(len(data) + 1):
            torn = cell[:offset] + data[:size] + cell[offset + size :]
            found = decode_slots(torn)
            whole = torn[offset : offset + 44] == data
            assert found == mark_of(7)._replace(promise=promise if whole else before)
        cell, before = cell[:offset] + data + cell[offset + len(data) :], promise


@pytest.mark.parametrize("generations", [1, 2, 3, 4])
def test_a_store_torn_at_every_byte(generations: int) -> None:
    """F-4.1: a store cut short at any byte shows the mark before it, or the new one if it came whole."""
    cell = EMPTY
    for generation in range(1, generations):
        cell = stored(cell, mark_of(generation))
    before = decode_slots(cell)
    offset, slot = encode_slot(mark_of(generations))
    for size in range(len(slot) + 1):
        for torn in (
            cell[:offset] + slot[:size] + cell[offset + size :],
            cell[: offset + size] + slot[size:] + cell[offset + len(slot) :],
        ):
            whole = torn == stored(cell, mark_of(generations))
            assert decode_slots(torn) == (mark_of(generations) if whole else before)
            assert decode_slots(torn) == before or whole


def test_every_bit_flip_shows_the_other_slot() -> None:
    """F-4.1: damage in one slot gives the other, in both nothing; bytes between the slots have no meaning."""
    cell = stored(stored(EMPTY, mark_of(6)), mark_of(7))
    for bit in range(len(cell) * 8):
        slot, at = divmod(bit >> 3, 64)
        found = decode_slots(flipped(cell, bit))
        assert found == (mark_of(7) if at >= 44 or slot != 1 else mark_of(6))
    assert decode_slots(flipped(flipped(cell, 8), 64 * 8 + 8)) == NOTHING_DURABLE


def test_an_impossible_generation_is_not_a_slot() -> None:
    """F-1.5, F-4.1: zeros, and generation 0 or 2^63 under a right checksum, say nothing."""
    assert decode_slots(EMPTY) == NOTHING_DURABLE
    for generation in (0, 1 << 63, (1 << 64) - 1):
        assert decode_slots(stored(EMPTY, mark_of(5)._replace(generation=generation))) == NOTHING_DURABLE


def test_cells_of_other_sizes() -> None:
    """F-4.1, F-13.5: a cell cut at any byte gives its whole slots; a longer one its first two slots."""
    cell = stored(stored(EMPTY, mark_of(6)), mark_of(7))
    for size in range(len(cell)):
        wanted = NOTHING_DURABLE if size < 44 else mark_of(6) if size < 108 else mark_of(7)
        assert decode_slots(cell[:size]) == wanted
    assert decode_slots(cell + cell) == mark_of(7)


@given(cell=st.binary(max_size=200), sealed=st.booleans())
def test_arbitrary_cells(cell: bytes, sealed: bool) -> None:
    """F-13.5: any bytes are a mark or nothing; under a right checksum any fields are a mark."""
    if sealed and len(cell) >= 44:
        cell = cell[:40] + crc32c(cell[:40]).to_bytes(4, "little") + cell[44:]
    found = decode_slots(cell)
    assert found == NOTHING_DURABLE or found.generation > 0
    if sealed and len(cell) >= 44 and cell[:8] != bytes(8):
        assert found.generation >= int.from_bytes(cell[:8], "little")
