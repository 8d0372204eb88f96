#!/usr/bin/env python3
"""Rebuild the golden files of the format, and the worked example of FORMAT.md from them.

`python scripts/make_golden.py` writes; `--check` writes nothing, names what differs, and exits 1 if anything does.
Everything in them is fixed here: ids, times, records. A difference means that the format, or this file, has changed.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script: use the checkout, installed or not
    sys.path.insert(0, str(ROOT))

from walkit.format import layout  # noqa: E402
from walkit.format.body import Columns  # noqa: E402
from walkit.format.consumer_file import ClaimRecord, whole_claim  # noqa: E402
from walkit.format.durable_slot import DurableSlot, ManifestPromise, encode_promise, encode_slot  # noqa: E402
from walkit.format.frame import FrameHeader, FrameIdentity, prepare_body, seal_frame  # noqa: E402
from walkit.format.manifest import (  # noqa: E402
    EpochRecord,
    LogEnd,
    Manifest,
    SegmentRecord,
    SegmentState,
    encode_base,
    encode_edit,
    read_manifest,
)
from walkit.format.segment import SegmentHeader  # noqa: E402

FOLDER = ROOT / "data" / "golden" / f"v{layout.FORMAT_VERSION}"
DOCUMENT = ROOT / "walkit" / "format" / "FORMAT.md"
EXAMPLE_BEGIN, EXAMPLE_END = "<!-- worked example -->\n", "<!-- end of worked example -->\n"

LOG_ID = 0x57414C4B49540001
EPOCHS = {1: 0xA1B2C3D4E5F60718, 2: 0xFFEEDDCCBBAA9988}
SEALED_US = 1_357_034_400_000_000  # 2013-01-01 10:00 UTC
FRAME_BYTES_MAX = 65_536

PUT, DELETE, BUNDLE, LINK = 1, 2, 3, 4


@dataclass(frozen=True)
class Row:
    """One record as a golden file holds it; None is absent."""

    kind: int
    key: bytes | None
    value: bytes | None
    stamp: int | None = None
    joined: bool = False

    @property
    def kind_byte(self) -> int:
        """The kind with the bits for the record's parts."""
        bits = (self.key is not None) * layout.HAS_KEY | (self.value is not None) * layout.HAS_VALUE
        return (
            self.kind | bits | (self.stamp is not None) * layout.HAS_TIMESTAMP | self.joined * layout.JOINED
        )


ONE = [Row(PUT, b"N14228", b"scheduled")]
TRANSACTION = [Row(PUT, b"N14228", b"EWR", joined=True), Row(PUT, b"UA1545", b"boarding")]
EVERYTHING = [
    Row(PUT, b"", b"the empty key", 1_357_020_900_000_000),
    Row(PUT, None, b"no key", -1),
    Row(DELETE, b"DL461", None),
    Row(BUNDLE, None, b"", 0),
    Row(LINK, None, None),
]
UNIFORM = [Row(PUT, b"k%d" % i, b"v%d" % i, SEALED_US) for i in range(3)]
AFTER_REOPENING = [Row(DELETE, b"N14228", None)]
COMPRESSIBLE = [Row(PUT, b"B6%04d" % i, b"JFK" * 8) for i in range(40)]


class SegmentMaker:
    """Collects the frames of one golden segment."""

    def __init__(self, header: SegmentHeader) -> None:
        self.header = header
        self.position, self.next_lsn, self.chain = header.start_position, header.first_lsn, header.chain
        self.parts = [header.encode()]
        self.expected: list[dict[str, object]] = []
        self.frames = self.records = 0

    def add(
        self,
        rows: list[Row],
        promise: int,
        *,
        codec: str | None = None,
        offsets: list[int] | None = None,
        span: int | None = None,
    ) -> bytes:
        """Append a frame of these rows and return its bytes; `offsets` and `span` make it sparse."""
        frame, chain = seal(
            rows, self.header, self.position, self.next_lsn, promise, self.chain, codec, offsets, span
        )
        self.parts.append(frame)
        for i, row in enumerate(rows):
            self.expected.append(expected_row(self.next_lsn + (offsets[i] if offsets else i), row))
        self.position += len(frame)
        self.next_lsn += len(rows) if span is None else span
        self.chain = chain
        self.frames, self.records = self.frames + 1, self.records + len(rows)
        return frame

    def finish(self) -> None:
        """Say in the header of a compacted segment how its frames end."""
        self.header = replace(self.header, own_end_chain=self.chain)
        self.parts[0] = self.header.encode()

    def sealed(self) -> SegmentRecord:
        """Return the manifest's record of the sealed segment."""
        return SegmentRecord(
            number=self.header.number,
            state=SegmentState.SEALED,
            epoch=self.header.epoch,
            start_position=self.header.start_position,
            end_position=self.position,
            first_lsn=self.header.first_lsn,
            last_lsn=self.next_lsn - 1,
            start_chain=self.header.chain,
            end_chain=self.chain,
            records=self.records,
            frames=self.frames,
            created_us=self.header.created_us,
            flags=int(self.header.flags),
        )


