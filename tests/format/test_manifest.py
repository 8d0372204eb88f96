"""The manifest: there and back, every flip noticed, newer ones named, nonsense refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.format.plain_reader import read_manifest
from tests.support import makers
from tests.support.makers import flipped
from walkit.errors import CorruptionError, FormatVersionError, NotALogError
from walkit.format.checksum import crc32c
from walkit.format.layout import FORMAT_DRAFT, LSN_MAX, MANIFEST_BYTES_MAX, POSITION_MAX, SegmentFlag
from walkit.format.manifest import (
    EpochRecord,
    HoleRecord,
    LogEnd,
    LostRecord,
    Manifest,
    SegmentRecord,
    SegmentState,
    decode_manifest,
    encode_base,
    encode_edit,
    segment_order,
)
from walkit.format.manifest import read_manifest as read_manifest_file

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SEGMENTS = st.builds(
    SegmentRecord,
    number=U64,
    state=st.sampled_from(SegmentState),
    **dict.fromkeys(("epoch", "start_position", "end_position", "first_lsn", "last_lsn"), U64),
    **dict.fromkeys(("start_chain", "end_chain", "flags"), U32),
    **dict.fromkeys(("records", "frames", "created_us"), U64),
    reserved_bytes=st.integers(0, POSITION_MAX),
).filter(
    lambda s: (
        s.state is SegmentState.PREPARED
        or (
            s.start_position < s.end_position <= POSITION_MAX and 0 < s.first_lsn <= s.last_lsn + 1 <= LSN_MAX
        )
    )
)
EPOCHS = st.builds(EpochRecord, number=U64, id=U64, first_lsn=U64, position=U64, chain=U32)
HOLES = st.lists(st.tuples(st.integers(1, 1 << 40), U32, U32), max_size=3).map(
    lambda sizes: tuple(
        HoleRecord(
            start_position=sum(s for s, _, _ in sizes[:i]) + i,
            end_position=sum(s for s, _, _ in sizes[: i + 1]) + i,
            first_lsn=1 + lsns,
            last_lsn=lsns + size,
            chain=lsns,
        )
        for i, (size, lsns, _) in enumerate(sizes)
    )
)
MANIFESTS = st.builds(
    Manifest,
    log_id=U64,
    generation=U64,
    created_us=U64,
    ack_order=st.sampled_from(["append", "completion"]),
    lineage=st.lists(EPOCHS, max_size=3, unique_by=lambda e: e.number).map(tuple),
    segments=st.lists(SEGMENTS, max_size=4, unique_by=lambda s: s.number).map(tuple),
    next_segment=U64,
    end=st.builds(LogEnd, last_lsn=st.just(LSN_MAX), position=st.just(POSITION_MAX), chain=U32),
    low_watermark=U64,
    checkpoint_lsn=U64,
    exact_from_lsn=U64,
    tombstones_from_lsn=U64,
    holes=HOLES,
    lost=st.just(()),
    extra=st.dictionaries(st.text(), JSON, max_size=3),
)
PLAIN = Manifest(
    log_id=(1 << 64) - 1,
    generation=3,
    lineage=(EpochRecord(number=1, id=(1 << 64) - 2, first_lsn=1, position=0, chain=0),),
    segments=(
        SegmentRecord(
            number=1, state=SegmentState.SEALED, epoch=1, end_position=128, first_lsn=1, last_lsn=1
        ),
        SegmentRecord(number=2, state=SegmentState.PREPARED, epoch=1),
    ),
    next_segment=3,
    end=LogEnd(last_lsn=1, position=128, chain=9),
)
DATA = encode_base(PLAIN)


def resealed(payload: bytes, **head: int) -> bytes:
    """A manifest of this payload, with these header fields and a right checksum."""
    fields = {
        "version": 0,
        "header_bytes": 36,
        "critical": 0,
        "optional": 0,
        "payload_bytes": len(payload),
        "draft": FORMAT_DRAFT,
        "edit_bytes": 0,
        **head,
    }
    first = struct.pack("<8sHHIII", b"WALKITMF", *[fields[name] for name in list(fields)[:5]])
    rest = struct.pack("<II", fields["draft"], fields["edit_bytes"])
    return first + crc32c(rest + payload, crc32c(first)).to_bytes(4, "little") + rest + payload


def with_fields(**changes: Any) -> bytes:
    """The payload of PLAIN with other values; None leaves a field out."""
    plain = {**read_manifest(DATA), **changes}
    return json.dumps({k: v for k, v in plain.items() if v is not ...}).encode()


@given(manifest=MANIFESTS)
def test_round_trip(manifest: Manifest) -> None:
    """F-12.1: every manifest comes back whole, numbers of 64 bits and names in any script included."""
    data = encode_base(manifest)
    assert decode_manifest(data, "log") == manifest
    plain = read_manifest(data)
    assert plain["log_id"] == manifest.log_id and plain["extra"] == manifest.extra
    assert [s["state"] for s in plain["segments"]] == [s.state.value for s in manifest.segments]


def test_a_person_can_read_it() -> None:
    """F-12.1: after 36 bytes there is nothing but one JSON object with the names of the fields."""
    plain = json.loads(DATA[36:])
    assert plain["end"] == {"last_lsn": 1, "position": 128, "chain": 9}
    assert plain["segments"][1]["state"] == "prepared"


def test_what_json_has_no_word_for() -> None:
    """F-12.1: a number that JSON cannot hold is refused by the writer, not written as something only Python reads."""
    for value in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="JSON"):
            encode_base(PLAIN.next(extra={"rate": value}))


def test_every_bit_flip_is_noticed() -> None:
    """F-1.3, F-1.4, F-12.2: each bit turned is NotALogError in the magic and CorruptionError anywhere else."""
    for bit in range(len(DATA) * 8):
        with pytest.raises(NotALogError if bit < 64 else CorruptionError):
            decode_manifest(flipped(DATA, bit), "log")


def test_cut_and_padded_at_every_byte() -> None:
    """F-12.2: a manifest that is shorter or longer than it says is refused, with zeros after it too."""
    for size in range(len(DATA)):
        for data in (DATA[:size], DATA[:size].ljust(len(DATA), b"\0")):
            with pytest.raises((CorruptionError, NotALogError)):
                decode_manifest(data, "log")
    for behind in (b"\0", b"\n", DATA):
        with pytest.raises(CorruptionError, match="length"):
            decode_manifest(DATA + behind, "log")


def test_zeros_are_refused() -> None:
    """F-1.5: zeros of any size, and nothing at all, are not a log."""
    for size in (0, 1, 35, 36, 4096):
        with pytest.raises(NotALogError):
            decode_manifest(bytes(size), "log")


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ({"version": 1}, 1),
        ({"version": 65535}, 65535),
        ({"header_bytes": 40, "payload_bytes": len(DATA) - 40}, "0 with a header of 40 bytes"),
        ({"draft": 0}, "0, draft 0"),
        ({"draft": 4}, "0, draft 4"),
        ({"critical": 1}, "with critical features 0x1"),
        ({"critical": 1 << 31}, "with critical features 0x80000000"),
    ],
    ids=str,
)
def test_newer_formats(head: dict[str, int], found: int | str) -> None:
    """F-11.2, F-11.3, F-13.4: newer is a FormatVersionError, whatever the payload; with a wrong checksum, damage."""
    for payload in (DATA[36:], b"not even JSON".ljust(len(DATA) - 36)):
        with pytest.raises(FormatVersionError) as caught:
            decode_manifest(resealed(payload, **head), "log")
        assert caught.value.found == found and "log" in caught.value.where
    with pytest.raises(CorruptionError, match="checksum"):
        decode_manifest(flipped(resealed(DATA[36:], **head), 24 * 8), "log")


def test_unknown_optional_features_are_ignored() -> None:
    """F-11.3: with every optional bit set the manifest reads as before."""
    assert decode_manifest(resealed(DATA[36:], optional=0xFFFFFFFF), "log") == PLAIN


SEGMENT = read_manifest(DATA)["segments"][0]
HOLE = {"start_position": 64, "end_position": 128, "first_lsn": 2, "last_lsn": 2, "chain": 7}
LOST: dict[str, Any] = {**HOLE, "segment": "1.segment", "reason": "damaged"}
NONSENSE: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"log_id": "\xff"}',
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "an empty object": b"{}",
    "nested a million deep": b"[" * 1_000_000,
    "a number of a million digits": b'{"log_id": ' + b"9" * 1_000_000 + b"}",
    "NaN": with_fields(log_id=float("nan")),
    "an id that is text": with_fields(log_id="1"),
    "an id that is a truth": with_fields(log_id=True),
    "an id that is a fraction": with_fields(log_id=1.5),
    "an id that is null": with_fields(log_id=None),
    "an id below zero": with_fields(log_id=-1),
    "an id of 65 bits": with_fields(log_id=1 << 64),
    "no id": with_fields(log_id=...),
    "no end": with_fields(end=...),
    "no low watermark": with_fields(low_watermark=...),
    "an unknown field": with_fields(colour="red"),
    "an unknown order": with_fields(ack_order="alphabetical"),
    "extra is a list": with_fields(extra=[]),
    "segments are a number": with_fields(segments=3),
    "segments are an object": with_fields(segments={"a": 1}),
    "a segment is a number": with_fields(segments=[3]),
    "a segment in an unknown state": with_fields(segments=[{**SEGMENT, "state": "open"}]),
    "a segment in a state that is a list": with_fields(segments=[{**SEGMENT, "state": []}]),
    "a segment with an unknown field": with_fields(segments=[{**SEGMENT, "colour": 1}]),
    "a sealed segment without a frame": with_fields(segments=[{**SEGMENT, "end_position": 0}]),
    "a sealed segment that ends before it begins": with_fields(
        segments=[{**SEGMENT, "start_position": 4096}]
    ),
    "a sealed segment at LSN 0": with_fields(segments=[{**SEGMENT, "first_lsn": 0}]),
    "a sealed segment that ends before its first LSN": with_fields(segments=[{**SEGMENT, "first_lsn": 3}]),
    "a segment of more bytes than there are": with_fields(segments=[{**SEGMENT, "reserved_bytes": 1 << 63}]),
    "a segment twice": with_fields(segments=[SEGMENT, SEGMENT]),
    "an epoch twice": with_fields(lineage=read_manifest(DATA)["lineage"] * 2),
    "no holes": with_fields(holes=...),
    "a hole of no bytes": with_fields(holes=[{**HOLE, "end_position": 64}]),
    "a hole that ends before its first LSN": with_fields(holes=[{**HOLE, "last_lsn": 0, "first_lsn": 2}]),
    "a hole twice": with_fields(holes=[HOLE, HOLE]),
    "no lost ranges": with_fields(lost=...),
    "a lost range of no bytes": with_fields(lost=[{**LOST, "end_position": 64}]),
    "a lost range without a reason": with_fields(lost=[{**HOLE}]),
    "a lost range over a hole": with_fields(holes=[HOLE], lost=[LOST]),
    "an end before that of a segment": with_fields(end={"last_lsn": 1, "position": 64, "chain": 9}),
    "an end at an LSN before that of a segment": with_fields(
        end={"last_lsn": 0, "position": 128, "chain": 9}
    ),
    "an end at no position": with_fields(end={"last_lsn": 1, "position": 1 << 63, "chain": 9}),
    "an end at no LSN": with_fields(end={"last_lsn": 1 << 63, "position": 128, "chain": 9}),
    "an end that is a list": with_fields(end=[1, 2, 3]),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_under_a_right_checksum(name: str) -> None:
    """F-12.2, F-12.4, F-13.5: unknown, missing and wrong fields, and other bytes than JSON, are a CorruptionError."""
    with pytest.raises(CorruptionError, match="understood") as caught:
        decode_manifest(resealed(NONSENSE[name]), "log")
    assert caught.value.segment == "manifest" and len(str(caught.value)) < 1000


def test_the_lost_ranges_of_a_segment() -> None:
    """F-2.9: a lost range may reach to the end of its segment, is found in order with the holes, and hides records."""
    lost = LostRecord(**{**LOST, "start_position": 128, "end_position": 192, "first_lsn": 3, "last_lsn": 3})
    hole = HoleRecord(**HOLE)
    segment = PLAIN.segments[0]._replace(end_position=192, first_lsn=1, last_lsn=3, records=1)
    end = LogEnd(last_lsn=3, position=192, chain=9)
    manifest = replace(PLAIN, segments=(segment,), end=end, holes=(hole,), lost=(lost,))
    assert decode_manifest(encode_base(manifest), "log") == manifest
    assert manifest.gaps_of(segment) == (hole, lost) == manifest.gaps
    assert (manifest.frames_end_of(segment), manifest.gap_after(64), manifest.gap_after(0)) == (64, 192, 0)
    assert manifest.complete_from_lsn == 4
    assert replace(manifest, lost=()).frames_end_of(segment) == 192
    compacted = segment._replace(flags=int(SegmentFlag.COMPACTED))
    assert manifest.gaps_of(compacted) == (lost,)


def test_a_manifest_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-7.4, F-13.4: a manifest larger than a reader takes is not written, and is refused unread."""
    monkeypatch.setattr("walkit.format.manifest.MANIFEST_BYTES_MAX", len(DATA) - 1)
    with pytest.raises(ValueError, match="limit"):
        encode_base(PLAIN)
    with pytest.raises(CorruptionError, match="length"):
        decode_manifest(flipped(DATA, 8 * 40), "log")
    monkeypatch.setattr("walkit.format.manifest.MANIFEST_BYTES_MAX", len(DATA))
    assert decode_manifest(encode_base(PLAIN), "log") == PLAIN


