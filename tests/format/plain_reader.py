"""A second reader of the format, written from FORMAT.md with `struct` alone: it shares no line with the codec.

Slow, and trusting where FORMAT.md lets a reader judge: it asserts what intact bytes must be.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

import zstandard


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def crc(data: bytes) -> int:
    """F-1.2, bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


class PlainRecord(NamedTuple):
    lsn: int
    kind: int
    key: bytes | None
    value: bytes | None
    timestamp_us: int | None
    joined: bool


class Reader:
    """Takes numbers off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        assert len(part) == size, "the bytes end too soon"
        self.at += size
        return part

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def column(self, size: int, count: int, uniform: bool, *, signed: bool = False) -> list[int]:
        numbers = [self.number(size, signed=signed) for _ in range(1 if uniform else count)]
        return numbers * count if uniform else numbers


def read_segment_header(data: bytes) -> dict[str, Any]:
    assert crc(data[:4092]) == struct.unpack("<I", data[4092:4096])[0]
    r = Reader(data)
    assert r.take(8) == b"WALKITSG"
    names = {
        **{"version": 2, "header_bytes": 2, "critical_features": 4, "optional_features": 4, "alignment": 4},
        **{"log_id": 8, "epoch": 8, "epoch_id": 8, "number": 8, "start_position": 8, "previous_end": 8},
        **{"first_lsn": 8, "chain": 4, "flags": 4, "frame_bytes_max": 8, "window_bytes": 8, "created_us": 8},
        **{"end_chain": 4, "extension_bytes": 4},
    }
    header: dict[str, Any] = {name: r.number(size) for name, size in names.items()}
    header["extension"] = r.take(header["extension_bytes"])
    assert not any(data[r.at : 4092])
    return header


def read_frame(data: bytes) -> tuple[dict[str, int], list[PlainRecord]]:
    """Return (header fields, records) of the frame that `data` begins with."""
    assert crc(data[:92]) == struct.unpack("<I", data[92:96])[0]
    r = Reader(data)
    assert r.take(4) == b"WLKF"
    names = {
        **{"version": 1, "codec": 1, "flags": 2, "log_id": 8, "epoch": 8, "epoch_id": 8, "position": 8},
        **{"first_lsn": 8, "records": 4, "span": 4, "footprint": 4, "stored": 4, "raw": 4, "body_crc": 4},
        **{"durable_position": 8, "sealed_us": 8, "chain": 4, "header_crc": 4},
    }
    head = {name: r.number(size) for name, size in names.items()}
    body = r.take(head["stored"])
    assert crc(body) == head["body_crc"]
    assert not any(r.take(head["footprint"] - r.at)), "padding is zero"
    if head["codec"] == 1:
        assert zstandard.frame_content_size(body) == head["raw"]
        body = zstandard.ZstdDecompressor().decompress(body)
    assert len(body) == head["raw"]
    return head, read_body(body, head["records"], head["flags"], head["first_lsn"], head["span"])


def read_body(body: bytes, n: int, flags: int, first_lsn: int, span: int) -> list[PlainRecord]:
    if n == 0:
        assert not body
        return []
    r = Reader(body)
    key_lengths = r.column(4, n, bool(flags & 2))
    value_lengths = r.column(4, n, bool(flags & 4))
    stamps = r.column(8, n, bool(flags & 16), signed=True) if flags & 8 else [0] * n
    offsets = r.column(4, n, False) if flags & 32 else list(range(n))
    assert offsets == sorted(set(offsets)) and offsets[-1] < span
    kinds = r.column(1, n, bool(flags & 1))
    keys = [r.take(size) for size in key_lengths]
    values = [r.take(size) for size in value_lengths]
    assert r.at == len(body) and not kinds[-1] & 128
    return [
        PlainRecord(
            first_lsn + offset,
            kind & 15,
            key if kind & 16 else None,
            value if kind & 32 else None,
            stamp if kind & 64 else None,
            bool(kind & 128),
        )
        for offset, kind, key, value, stamp in zip(offsets, kinds, keys, values, stamps, strict=True)
    ]


def read_segment(data: bytes) -> tuple[dict[str, Any], list[dict[str, int]], list[PlainRecord]]:
    """Return (segment header, frame headers, records); the frames end where zeros begin, or the file."""
    header = read_segment_header(data)
    heads: list[dict[str, int]] = []
    records: list[PlainRecord] = []
    at, position, lsn, chain = 4096, header["start_position"], header["first_lsn"], header["chain"]
    while any(data[at : at + 96]):
        head, found = read_frame(data[at:])
        for name in ("log_id", "epoch", "epoch_id"):
            assert head[name] == header[name]
        assert (head["position"], head["first_lsn"], head["chain"]) == (position, lsn, chain)
        assert head["durable_position"] <= position and position % header["alignment"] == 0
        heads.append(head)
        records += found
        at, position = at + head["footprint"], position + head["footprint"]
        lsn, chain = lsn + head["span"], head["header_crc"]
    return header, heads, records


def read_durable(cell: bytes) -> tuple[int, ...] | None:
    """Return (turn, epoch, epoch id, position, LSN) of the newest whole slot."""
    slots = [struct.unpack_from("<QQQQQI", cell, at) for at in (0, 64) if len(cell) >= at + 44]
    whole = [s[:5] for s, at in zip(slots, (0, 64), strict=False) if crc(cell[at : at + 40]) == s[5] and s[0]]
    return max(whole, default=None)


def read_manifest(data: bytes) -> dict[str, Any]:
    magic, version, header_bytes, critical, _optional, size, found = struct.unpack("<8sHHIIII", data[:28])
    assert (magic, version, header_bytes, critical) == (b"WALKITMF", 0, 28, 0)
    assert len(data) == 28 + size and crc(data[:24] + data[28:]) == found
    plain: dict[str, Any] = json.loads(data[28:])
    return plain