def seal(
    rows: list[Row],
    header: SegmentHeader,
    position: int,
    first_lsn: int,
    promise: int,
    chain: int,
    codec: str | None,
    offsets: list[int] | None,
    span: int | None,
) -> tuple[bytes, int]:
    """Return (bytes of a frame, its header checksum)."""
    stamped = any(row.stamp is not None for row in rows)
    columns = Columns(
        len(rows),
        [row.kind_byte for row in rows],
        [row.key or b"" for row in rows],
        [row.value or b"" for row in rows],
        [row.stamp or 0 for row in rows] if stamped else None,
        offsets,
    )
    buffers, _, crc = seal_frame(
        prepare_body(columns, codec),
        FrameIdentity(header.log_id, header.epoch, header.epoch_id),
        position=position,
        first_lsn=first_lsn,
        durable_position=promise,
        chain=chain,
        sealed_us=SEALED_US,
        alignment=header.alignment,
        span=span,
    )
    return b"".join(buffers), crc


def expected_row(lsn: int, row: Row) -> dict[str, object]:
    """Return a record as JSON shows it: bytes in hexadecimal, absent ones as null."""
    return {
        "lsn": lsn,
        "kind": row.kind,
        "key": None if row.key is None else row.key.hex(),
        "value": None if row.value is None else row.value.hex(),
        "timestamp_us": row.stamp,
        "joined": row.joined,
    }


def header(number: int, epoch: int, **others: object) -> SegmentHeader:
    """Return the header of a golden segment that begins the log, unless `others` say more."""
    plain: dict[str, object] = {
        "start_position": 0,
        "previous_end": 0,
        "first_lsn": 1,
        "chain": 0,
        "alignment": layout.ALIGNMENT_BUFFERED,
        "frame_bytes_max": FRAME_BYTES_MAX,
        "created_us": SEALED_US - 1,
    }
    return SegmentHeader(
        log_id=LOG_ID,
        epoch=epoch,
        epoch_id=EPOCHS[epoch],
        number=number,
        **{**plain, **others},  # type: ignore[arg-type]
    )


def golden_log() -> tuple[SegmentMaker, SegmentMaker]:
    """Return the two segments of the golden log: one sealed, one of a second epoch that is still open."""
    first = SegmentMaker(header(1, 1))
    first.add(ONE, 0)
    first.add(TRANSACTION, 128)
    first.add(EVERYTHING, 320)
    first.add(UNIFORM, 320)
    first.add([], first.position)
    second = SegmentMaker(
        header(
            2,
            2,
            start_position=first.position,
            previous_end=first.position,
            first_lsn=first.next_lsn,
            chain=first.chain,
            manifest_generation=9,
            optional_features=1 << 31,
            extension=b"an extension that nobody knows",
        )
    )
    second.add(AFTER_REOPENING, first.position)
    return first, second


def single_segments() -> dict[str, SegmentMaker]:
    """Return the segments that are in no log: direct I/O with a gap before it, compacted, compressed."""
    direct = SegmentMaker(
        header(
            4,
            2,
            start_position=8192,
            previous_end=960,
            first_lsn=100,
            chain=7,
            alignment=layout.ALIGNMENT_DIRECT,
        )
    )
    direct.add(TRANSACTION, 8192)
    flags = layout.SegmentFlag.COMPACTED
    compacted = SegmentMaker(header(3, 1, flags=flags, end_chain=0xFEEDBEEF, first_lsn=10, chain=5))
    compacted.add(UNIFORM, 0, offsets=[0, 2, 7], span=9)
    compacted.add([], 0, offsets=[], span=1000)
    compacted.add(ONE, 0, offsets=[4], span=5)
    compacted.finish()
    packed = SegmentMaker(header(5, 1))
    packed.add(COMPRESSIBLE, 0, codec="zstd")
    return {"direct.segment": direct, "compacted.segment": compacted, "zstd.segment": packed}


def build() -> dict[str, bytes]:
    """Return the golden files: name below the golden folder -> bytes."""
    first, second = golden_log()
    makers = {f"log/{s.header.name}": s for s in (first, second)} | single_segments()
    files = {name: b"".join(made.parts) for name, made in makers.items()}
    files[f"log/{second.header.name}"] += bytes(256)
    reserved = len(files[f"log/{second.header.name}"])
    files["log/manifest"] = manifest_file(manifest(first, second, reserved))
    files["log/durable"] = durable_slots(first.position, second)
    files["log/claim-reader"] = whole_claim(claim())
    expected = {name: made.expected for name, made in makers.items()}
    files["expected.json"] = (json.dumps(expected, indent=1) + "\n").encode()
    return files