def test_the_holes_of_a_segment() -> None:
    """F-2.7, F-2.8: a hole is its segment's if frames follow it, and its LSNs are not missing records."""
    hole = HoleRecord(**HOLE)
    segment = PLAIN.segments[0]._replace(end_position=192, first_lsn=1, last_lsn=3, records=2)
    manifest = replace(
        PLAIN, segments=(segment,), end=LogEnd(last_lsn=3, position=192, chain=9), holes=(hole,)
    )
    assert decode_manifest(encode_base(manifest), "log") == manifest
    assert manifest.gaps_of(segment) == (hole,)
    assert (manifest.complete_from_lsn, replace(manifest, holes=()).complete_from_lsn) == (1, 4)
    assert manifest.gaps_of(segment._replace(end_position=64)) == ()
    assert manifest.gaps_of(segment._replace(flags=int(SegmentFlag.COMPACTED))) == ()


def test_absurd_lengths_allocate_nothing() -> None:
    """F-7.3: a payload length that is not the file's is refused before anything is read by it."""
    for length in (0xFFFFFFFF, MANIFEST_BYTES_MAX + 1, len(DATA)):
        data = resealed(DATA[36:], payload_bytes=length)

        def refuse(data: bytes = data) -> None:
            with pytest.raises(CorruptionError, match="length"):
                decode_manifest(data, "log")

        assert makers.peak_bytes(refuse) < 32_768


