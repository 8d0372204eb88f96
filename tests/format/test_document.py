"""The pages of the format are true: tables, example and rule numbers are those of the code and the tests."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from scripts import make_golden
from tests.format.plain_reader import DOCUMENT, PAGES, PlainRecord, crc, fields_of, read_frame
from tests.support import makers
from walkit.format import layout
from walkit.format.checksum import crc32c, crc32c_of
from walkit.format.durable_slot import DurableSlot
from walkit.format.frame import FrameFault, FrameHeader
from walkit.objects.layout import BULK_HEADER
from walkit.state import snapshot

CODEC_SECTIONS = (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 17, 18)
"""Sections with rules of the codec; the rules of the others are tested in their rooms."""
ELSEWHERE = {
    "F-2.10": "salvage and repair: tests/recovery/test_salvage.py",
    "F-3.3": "recovery decides what damage means: tests/recovery",
    "F-3.4": "the scan gathers promises: tests/recovery",
    "F-3.6": "recovery of a replica: tests/replication",
    "F-4.2": "the driver orders store and acknowledgement: tests/commit",
    "F-4.3": "the scan compares epochs: tests/recovery",
    "F-4.4": "readers of other processes: tests/read",
    "F-4.5": "says that there is nothing to test",
    "F-6.4": "the rewriter: tests/compaction",
    "F-6.5": "the compactor and recovery: tests/compaction",
    "F-6.7": "the compactor: tests/compaction",
    "F-6.8": "the compactor and the manifest's store: tests/segments/test_manifest_store.py",
    "F-7.5": "the ordering core and the manifest store: tests/log/test_exhausted.py",
    "F-10.3": "readers: tests/segments/test_sidecar.py",
    "F-12.5": "recovery and trim: tests/recovery, tests/log",
    "F-12.7": "salvage of several histories: tests/recovery/test_branches.py",
    "F-12.8": "salvage of several histories: tests/recovery/test_branches.py",
    "F-17.2": "the cursor: tests/read/test_cursor.py",
    "F-17.3": "the cursor: tests/read/test_cursor.py",
    "F-17.4": "the cursor: tests/read/test_cursor.py",
    **dict.fromkeys(
        [f"F-18.{n}" for n in range(3, 12)], "claims and trims: tests/read/test_claims.py, tests/log"
    ),
    **dict.fromkeys(
        ["F-12.6", "F-12.10", "F-12.11", "F-12.12", "F-12.13"], "opening and repair: tests/recovery"
    ),
}
RULES = re.findall(r"^- \*\*(F-\d+\.\d+)\*\* ", DOCUMENT, re.MULTILINE)


def cited_in(path: Path) -> set[str]:
    """The rules that a file cites, ranges ("F-5.3 to F-5.6") included."""
    text = path.read_text(encoding="utf-8")
    cited = set(re.findall(r"F-\d+(?:\.\d+)?", text))
    for first, last in re.findall(r"(F-\d+\.\d+) to (F-\d+\.\d+)", text):
        section, start = first.split(".")
        cited |= {f"{section}.{n}" for n in range(int(start), int(last.split(".")[1]) + 1)}
    return cited


def sizes_of(code: struct.Struct) -> list[int]:
    return [struct.calcsize(f"<{part}") for part in re.findall(r"\d*[a-zA-Z]", code.format)]


@pytest.mark.parametrize(
    ("table", "code", "behind"),
    [
        ("segment header", layout.SEGMENT_HEADER, [3956, 4]),
        ("frame header", layout.FRAME_HEADER, []),
        ("durable slot", layout.DURABLE_SLOT, []),
        ("manifest header", layout.MANIFEST_HEADER, []),
        ("manifest edit", layout.EDIT_HEADER, []),
        ("index header", layout.INDEX_HEADER, []),
        ("snapshot header", snapshot.HEADER, [4068, 4]),
        ("cursor file", layout.CURSOR_FILE, []),
        ("claim place", layout.CLAIM_PLACE, []),
        ("bulk header", BULK_HEADER, []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_are_the_structs(table: str, code: struct.Struct, behind: list[int]) -> None:
    """F-1.1, F-2.1, F-4.1: the fields of a table stand without gaps, little-endian, in the codec's sizes."""
    rows = fields_of(table)
    assert code.format.startswith("<")
    assert [size for _, size, _ in rows] == sizes_of(code) + behind
    assert [offset for offset, _, _ in rows] == [sum(r[1] for r in rows[:n]) for n in range(len(rows))]


def test_field_names_are_those_of_the_code() -> None:
    """F-2.3, F-4.1: FORMAT.md and the code use the same names of fields."""
    assert [name for _, _, name in fields_of("frame header")] == list(FrameHeader._fields)
    assert [name for _, _, name in fields_of("durable slot")] == [*DurableSlot._fields[:5], "crc"]