def manifest(first: SegmentMaker, second: SegmentMaker, reserved_bytes: int) -> Manifest:
    """Return the manifest of the golden log: one sealed segment, one in use, an extra field."""
    return Manifest(
        log_id=LOG_ID,
        generation=9,
        created_us=SEALED_US - 2,
        lineage=(
            EpochRecord(number=1, id=EPOCHS[1], first_lsn=1, position=0, chain=0),
            EpochRecord(
                number=2, id=EPOCHS[2], first_lsn=first.next_lsn, position=first.position, chain=first.chain
            ),
        ),
        segments=(
            first.sealed(),
            SegmentRecord(
                number=second.header.number,
                state=SegmentState.PREPARED,
                epoch=2,
                reserved_bytes=reserved_bytes,
            ),
        ),
        next_segment=3,
        end=LogEnd(last_lsn=first.next_lsn - 1, position=first.position, chain=first.chain),
        extra={"later": [1, None, "field"]},
    )


def manifest_file(whole: Manifest) -> bytes:
    """Return a file whose base is the manifest before its second epoch, with an edit of it."""
    first = {"lineage": whole.lineage[:1], "segments": whole.segments[:1]}
    before = replace(whole, generation=8, next_segment=2, **first)  # type: ignore[arg-type]
    data = bytearray(encode_base(before, 1024))
    file = read_manifest(bytes(data), "golden")
    edit, after = encode_edit(file, whole) or (b"", file)
    data[file.offset : after.offset] = edit
    return bytes(data)


def claim() -> ClaimRecord:
    """Return the claim of a replica on the golden log: from LSN 4 on, for an hour."""
    owner = bytes.fromhex("00112233445566778899aabbccddeeff")
    acked = LogEnd(last_lsn=3, position=448, chain=0xC0FFEE)
    return ClaimRecord(3, LOG_ID, owner, 1, EPOCHS[1], 4, 3600 * 10**6, SEALED_US, acked, "r\u00e9plica")


def durable_slots(first_end: int, second: SegmentMaker) -> bytes:
    """Return the file after seven stores: the slots of turns 6 and 7; and the promise of the manifest."""
    cell = bytearray(layout.DURABLE_SLOTS_BYTES)
    marks = [
        DurableSlot(6, 1, EPOCHS[1], first_end, second.header.first_lsn - 1),
        DurableSlot(7, 2, EPOCHS[2], second.position, second.next_lsn - 1),
    ]
    promise = encode_promise(ManifestPromise(9, 2, EPOCHS[2]), 1)
    for offset, slot in (*map(encode_slot, marks), promise):
        cell[offset : offset + len(slot)] = slot
    return bytes(cell)


def worked_example(files: dict[str, bytes]) -> str:
    """Return the example of FORMAT.md: a table that names every byte of the golden frame of two records."""
    start = layout.SEGMENT_HEADER_BYTES + 128
    data = files["log/00000000000000000001.segment"]
    head = FrameHeader.parse(data, start)
    frame = data[start : start + head.footprint]
    lines = ["| offset | bytes | field | value |", "|---:|---|---|---|"]
    at = 0

    def line(size: int, name: str, value: str) -> None:
        nonlocal at
        raw = frame[at : at + size]
        shown = raw.hex(" ") if any(raw) or size < 16 else f"00 * {size}"
        lines.append(f"| {at} | `{shown}` | {name} | {value} |")
        at += size

    for name, code, value in zip(head._fields, layout.FRAME_HEADER.format[1:], head, strict=True):
        in_hex = name.endswith(("_id", "crc", "chain"))
        line(
            struct.calcsize(f"<{code}"),
            f"`{name}`",
            '"WLKF"' if name == "magic" else f"{value:#x}" if in_hex else f"{value:,}",
        )
    line(4, "key length", "6, for both (`UNIFORM_KEY_LENGTHS`)")
    line(4, "value length", "3, of the first")
    line(4, "value length", "8, of the second")
    line(1, "kind byte", "put, has key and value, joined to the next")
    line(1, "kind byte", "put, has key and value")
    line(12, "keys", '"N14228", "UA1545"')
    line(11, "values", '"EWR", "boarding"')
    line(head.footprint - at, "padding", f"up to the footprint of {head.footprint}")
    return "\n".join(lines) + "\n"


def document_with(example: str, document: str) -> str:
    """Return FORMAT.md with this worked example in its place."""
    before, rest = document.split(EXAMPLE_BEGIN)
    _, after = rest.split(EXAMPLE_END)
    return f"{before}{EXAMPLE_BEGIN}\n{example}\n{EXAMPLE_END}{after}"


def targets() -> dict[Path, bytes]:
    """Return every file that this command makes, with the bytes it should have."""
    files = build()
    wanted = {FOLDER / name: data for name, data in files.items()}
    document = DOCUMENT.read_text(encoding="utf-8")
    wanted[DOCUMENT] = document_with(worked_example(files), document).encode()
    return wanted


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or compare them with --check; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    check = parser.parse_args(arguments).check
    different = [path for path, data in targets().items() if not path.exists() or path.read_bytes() != data]
    for path in different:
        print(f"{'differs' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(targets()[path])
    return 1 if check and different else 0


if __name__ == "__main__":
    raise SystemExit(main())
