"""Logs on disk that are closed, live or left by a killed writer, and every way to damage a copy of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import walkit
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader
from walkit.format.layout import FRAME_HEADER_CRC_OFFSET, MANIFEST_HEADER, SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, Manifest, decode_manifest, encode_base
from walkit.format.segment import SegmentHeader
from walkit.recovery.scan_report import Verdict
from walkit.segments.manifest_store import DURABLE_NAME

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)
RECORDS = 60
"""Of `value_of`: three sealed segments and a bit; one record a frame."""

WRITER = """
import os, sys, walkit
from tests.support.damaged import OPTIONS, key_of, value_of
log = walkit.open(sys.argv[1], options=OPTIONS)
for i in range(int(sys.argv[2])):
    log.append(value_of(i), key_of(i), timestamp=i * 1_000_000)
log.wait_idle()  # one segment is open then, not one more that is just being sealed
print("ready", flush=True)
sys.stdin.readline()
log.close()
"""


def value_of(i: int) -> bytes:
    """The value of record i + 1: about 3,000 bytes that are not a multiple of the alignment."""
    return b"%05d" % i * 600 + b"end"


def key_of(i: int) -> bytes:
    """Its key: text for most, bytes that are not UTF-8 for some."""
    return b"\xff\x00%d" % i if i % 7 == 0 else b"key %d" % i


def close_log(path: Path, records: int = RECORDS) -> None:
    """Write a log and close it."""
    with walkit.open(path, options=OPTIONS) as log:
        for i in range(records):
            log.append(value_of(i), key_of(i), timestamp=i * 1_000_000)


def start_writer(path: Path, records: int, program: str = WRITER) -> subprocess.Popen[str]:
    """Start a writer in another process and wait until it has written; a line on its stdin makes it close."""
    root = Path(walkit.__file__).parent.parent
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(records)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    return writer


def end_writer(writer: subprocess.Popen[str], *, kill: bool) -> None:
    """End a writer: by SIGKILL, or by letting it close its log."""
    if kill:
        writer.kill()
        writer.communicate()
    else:
        writer.communicate("close\n", timeout=60)
        assert writer.returncode == 0


def kill_log(path: Path, records: int = RECORDS) -> None:
    """Write a log in another process and SIGKILL it."""
    end_writer(start_writer(path, records), kill=True)


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and modification time of every file in a folder."""
    files = [p for p in sorted(path.rglob("*")) if p.is_file()]
    return {str(p.relative_to(path)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


class Copy:
    """A copy of a log that may be damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.headers = [h for name in self.names() if (h := self._header(name)) is not None]

    def _header(self, name: str) -> SegmentHeader | None:
        return SegmentHeader.decode((self.path / name).read_bytes()[:SEGMENT_HEADER_BYTES], name)

    def names(self) -> list[str]:
        """Names of the segment files, in order."""
        return sorted(p.name for p in self.path.glob("*.segment"))

    def used(self, index: int) -> str:
        """Name of a segment that holds frames."""
        return self.headers[index].name

    def manifest(self) -> Manifest:
        """The manifest as it is."""
        return decode_manifest((self.path / MANIFEST_NAME).read_bytes(), str(self.path))

    def frames(self, index: int) -> list[tuple[int, FrameHeader]]:
        """(file offset, header) of the frames of a segment that holds some."""
        data = (self.path / self.used(index)).read_bytes()
        offset, found = SEGMENT_HEADER_BYTES, []
        while offset + 96 <= len(data) and any(data[offset : offset + 96]):
            header = FrameHeader.parse(data, offset)
            found.append((offset, header))
            offset += header.footprint
        return found

    def patch(self, name: str, offset: int, data: bytes) -> None:
        """Write over a part of a file."""
        with open(self.path / name, "r+b") as file:
            file.seek(offset)
            file.write(data)

    def flip(self, name: str, offset: int) -> None:
        """Flip one bit."""
        self.patch(name, offset, bytes([(self.path / name).read_bytes()[offset] ^ 0x20]))

    def flip_in_frame(self, segment: int, frame: int, where: Literal["header", "body", "padding"]) -> None:
        """Flip one bit in a part of a frame."""
        offset, header = self.frames(segment)[frame]
        within = {"header": 41, "body": 300, "padding": header.footprint - 1}[where]
        assert 96 + header.body_stored_bytes < header.footprint, "it has padding"
        self.flip(self.used(segment), offset + within)

    def cut(self, name: str, size: int) -> None:
        """Shorten a file to `size` bytes; a negative size counts from its end."""
        length = (self.path / name).stat().st_size
        os.truncate(self.path / name, size if size >= 0 else length + size)

    def cut_in_frame(self, segment: int, frame: int, within: int) -> None:
        """Cut a segment's file inside a frame, or before it with 0."""
        self.cut(self.used(segment), self.frames(segment)[frame][0] + within)

    def zero_frame(self, segment: int, frame: int) -> None:
        """Write zeros over a frame."""
        offset, header = self.frames(segment)[frame]
        self.patch(self.used(segment), offset, bytes(header.footprint))

    def renew_frame(self, segment: int, frame: int, within: int, value: int) -> None:
        """Change a byte of a frame's header and give the header its right checksum."""
        offset, _ = self.frames(segment)[frame]
        data = bytearray((self.path / self.used(segment)).read_bytes()[offset : offset + 96])
        data[within] = value
        data[FRAME_HEADER_CRC_OFFSET:] = crc32c(bytes(data[:FRAME_HEADER_CRC_OFFSET])).to_bytes(4, "little")
        self.patch(self.used(segment), offset, bytes(data))

    def renew_segment(self, segment: int, within: int, value: int) -> None:
        """Change a byte of a segment header and give it its right checksum."""
        name = self.used(segment)
        data = bytearray((self.path / name).read_bytes()[:SEGMENT_HEADER_BYTES])
        data[within] = value
        data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
        self.patch(name, 0, bytes(data))

    def renew_manifest(self, change: Callable[[Manifest], Manifest]) -> None:
        """Write a manifest with other facts and a right checksum."""
        (self.path / MANIFEST_NAME).write_bytes(encode_base(change(self.manifest())))

    def newer_manifest(self) -> None:
        """Give the manifest a newer version, with a right checksum."""
        data = bytearray((self.path / MANIFEST_NAME).read_bytes())
        data[8] = 9
        end = MANIFEST_HEADER.size + int.from_bytes(data[20:24], "little")
        data[24:28] = crc32c(bytes(data[28:end]), crc32c(bytes(data[:24]))).to_bytes(4, "little")
        (self.path / MANIFEST_NAME).write_bytes(data)

    def swap(self, a: int, b: int) -> None:
        """Give two segments each other's name."""
        one, other = self.path / self.used(a), self.path / self.used(b)
        one.rename(self.path / "x")
        other.rename(one)
        (self.path / "x").rename(other)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink()


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One way to damage a copy, and the tools' reports."""

    name: str
    base: Literal["closed", "killed", "power cut"]
    do: Callable[[Copy], object]
    verdicts: frozenset[Verdict]
    """The verdicts of `verify` besides intact and unused."""
    codes: tuple[str, ...] = ()
    """Codes of the problems, without repetition, in order."""
    note: str = ""
    """Text of one of the notes."""
    only_bodies: bool = False
    """Whether only reading frame bodies shows it: `inspect` does not."""
    only_verify: bool = False
    """Whether `scan` does not look at it."""

    @property
    def ok(self) -> bool:
        """Whether nothing promised is harmed."""
        return not self.codes


def _foreign(copy: Copy, index: int) -> None:
    other = copy.path.parent / "other"
    close_log(other)
    shutil.copyfile(other / Copy(other).used(index), copy.path / copy.used(index))


def _older_manifest(copy: Copy) -> None:
    """Write the log after a copy of its manifest; then put the old one back."""
    saved = (copy.path / MANIFEST_NAME).read_bytes()
    close_log(copy.path, 10)
    (copy.path / MANIFEST_NAME).write_bytes(saved)


def _recount(manifest: Manifest) -> Manifest:
    from dataclasses import replace

    first, *rest = manifest.segments
    return replace(manifest, segments=(first._replace(records=first.records + 1), *rest))


def _no_cell(copy: Copy) -> None:
    """The durable slot is gone, as after a power cut."""
    copy.remove(DURABLE_NAME)


def _then(*steps: Callable[[Copy], object]) -> Callable[[Copy], None]:
    def do(copy: Copy) -> None:
        for step in steps:
            step(copy)

    return do


OK: frozenset[Verdict] = frozenset()
CORRUPT = frozenset({Verdict.CORRUPT})
MISSING = frozenset({Verdict.MISSING})
FOREIGN = frozenset({Verdict.FOREIGN})
UNKNOWN = frozenset({Verdict.UNKNOWN})
TORN = frozenset({Verdict.TORN})
STALE = frozenset({Verdict.STALE})

DAMAGES: tuple[Damage, ...] = (
    Damage(name="closed", base="closed", do=lambda c: None, verdicts=OK),
    *(
        Damage(
            name=f"closed: flip in the {where} of a {which} frame",
            base="closed",
            do=lambda c, where=where, at=at: c.flip_in_frame(*at, where),  # type: ignore[misc]
            verdicts=CORRUPT,
            codes=("corruption",),
            only_bodies=where != "header",
        )
        for where in ("header", "body", "padding")
        for which, at in (("middle", (1, 4)), ("last", (-1, -1)), ("first", (0, 0)))
    ),
    Damage(
        name="closed: tail cut", base="closed", do=lambda c: c.cut(c.used(-1), -5000),
        verdicts=MISSING, codes=("segment-missing",),
    ),
    Damage(
        name="closed: middle segment cut to its header", base="closed", do=lambda c: c.cut(c.used(1), 4096),
        verdicts=MISSING, codes=("segment-missing",),
    ),
    Damage(
        name="closed: middle segment cut to nothing", base="closed", do=lambda c: c.cut(c.used(1), 0),
        verdicts=MISSING, codes=("segment-missing",),
    ),
    *(
        Damage(
            name=f"closed: {which} segment missing", base="closed", do=lambda c, at=at: c.remove(c.used(at)),  # type: ignore[misc]
            verdicts=MISSING, codes=("segment-missing",),
        )
        for which, at in (("first", 0), ("middle", 1), ("last", -1))
    ),
    Damage(
        name="closed: segment of another log", base="closed", do=lambda c: _foreign(c, 1),
        verdicts=FOREIGN, codes=("corruption",),
    ),
    Damage(
        name="closed: two segments swapped", base="closed", do=lambda c: c.swap(0, 1),
        verdicts=FOREIGN, codes=("corruption",),
    ),
    Damage(
        name="closed: one segment copied over another", base="closed",
        do=lambda c: shutil.copyfile(c.path / c.used(0), c.path / c.used(1)),
        verdicts=FOREIGN, codes=("corruption",),
    ),
    Damage(
        name="closed: zeroed frame", base="closed", do=lambda c: c.zero_frame(1, 3),
        verdicts=CORRUPT, codes=("corruption",),
    ),
    Damage(
        name="closed: zeroed last frame", base="closed", do=lambda c: c.zero_frame(-1, -1),
        verdicts=CORRUPT, codes=("corruption",),
    ),
    Damage(
        name="closed: flip in a segment header", base="closed", do=lambda c: c.flip(c.used(1), 50),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(
        name="closed: zeroed segment header", base="closed", do=lambda c: c.patch(c.used(1), 0, bytes(4096)),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(
        name="closed: newer segment", base="closed", do=lambda c: c.renew_segment(1, 8, 9),
        verdicts=UNKNOWN, codes=("format-version",),
    ),
    Damage(
        name="closed: newer frame", base="closed", do=lambda c: c.renew_frame(1, 3, 4, 9),
        verdicts=UNKNOWN, codes=("format-version",),
    ),
    Damage(
        name="closed: unknown flag of a frame", base="closed", do=lambda c: c.renew_frame(1, 3, 7, 0x80),
        verdicts=UNKNOWN, codes=("format-version",),
    ),
    Damage(
        name="closed: a frame of another epoch", base="closed", do=lambda c: c.renew_frame(1, 3, 16, 99),
        verdicts=CORRUPT, codes=("corruption",),
    ),
    Damage(
        name="closed: flip in the manifest", base="closed", do=lambda c: c.flip(MANIFEST_NAME, 100),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(
        name="closed: flip in the magic of the manifest", base="closed", do=lambda c: c.flip(MANIFEST_NAME, 2),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(
        name="closed: manifest missing", base="closed", do=lambda c: c.remove(MANIFEST_NAME),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(
        name="closed: an older manifest put back", base="closed", do=_older_manifest,
        verdicts=STALE, codes=("corruption",),
    ),
    Damage(
        name="closed: wrong count in the manifest", base="closed", do=lambda c: c.renew_manifest(_recount),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(
        name="closed: bytes after the end", base="closed",
        do=lambda c: c.patch(c.used(1), (c.path / c.used(1)).stat().st_size + 100, b"late write"),
        verdicts=STALE, note="after its end",
    ),
    Damage(
        name="closed: stray files", base="closed", do=lambda c: (c.path / "notes.txt").write_text("mine"),
        verdicts=OK, note="notes.txt", only_verify=True,
    ),
    Damage(
        name="closed: stray segment without a header", base="closed",
        do=lambda c: (c.path / f"{99:020d}.segment").write_bytes(bytes(8192)),
        verdicts=OK, note="not named in the manifest",
    ),
    Damage(
        name="closed: copy of a segment under another name", base="closed",
        do=lambda c: shutil.copyfile(c.path / c.used(0), c.path / f"{99:020d}.segment"),
        verdicts=OK, note="under another name",
    ),
    Damage(
        name="closed: no durable slot", base="closed", do=_no_cell,
        verdicts=OK, note="no durable slot", only_verify=True,
    ),
    Damage(name="killed", base="killed", do=lambda c: None, verdicts=OK),
    *(
        Damage(
            name=f"killed: flip in the {where} of a {which} frame",
            base="killed",
            do=lambda c, where=where, at=at: c.flip_in_frame(*at, where),  # type: ignore[misc]
            verdicts=CORRUPT,
            codes=("corruption",),
            only_bodies=at[0] == 0 and where != "header",
        )
        for where in ("header", "body", "padding")
        for which, at in (("sealed", (0, 4)), ("middle", (-1, 1)), ("last", (-1, -1)))
    ),
    Damage(
        name="killed: cut between frames", base="killed", do=lambda c: c.cut_in_frame(-1, -2, 0),
        verdicts=MISSING, codes=("segment-missing",),
    ),
    Damage(
        name="killed: cut inside a frame", base="killed", do=lambda c: c.cut_in_frame(-1, -2, 640),
        verdicts=CORRUPT | MISSING, codes=("segment-missing", "corruption"),
    ),
    Damage(
        name="killed: open segment missing", base="killed", do=lambda c: c.remove(c.used(-1)),
        verdicts=MISSING, codes=("segment-missing",),
    ),
    Damage(
        name="killed: header of the open segment damaged", base="killed", do=lambda c: c.flip(c.used(-1), 50),
        verdicts=CORRUPT, codes=("corruption",),
    ),
    Damage(
        name="killed: open segment of another log", base="killed", do=lambda c: _foreign(c, -1),
        verdicts=FOREIGN, codes=("corruption",),
    ),
    Damage(
        name="killed: newer frame in the open segment", base="killed", do=lambda c: c.renew_frame(-1, 2, 4, 9),
        verdicts=UNKNOWN, codes=("format-version",),
    ),
    Damage(
        name="killed: a last body that cannot be decoded", base="killed", do=lambda c: c.renew_frame(-1, -1, 6, 0),
        verdicts=CORRUPT, codes=("corruption",), only_verify=True,
    ),
    Damage(
        name="killed: a last frame that promises too much", base="killed", do=lambda c: c.renew_frame(-1, -1, 75, 9),
        verdicts=CORRUPT, codes=("corruption",),
    ),
    Damage(
        name="killed: flip in the manifest", base="killed", do=lambda c: c.flip(MANIFEST_NAME, 100),
        verdicts=OK, codes=("corruption",),
    ),
    Damage(name="power cut: nothing lost", base="power cut", do=_no_cell, verdicts=OK),
    *(
        Damage(
            name=f"power cut: flip in the {where} of the last frame",
            base="power cut",
            do=_then(_no_cell, lambda c, where=where: c.flip_in_frame(-1, -1, where)),  # type: ignore[misc]
            verdicts=TORN,
            note="torn tail",
        )
        for where in ("header", "body", "padding")
    ),
    Damage(
        name="power cut: last frame cut", base="power cut",
        do=_then(_no_cell, lambda c: c.cut_in_frame(-1, -1, 640)),
        verdicts=TORN | MISSING, codes=("segment-missing",), note="torn tail",
    ),
    Damage(
        name="power cut: last frame zeroed", base="power cut", do=_then(_no_cell, lambda c: c.zero_frame(-1, -1)),
        verdicts=OK,
    ),
    Damage(
        name="power cut: a middle frame zeroed", base="power cut",
        do=_then(_no_cell, lambda c: c.zero_frame(-1, 1)),
        verdicts=CORRUPT, codes=("corruption",),
    ),
    Damage(
        name="power cut: durable slot torn", base="power cut",
        do=lambda c: (c.path / DURABLE_NAME).write_bytes(b"\x55" * 128),
        verdicts=OK, note="no copy of the durable slot", only_verify=True,
    ),
)  # fmt: skip
