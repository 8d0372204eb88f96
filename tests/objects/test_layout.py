"""The objects of a log on object storage: headers, what follows what, the claims object."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.format.plain_reader import crc, fields_of
from tests.support.makers import flipped
from walkit.errors import CorruptionError, FormatVersionError
from walkit.format.body import one_record
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameIdentity, prepare_body, seal_frame
from walkit.format.manifest import EpochRecord, LogEnd, Manifest, encode_base, read_manifest
from walkit.objects.layout import (
    BULK_HEADER_BYTES,
    BulkHeader,
    Claims,
    Fit,
    LogPlace,
    check_bulk,
    epochs_of,
    follows,
    frames_of,
    number_of_key,
    object_key,
    vouched_place,
)

LOG_ID, EPOCHS = 0x1111, {3: 0xE3, 4: 0xE4, 6: 0xE6}
PLACE = LogPlace(number=7, position=640, lsn=20, chain=0xC7, epoch=4)


def bulk(place: LogPlace = PLACE, epoch: int = 4, values: tuple[bytes, ...] = (b"a", b"b")) -> bytes:
    """The bulk of one frame for each value that follows `place`; a fence without values."""
    frames, position, chain = b"", place.position, place.chain
    for lsn, value in enumerate(values, place.lsn + 1):
        buffers, footprint, header_crc = seal_frame(
            prepare_body(one_record(0x21, b"", value, 0)),
            FrameIdentity(LOG_ID, epoch, EPOCHS.get(epoch, 0xE9)),
            position=position,
            first_lsn=lsn,
            durable_position=place.position,
            chain=chain,
            sealed_us=5,
            alignment=64,
        )
        frames += b"".join(bytes(b) for b in buffers)
        position, chain = position + footprint, header_crc
    header = BulkHeader(
        log_id=LOG_ID,
        epoch=epoch,
        epoch_id=EPOCHS.get(epoch, 0xE9),
        number=place.number + 1,
        start_position=place.position,
        first_lsn=place.lsn + 1,
        promised_position=place.position,
        sealed_us=5,
        body_bytes=len(frames),
        records=len(values),
        span=len(values),
        chain=place.chain,
        end_chain=chain,
        body_crc=crc32c(frames),
        in_flight=16,
        frame_bytes_max=4096,
    )
    return header.encode() + frames


def changed(data: bytes, **fields: int) -> BulkHeader:
    return BulkHeader.decode(data)._replace(**fields)


def test_a_bulk_comes_back_with_its_frames() -> None:
    """F-21.1, F-21.3: each field stands where FORMAT.md says, and the walk ends where the header says."""
    data = bulk()
    header = check_bulk(data, 8)
    plain = {name: data[at : at + size] for at, size, name in fields_of("bulk header")}
    assert plain["magic"] == b"WALKITOB" and int.from_bytes(plain["header_crc"], "little") == crc(data[:124])
    names = BulkHeader._fields
    assert all(int.from_bytes(plain[name], "little") == getattr(header, name) for name in names)
    for how in ({}, {"row_seen": lambda row: None}, {"body": False}):
        walk = frames_of(header, data, **how)
        seen = [frame.first_lsn for frame, _ in walk]
        assert (seen == [21, 22]) or ("row_seen" in how and not seen)
        assert walk.fault is None and walk.position == header.end.position and walk.next_lsn == 23
        assert walk.chain == header.end.chain and header.end == LogPlace(8, 896, 22, header.end_chain, 4)


def test_a_fence_has_no_frames() -> None:
    """F-21.5: a bulk without frames ends where it begins, with the same chain and LSN, in the new epoch."""
    header = check_bulk(bulk(epoch=6, values=()), 8)
    assert header.is_fence and header.end == PLACE._replace(number=8, epoch=6)
    assert list(frames_of(header, bulk(epoch=6, values=()))) == []


def test_every_flipped_bit_of_a_bulk_is_damage() -> None:
    """F-21.3: flip each bit of header and frames, and cut the object at each byte: damage, never a newer version."""
    data = bulk(values=(b"a",))
    for bit in range(len(data) * 8):
        with pytest.raises(CorruptionError):
            check_bulk(flipped(data, bit), 8)
    for size in (*range(len(data)), len(data) + 1):
        with pytest.raises(CorruptionError):
            check_bulk(data.ljust(size, b"\0")[:size], 8)
    with pytest.raises(CorruptionError, match="another"):
        check_bulk(data, 9)


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 136), (12, 1), (20, 99), (120, 1)])
def test_a_newer_bulk_is_a_version_error(offset: int, value: int) -> None:
    """F-21.3: another version, size, feature, draft or flag under a right checksum: a FormatVersionError."""
    data = bytearray(bulk())
    data[offset] = value
    data[124:128] = crc32c(bytes(data[:124])).to_bytes(4, "little")
    with pytest.raises(FormatVersionError):
        check_bulk(bytes(data), 8)


@pytest.mark.parametrize(
    "fields",
    [
        *({"alignment": 96}, {"alignment": 32}, {"frame_bytes_max": 1}, {"start_position": 1 << 63}),
        *({"start_position": 65}, {"promised_position": 1 << 40}, {"first_lsn": 0}, {"first_lsn": 1 << 63}),
        *(
            {"number": 0},
            {"epoch": 0},
            {"in_flight": 0},
            {"records": 9},
            {"body_bytes": 0},
            {"body_bytes": 100},
        ),
    ],
    ids=str,
)
def test_a_header_that_cannot_be_is_refused(fields: dict[str, int]) -> None:
    """F-21.4: each field outside its limits is refused by the writer and, under a right checksum, by the reader."""
    wrong = changed(bulk(), **fields)
    with pytest.raises(ValueError, match="no bulk has such a header"):
        wrong.encode()


@pytest.mark.parametrize(
    ("header", "fit"),
    [
        (changed(bulk()), Fit.FITS),
        (changed(bulk(values=(), epoch=6)), Fit.FITS),
        (changed(bulk(values=(), epoch=9)), Fit.NEWER),
        (changed(bulk(), log_id=2), Fit.FOREIGN),
        (changed(bulk(values=(), epoch=9), log_id=2), Fit.FOREIGN),
        (changed(bulk(epoch=3)), Fit.STALE),
        (changed(bulk(epoch=3), chain=1), Fit.STALE),
        (changed(bulk(epoch=3, values=())), Fit.STALE),
        (changed(bulk(epoch=6)), Fit.WRONG),
        (changed(bulk(epoch=4, values=())), Fit.WRONG),
        (changed(bulk(), epoch_id=1), Fit.WRONG),
        *(
            (changed(bulk(), **{name: 128}), Fit.WRONG)
            for name in ("number", "start_position", "first_lsn", "chain")
        ),
    ],
)
def test_which_bulk_follows_a_place(header: BulkHeader, fit: Fit) -> None:
    """F-21.7: a table of headers against the end of a bulk of epoch 4, with the epochs 3, 4 and 6 known."""
    assert follows(header, PLACE, LOG_ID, EPOCHS) is fit


def test_the_vouched_end_is_in_the_manifest() -> None:
    """F-21.6: vouched end and epochs come back from the bytes of a manifest; without its number it is damaged."""
    lineage = tuple(EpochRecord(number=n, id=EPOCHS[n], first_lsn=1, position=0, chain=0) for n in (3, 4))
    end = LogEnd(last_lsn=20, position=640, chain=0xC7)
    extra = {"object": 7, "opening": [[6, 0xE6]]}
    kept = Manifest(log_id=LOG_ID, lineage=lineage, end=end, extra=extra)
    manifest = read_manifest(encode_base(kept), "here").manifest
    assert vouched_place(manifest) == PLACE and epochs_of(manifest) == EPOCHS and PLACE.end == end
    with pytest.raises(CorruptionError):
        vouched_place(replace(manifest, extra={}))
    with pytest.raises(CorruptionError):
        epochs_of(replace(manifest, extra={"opening": [[1]]}))


def test_the_claims_object_comes_back_and_every_flipped_bit_is_damage() -> None:
    """F-21.10: encode and decode; flip each bit, and cut the bytes: damage."""
    claims = Claims(
        log_id=LOG_ID, epoch=6, epoch_id=0xE6, floor=PLACE, claims={"a": "00"}, nonce=5, counter=2
    )
    data = claims.encode()
    assert Claims.decode(data) == claims
    for bit in range(len(data) * 8):
        with pytest.raises(CorruptionError):
            Claims.decode(flipped(data, bit))
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            Claims.decode(data[:size])


def test_keys_sort_as_numbers() -> None:
    """F-21.1: twenty digits; any other key has no number."""
    keys = [object_key(n) for n in (1, 2, 10, 10**19)]
    assert keys == sorted(keys) and [number_of_key(k) for k in keys] == [1, 2, 10, 10**19]
    assert {number_of_key(k) for k in ("manifest", "log/1", "log/" + "x" * 20, keys[0] + "a")} == {None}
    assert BULK_HEADER_BYTES == 128