@given(
    payload=st.binary(max_size=60) | JSON.map(lambda j: json.dumps(j).encode()), head=st.binary(max_size=40)
)
def test_arbitrary_manifests(payload: bytes, head: bytes) -> None:
    """F-13.5: any bytes, also under a right magic and checksum, give a typed error."""
    for data in (head, b"WALKITMF" + head, resealed(payload)):
        with pytest.raises((NotALogError, CorruptionError, FormatVersionError)):
            decode_manifest(data, "log")


def test_the_layout_before_drafts() -> None:
    """F-11.6: a manifest of the first layout, whose header had 28 bytes and no draft, is a FormatVersionError."""
    payload = DATA[36:]
    first = struct.pack("<8sHHIII", b"WALKITMF", 0, 28, 0, 0, len(payload))
    with pytest.raises(FormatVersionError, match="28 bytes"):
        decode_manifest(first + crc32c(payload, crc32c(first)).to_bytes(4, "little") + payload, "log")


def in_order(manifest: Manifest) -> Manifest:
    """A manifest that a writer can have: its segments in the order of F-12.4."""
    return replace(manifest, segments=tuple(sorted(manifest.segments, key=segment_order)))


def edited(first: Manifest, following: list[Manifest], space: int = 4096) -> tuple[bytes, list[int]]:
    """A file of these manifests, one edit for each after the first, and where each edit begins and the last ends."""
    data = bytearray(encode_base(first, space))
    file = read_manifest_file(bytes(data), "log")
    offsets = [file.offset]
    for manifest in following:
        made = encode_edit(file, manifest)
        assert made is not None
        data[file.offset : made[1].offset] = made[0]
        file = made[1]
        offsets.append(file.offset)
    return bytes(data), offsets


