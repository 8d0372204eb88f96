"""A second reader of the format, made from FORMAT.md: it reads the tables of the page itself, and no line of the codec.

Slow, and asserting where the codec judges: it is given intact bytes only.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "walkit" / "format" / "FORMAT.md", ROOT / "docs" / "files-beside-a-log.md")
DOCUMENT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def fields_of(table: str) -> list[tuple[int, int, str]]:
    """(offset, size, name) of every field in the table of FORMAT.md that is marked with this name."""
    text = DOCUMENT.split(f"<!-- table: {table} -->")[1].split("\n\n")[1]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    return [(int(offset), int(size), name) for offset, size, name in rows]


def numbers_of(table: str, data: bytes) -> dict[str, int]:
    """The fields of up to eight bytes, as numbers."""
    return {
        name: int.from_bytes(data[offset : offset + size], "little")
        for offset, size, name in fields_of(table)
        if size <= 8
    }


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _table()


def crc(data: bytes, before: int = 0) -> int:
    """F-1.2, bit by bit; `before` is the checksum of the bytes before them."""
    value = before ^ 0xFFFFFFFF
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
    header: dict[str, Any] = numbers_of("segment header", data)
    assert crc(data[:4092]) == header["header_crc"] and data[:8] == b"WALKITSG"
    end = 136 + header["extension_bytes"]
    header["extension"] = data[136:end]
    assert not any(data[end:4092])
    return header


def read_frame(data: bytes) -> tuple[dict[str, int], list[PlainRecord]]:
    """Return (header fields, records) of the first frame in `data`."""
    head = numbers_of("frame header", data)
    assert crc(data[:92]) == head["header_crc"] and data[:4] == b"WLKF"
    r = Reader(data)
    r.take(96)
    body = r.take(head["body_stored_bytes"])
    assert crc(body) == head["body_crc"]
    assert not any(r.take(head["footprint"] - r.at)), "padding is zero"
    if head["codec"] == 1:
        assert zstandard.frame_content_size(body) == head["body_raw_bytes"]
        body = zstandard.ZstdDecompressor().decompress(body)
    assert len(body) == head["body_raw_bytes"]
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
    if header["flags"] & 2 and header["own_end_chain"]:
        assert chain == header["own_end_chain"]
    return header, heads, records


def read_durable(cell: bytes) -> dict[str, int] | None:
    """Return the newest whole slot."""
    slots = [numbers_of("durable slot", cell[at : at + 44]) for at in (0, 64)]
    whole = [
        s
        for s, at in zip(slots, (0, 64), strict=True)
        if s["generation"] and crc(cell[at : at + 40]) == s["crc"]
    ]
    return max(whole, key=lambda s: s["generation"], default=None)


def read_manifest(data: bytes) -> dict[str, Any]:
    """The manifest after its edits; segments are objects, as in the base."""
    head = numbers_of("manifest header", data)
    assert data[:8] == b"WALKITMF" and (head["version"], head["header_bytes"]) == (0, 36)
    assert (head["critical_features"], head["draft"]) == (0, 3)
    offset = 36 + head["payload_bytes"]
    assert len(data) == offset + head["edit_bytes"] and crc(data[:24] + data[28:offset]) == head["crc"]
    plain: dict[str, Any] = json.loads(data[36:offset])
    previous = head["crc"]
    while offset < len(data) and any(data[offset : offset + 4]):
        edit = numbers_of("manifest edit", data[offset:])
        end = offset + 20 + edit["payload_bytes"]
        assert edit["previous_crc"] == previous and edit["generation"] > plain["generation"]
        assert crc(data[offset : offset + 16] + data[offset + 20 : end], head["crc"]) == edit["crc"]
        apply_edit(plain, json.loads(data[offset + 20 : end]))
        plain["generation"], previous, offset = edit["generation"], edit["crc"], (end + 63) // 64 * 64
    return plain


SEGMENT_FIELDS = (
    *("number", "state", "epoch", "start_position", "end_position", "first_lsn", "last_lsn", "start_chain"),
    *("end_chain", "records", "frames", "created_us", "flags", "reserved_bytes"),
)
EPOCH_FIELDS = ("number", "id", "first_lsn", "position", "chain")
GAP_FIELDS = ("start_position", "end_position", "first_lsn", "last_lsn", "chain", "segment", "reason")


def apply_edit(plain: dict[str, Any], edit: dict[str, Any]) -> None:
    segments = {s["number"]: s for s in plain["segments"]}
    for first, last in edit.pop("drop", []):
        segments = {n: s for n, s in segments.items() if not first <= n <= last}
    segments |= {row[0]: dict(zip(SEGMENT_FIELDS, row, strict=True)) for row in edit.pop("put", [])}
    plain["segments"] = sorted(
        segments.values(), key=lambda s: (s["state"] == "prepared", s["start_position"], s["number"])
    )
    plain["lineage"] += [dict(zip(EPOCH_FIELDS, row, strict=True)) for row in edit.pop("epochs", [])]
    if "end" in edit:
        plain["end"] = dict(zip(("last_lsn", "position", "chain"), edit.pop("end"), strict=True))
    for name in ("holes", "lost"):
        said = edit.pop(name, 0)
        plain[name] = (
            plain[name][said:]
            if isinstance(said, int)
            else [dict(zip(GAP_FIELDS, row, strict=False)) for row in said]
        )
    plain.update(edit)


def was_cut_short(segment: dict[str, Any], data: bytes) -> bool:
    """Say whether the file of a prepared segment, b"" if absent, is shorter than it was and held frames (F-9.10)."""
    if segment["state"] != "prepared" or len(data) >= segment["reserved_bytes"]:
        return False
    return len(data) < 4096 or any(data[:4096])
