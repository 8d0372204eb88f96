"""The index of a segment: it comes back whole, or not at all."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import flipped
from walkit.format.checksum import crc32c
from walkit.format.index import (
    IndexEntry,
    IndexIdentity,
    decode_index,
    encode_index,
    has_index,
    index_bytes_max,
    index_name,
)
from walkit.format.layout import FORMAT_VERSION, INDEX_HEADER, INDEX_SEGMENT_BYTES_MIN
from walkit.format.manifest import SegmentRecord, SegmentState

RECORD = SegmentRecord(
    number=7,
    state=SegmentState.SEALED,
    epoch=3,
    start_position=1 << 20,
    end_position=(1 << 20) + INDEX_SEGMENT_BYTES_MIN,
    first_lsn=100,
    last_lsn=199,
    end_chain=0xABCD,
    records=100,
    frames=50,
)
IDENTITY = IndexIdentity.of(0x1D, RECORD)
ENTRIES = [
    IndexEntry(1 << 20, 100, 0),
    IndexEntry((1 << 20) + 70_016, 130, 30),
    IndexEntry((1 << 20) + 140_032, 130, 30),
    IndexEntry((1 << 20) + 210_048, 190, 90),
]
WHOLE = encode_index(IDENTITY, ENTRIES)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 40)), max_size=40))
def test_round_trip(steps: list[tuple[int, int]]) -> None:
    """F-10.2: entries come back as they were, each LSN finds the same as a plain search."""
    positions = list(accumulate((step for step, _ in steps), initial=64))
    counts = list(accumulate((count for _, count in steps), initial=0))
    entries = [IndexEntry(p, 5 + n, n) for p, n in zip(positions, counts, strict=True)]
    identity = IDENTITY._replace(
        start_position=64, end_position=positions[-1] + 1, first_lsn=5, last_lsn=5 + counts[-1]
    )
    index = decode_index(encode_index(identity, entries), identity)
    assert index is not None
    assert [index.entry(at) for at in range(len(entries))] == entries
    for lsn in {0, 4, 5, *(e.first_lsn + d for e in entries for d in (-1, 0, 1))}:
        assert index.before(lsn) == next((e for e in reversed(entries) if e.first_lsn <= lsn), None)
        behind = next((e.position for e in entries if e.first_lsn > lsn), None)
        assert index.position_after(lsn) == behind


def test_every_flip_and_every_cut_invalidates_the_index() -> None:
    """F-10.1: with any bit changed, cut short at any byte, or with bytes after it, the file is not an index."""
    assert decode_index(WHOLE, IDENTITY) is not None
    assert [bit for bit in range(8 * len(WHOLE)) if decode_index(flipped(WHOLE, bit), IDENTITY)] == []
    assert [size for size in range(len(WHOLE)) if decode_index(WHOLE[:size], IDENTITY)] == []
    assert decode_index(WHOLE + b"\0", IDENTITY) is None


@pytest.mark.parametrize("fact", IndexIdentity._fields)
def test_an_index_of_another_segment_is_ignored(fact: str) -> None:
    """F-10.4: where any one fact of the manifest differs, the index is not that of the segment."""
    assert decode_index(WHOLE, IDENTITY._replace(**{fact: getattr(IDENTITY, fact) + 1})) is None


@pytest.mark.parametrize(
    "entries",
    [
        ENTRIES[1:],
        [*ENTRIES[:2], ENTRIES[1]],
        [ENTRIES[0], ENTRIES[2]._replace(first_lsn=99)],
        [*ENTRIES, IndexEntry(IDENTITY.end_position, 195, 95)],
        [*ENTRIES, IndexEntry((1 << 20) + 220_032, 201, 95)],
        [ENTRIES[0]._replace(first_lsn=101)],
        [],
    ],
    ids=[
        "no first frame",
        "twice",
        "falling LSNs",
        "at the end",
        "LSN after the end",
        "another first LSN",
        "none",
    ],
)
def test_entries_that_cannot_be_are_refused(entries: list[IndexEntry]) -> None:
    """F-10.2: a right checksum over impossible entries is not an index either."""
    assert decode_index(encode_index(IDENTITY, entries), IDENTITY) is None


def test_a_newer_index_is_ignored() -> None:
    """F-10.1: a version above this one, under a right checksum, is left alone."""
    fields = list(INDEX_HEADER.unpack_from(WHOLE))
    columns = WHOLE[INDEX_HEADER.size :]
    for version, wanted in ((FORMAT_VERSION, True), (FORMAT_VERSION + 1, False)):
        head = INDEX_HEADER.pack(*[fields[0], version, *fields[2:-1], 0])[:-4]
        data = head + crc32c(columns, crc32c(head)).to_bytes(4, "little") + columns
        assert (decode_index(data, IDENTITY) is not None) is wanted


def test_which_segments_have_one_and_how_large() -> None:
    """F-10.2: sealed ones of 256 KiB and more; the bound on its size holds for a frame noted every 64 KiB."""
    assert has_index(RECORD)
    assert not has_index(RECORD._replace(state=SegmentState.PREPARED))
    assert not has_index(RECORD._replace(end_position=RECORD.end_position - 64))
    most = [IndexEntry(RECORD.start_position + at, 100, 0) for at in range(0, RECORD.size_bytes, 64 << 10)]
    assert len(encode_index(IDENTITY, most)) <= index_bytes_max(RECORD) < len(WHOLE) + 2 * 24
    assert index_name(RECORD.name) == "00000000000000000007.segment.index"