@given(manifests=st.lists(MANIFESTS.map(in_order), min_size=1, max_size=6))
def test_base_and_edits_are_the_last_of_any_manifests(manifests: list[Manifest]) -> None:
    """F-12.9: write manifests as edits, or as bases if none can say them: codec and document read the last one."""
    data, file = b"", None
    for generation, any_manifest in enumerate(manifests, 1):
        # Half of them differ in all that an edit cannot say; those of odd generations go on as one log.
        manifest = replace(any_manifest, generation=generation)
        if file is not None and generation % 2 == 0:
            before = file.manifest
            same = {name: getattr(before, name) for name in ("log_id", "created_us", "ack_order", "lineage")}
            manifest = replace(manifest, **same)
        made = None if file is None else encode_edit(file, manifest)
        if made is None:
            data = encode_base(manifest, 8192)
            file = read_manifest_file(data, "log")
        else:
            assert file is not None
            data = data[: file.offset] + made[0] + data[made[1].offset :]
            file = made[1]
        assert read_manifest_file(data, "log") == file and file.manifest == manifest
        plain = read_manifest(data)
        assert (plain["generation"], plain["extra"]) == (generation, manifest.extra)
        assert [s["number"] for s in plain["segments"]] == [s.number for s in manifest.segments]


SEALED_TWO = PLAIN.segments[0]._replace(
    number=2, start_position=128, end_position=256, first_lsn=2, last_lsn=2
)
STEPS = [
    PLAIN,
    (second := PLAIN.next(segments=(PLAIN.segments[0], SEALED_TWO), end=LogEnd(last_lsn=2, position=256))),
    (third := second.next(segments=(SEALED_TWO,), low_watermark=1, exact_from_lsn=2)),
    third.next(extra={"durability": "none"}),
]
FILE, OFFSETS = edited(STEPS[0], STEPS[1:], 1024)