def test_flags_are_those_of_the_code() -> None:
    """F-5.2, F-11.4: the tables of flags name every flag with its value, and the masks know just these."""
    rows = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", DOCUMENT, re.MULTILINE)
    documented = [(name, int(bit)) for bit, name in rows]
    assert documented == [(f.name, f.value) for f in (*layout.SegmentFlag, *layout.FrameFlag)]
    kinds = [layout.HAS_KEY, layout.HAS_VALUE, layout.HAS_TIMESTAMP, layout.JOINED]
    assert kinds == [makers.HAS_KEY, makers.HAS_VALUE, makers.HAS_TIMESTAMP, makers.JOINED]


def test_limits_are_those_of_the_code() -> None:
    """F-7.1 to F-7.3: every number in the table of limits is the constant of that name."""
    text = DOCUMENT.split("<!-- table: limits -->")[1].split("\n\n")[1]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.MULTILINE)
    assert len(rows) == 11
    for name, value in rows:
        assert getattr(layout, name) == int(value)


def test_faults_are_those_of_the_code() -> None:
    """F-13.1: the table of judgements names every fault that bytes can have."""
    table = DOCUMENT.split("## F-13")[1].split("- **F-13.2**")[0]
    assert set(re.findall(r"`([A-Z]+)`", table)) == {f.name for f in FrameFault} - {"UNREADABLE"}


def test_the_checksum() -> None:
    """F-1.2: the codec's CRC-32C, that of FORMAT.md spelled out, and the published check value agree."""
    assert crc32c(b"123456789") == crc(b"123456789") == 0xE3069283
    for data in (b"", b"\0", bytes(64), bytes(range(256))):
        assert crc32c(data) == crc(data) == crc32c_of([data[:7], b"", memoryview(data)[7:]])


def test_the_worked_example_is_a_golden_frame() -> None:
    """F-2.3, F-5.1: the table of the example has the bytes of the frame in the golden log."""
    text = DOCUMENT.split(make_golden.EXAMPLE_BEGIN)[1].split(make_golden.EXAMPLE_END)[0]
    tabled = b""
    for offset, shown in re.findall(r"^\| (\d+) \| `([^`]+)` \|", text, re.MULTILINE):
        assert int(offset) == len(tabled)
        zeros = re.fullmatch(r"00 \* (\d+)", shown)
        tabled += bytes(int(zeros[1])) if zeros else bytes.fromhex(shown)
    golden = make_golden.build()["log/00000000000000000001.segment"][4096 + 128 :]
    assert len(tabled) == 192 and golden.startswith(tabled)
    assert read_frame(tabled)[1] == [
        PlainRecord(2, 1, b"N14228", b"EWR", None, True),
        PlainRecord(3, 1, b"UA1545", b"boarding", None, False),
    ]
    batch = makers.judged(tabled)
    assert not isinstance(batch, FrameFault) and batch.column("key").to_pylist() == [b"N14228", b"UA1545"]


def test_the_script_makes_the_document() -> None:
    """F-5.1: the worked example in FORMAT.md is the one that scripts/make_golden.py would write."""
    assert make_golden.document_with(make_golden.worked_example(make_golden.build()), DOCUMENT) == DOCUMENT


def test_rules_are_numbered_in_order() -> None:
    """Every section F-n has rules F-n.1, F-n.2, ... without a gap, or none; no number is given twice."""
    sections = sorted(int(n) for n in re.findall(r"^## F-(\d+) ", DOCUMENT, re.MULTILINE))
    assert sections == list(range(1, len(sections) + 1))
    for section in sections:
        numbers = [int(r.split(".")[1]) for r in RULES if r.startswith(f"F-{section}.")]
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(RULES) > 50


def test_cited_rules_exist() -> None:
    """No file of the package, of these tests or of the page itself cites a rule that there is not."""
    known = {*RULES, *(f"F-{n}" for n in re.findall(r"^## F-(\d+) ", DOCUMENT, re.MULTILINE))}
    files = [*(makers.ROOT / "walkit").rglob("*.py"), *Path(__file__).parent.glob("*.py")]
    for path in [*files, *PAGES]:
        assert cited_in(path) <= known, f"{path.name} cites {sorted(cited_in(path) - known)}"


def test_rules_of_the_codec_are_tested() -> None:
    """Every rule that the codec keeps is cited by a test of this folder; the others say who keeps them."""
    tests = [p for p in Path(__file__).parent.glob("test_*.py") if p.name != Path(__file__).name]
    cited = set().union(*map(cited_in, tests)) | {"F-1.1", "F-1.2", "F-5.2"}
    codec = {r for r in RULES if int(r[2:].split(".")[0]) in CODEC_SECTIONS}
    assert codec - cited == set(ELSEWHERE)
    assert cited_in(Path(__file__)) >= {"F-1.1", "F-1.2", "F-5.2"}