def test_flips_in_each_edit() -> None:
    """F-12.9: turn a bit before an intact edit: damage; after it: the state before the last, or the last itself."""
    for bit in range(OFFSETS[0] * 8, len(FILE) * 8, 3):
        data = flipped(FILE, bit)
        if bit < OFFSETS[-2] * 8:
            with pytest.raises(CorruptionError, match="before an intact edit"):
                decode_manifest(data, "log")
        else:
            found = read_manifest_file(data, "log")
            at = 3 if bit >= OFFSETS[-1] * 8 else 2
            assert (found.manifest, found.offset) == (STEPS[at], OFFSETS[at])
            assert found.offset < found.torn_until <= len(FILE)


def test_an_edit_cut_at_each_byte() -> None:
    """F-12.2, F-12.9: a part of an edit, its front or its end, is the state before; a shorter file is damage."""
    for cut in range(OFFSETS[0], len(FILE)):
        with pytest.raises(CorruptionError):
            decode_manifest(FILE[:cut], "log")
        state = max(n for n, offset in enumerate(OFFSETS) if offset <= cut)
        if state < 3 and any(FILE[cut : OFFSETS[state + 1]]):  # else it came to the disk whole
            assert decode_manifest(FILE[:cut].ljust(len(FILE), b"\0"), "log") == STEPS[state]
    for cut in range(OFFSETS[-2] + 1, OFFSETS[-1]):
        data = FILE[: OFFSETS[-2]] + bytes(cut - OFFSETS[-2]) + FILE[cut:]
        assert decode_manifest(data, "log") == STEPS[2]
    for missing in (0, 1):
        begin, end = OFFSETS[missing : missing + 2]
        with pytest.raises(CorruptionError, match="before an intact edit"):
            decode_manifest(FILE[:begin] + bytes(end - begin) + FILE[end:], "log")


def test_an_edit_of_another_file_does_not_count() -> None:
    """F-12.9: an edit of another base has another checksum, and is an edit that was never finished."""
    other, _ = edited(replace(PLAIN, created_us=1), [replace(STEPS[1], created_us=1)], 1024)
    data = FILE[: OFFSETS[0]] + other[OFFSETS[0] : OFFSETS[1]] + bytes(len(FILE) - OFFSETS[1])
    assert decode_manifest(data, "log") == PLAIN


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"{", "understood"),
        (b"7", "understood"),
        (b'{"colour":1}', "colour"),
        (b'{"drop":[[7,9]]}', "understood"),
        (b'{"drop":[[1,99999999999999999]]}', "understood"),
        (b'{"put":[[1]]}', "understood"),
        (b'{"epochs":[[1,1,1,1,1]]}', "twice"),
        (b'{"low_watermark":-1}', "64 bits"),
        (b'{"holes":5}', "understood"),
        (b'{"end":[0,0,0]}', "sealed"),
    ],
)
def test_edits_of_nonsense_under_a_right_checksum(payload: bytes, reason: str) -> None:
    """F-12.2, F-13.5: an edit that no writer makes is a CorruptionError."""
    data = bytearray(encode_base(PLAIN, 1024))
    file = read_manifest_file(bytes(data), "log")
    head = struct.pack("<IIQ", len(payload), file.crc, 4)
    edit = head + crc32c(payload, crc32c(head, file.base_crc)).to_bytes(4, "little") + payload
    data[file.offset : file.offset + len(edit)] = edit
    with pytest.raises(CorruptionError, match=reason):
        decode_manifest(bytes(data), "log")


def test_an_edit_is_small_for_many_segments() -> None:
    """F-12.3: an edit is as small for 5,000 segments as for 2; without space or for another log it is refused."""
    many = tuple(
        SEALED_TWO._replace(number=n, start_position=n, end_position=n + 1, first_lsn=n, last_lsn=n)
        for n in range(1, 5001)
    )
    end = LogEnd(last_lsn=9000, position=9000)
    for count in (2, 5000):
        manifest = replace(PLAIN, segments=many[:count], end=end)
        file = read_manifest_file(encode_base(manifest, 4096), "log")
        new = SegmentRecord(number=6000, state=SegmentState.PREPARED, epoch=1, reserved_bytes=1 << 26)
        for after, size_max in (
            (manifest.next(segments=(*manifest.segments, new), next_segment=6001), 128),
            (manifest.next(segments=manifest.segments[1:], low_watermark=1, exact_from_lsn=2), 128),
            (manifest.next(segments=(), low_watermark=1 << 62, exact_from_lsn=1 << 62), 192),
        ):
            made = encode_edit(file, after)
            assert made is not None and len(made[0]) <= size_max
    assert encode_edit(replace(file, end=file.offset + 64), after) is None
    for change in ({"log_id": 1}, {"lineage": ()}, {"generation": 3}):
        assert encode_edit(file, manifest.next(**change) if "generation" not in change else manifest) is None


def test_generations_and_views() -> None:
    """F-12.3, F-12.4: `next` grows the generation by one; sealed and unsealed segments are separate, in order."""
    changed = PLAIN.next(low_watermark=1)
    assert (changed.generation, changed.low_watermark, PLAIN.low_watermark) == (4, 1, 0)
    assert [s.number for s in PLAIN.sealed] == [1] and [s.number for s in PLAIN.unsealed] == [2]
    assert PLAIN.sealed[0].size_bytes == 128 and PLAIN.first_lsn == 1
    assert PLAIN.next(segments=()).first_lsn == 2
    assert PLAIN.epoch_of(1) == PLAIN.lineage[0] and PLAIN.epoch_of(2) is None
