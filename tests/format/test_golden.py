"""The golden files of version 0: the codec writes these bytes, and reads these records out of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import walkit
from scripts import make_golden
from tests.format.plain_reader import (
    PlainRecord,
    numbers_of,
    read_durable,
    read_manifest,
    read_segment,
    was_cut_short,
)
from tests.support import makers
from tests.support.makers import joined_flags
from walkit.format.body import to_arrow
from walkit.format.consumer_file import decode_claim
from walkit.format.durable_slot import decode_slots
from walkit.format.frame import FrameHeader, decode_frame
from walkit.format.layout import FORMAT_VERSION, SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd, decode_manifest
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk

FOLDER = makers.ROOT / "data" / "golden" / f"v{FORMAT_VERSION}"
FILES = sorted(str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.is_file())
SEGMENTS = [name for name in FILES if name.endswith(".segment")]
SEGMENTS_OF_LOG = [name for name in SEGMENTS if name.startswith("log/")]
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def data_of(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def expected_of(name: str) -> list[PlainRecord]:
    """The records of a golden segment, by expected.json."""

    def unhex(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    return [
        PlainRecord(r["lsn"], r["kind"], unhex(r["key"]), unhex(r["value"]), r["timestamp_us"], r["joined"])
        for r in EXPECTED[name]
    ]


def header_of(data: bytes) -> SegmentHeader:
    """The header of a golden segment, whatever its file is called."""
    number = int.from_bytes(data[48:56], "little")
    header = SegmentHeader.decode(data, f"{number:020d}.segment")
    assert header is not None
    return header


def test_the_codec_writes_the_golden_bytes() -> None:
    """F-11.1: every golden file is made again as on disk; compressed bytes alone depend on zstd (F-5.9)."""
    made = make_golden.build()
    assert sorted(made) == FILES
    for name, data in made.items():
        if name != "zstd.segment":
            assert data == data_of(name), (
                f"{name} differs: the format has changed; see scripts/make_golden.py"
            )


def test_golden_files_are_small() -> None:
    """The golden files together are below 50 kB."""
    assert sum(len(data_of(name)) for name in FILES) < 50_000


@pytest.mark.parametrize("name", SEGMENTS)
def test_the_codec_reads_the_golden_records(name: str) -> None:
    """F-2, F-5, F-6: walked and decoded, a golden segment holds the records of expected.json, transactions included."""
    data = data_of(name)
    header = header_of(data)
    walk = FrameWalk(
        makers.memory_file(data),
        header,
        position=header.start_position,
        end_position=header.start_position + len(data) - SEGMENT_HEADER_BYTES,
        next_lsn=header.first_lsn,
        chain=header.chain,
    )
    decoded = [(head.first_lsn, decode_frame(head, frame)) for head, frame in walk]
    wanted = expected_of(name)
    assert walk.fault is None or not any(data[header.offset_of(walk.position) :])
    assert makers.rows_of(to_arrow(decoded)) == makers.plain_rows(wanted)
    joined = [flag for _, columns in decoded for flag in joined_flags(columns).tolist()]
    assert joined == [r.joined for r in wanted]


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_reader_made_from_the_document_reads_them_too(name: str) -> None:
    """F-1 to F-6: the tables of FORMAT.md alone are enough to read every golden segment; and the codec agrees."""
    data = data_of(name)
    header, heads, records = read_segment(data)
    assert records == expected_of(name)
    coded = header_of(data)
    assert all(
        header[field] == getattr(coded, field)
        for field in ("log_id", "number", "chain", "flags", "extension")
    )
    for head in heads:
        parsed = FrameHeader.parse(data, coded.offset_of(head["position"]))
        assert tuple(head.values()) == tuple(parsed)


def test_golden_manifest_and_cell() -> None:
    """F-4, F-12: codec and document agree on the golden manifest and durable slot."""
    manifest = decode_manifest(data_of("log/manifest"), "log")
    plain = read_manifest(data_of("log/manifest"))
    reserved = len(data_of(SEGMENTS_OF_LOG[1]))
    assert manifest == make_golden.manifest(*make_golden.golden_log(), reserved)
    assert (plain["end"]["last_lsn"], manifest.end.last_lsn, manifest.extra) == (
        11,
        11,
        {"later": [1, None, "field"]},
    )
    mark, cell = decode_slots(data_of("log/durable")), read_durable(data_of("log/durable"))
    assert cell is not None and tuple(cell.values())[:5] == mark[:5]
    assert (mark.generation, mark.epoch, mark.lsn, mark.promise.generation) == (7, 2, 12, plain["generation"])


def test_golden_claim() -> None:
    """F-18.1: codec and document agree on the golden claim."""
    data = data_of("log/claim-reader")
    mark, plain = decode_claim(data, "claim-reader"), numbers_of("claim place", data[4096:])
    assert mark == make_golden.claim() and mark.owner == data[4096:][36:52]
    others = {
        name: value for name, value in mark._asdict().items() if name not in ("owner", "acked", "label")
    }
    assert all(plain[name] == value for name, value in others.items())
    acked = LogEnd(
        **{n: plain[f"acked_{n.removeprefix('last_')}"] for n in ("last_lsn", "position", "chain")}
    )
    assert mark.acked == acked and mark.label.encode() == data[4096:][112:624].rstrip(b"\0")
    assert (mark.epoch, mark.first_lsn, mark.lease_until_us) == (1, 4, 1_357_038_000_000_000)


def test_a_golden_log_opens(tmp_path: Path) -> None:
    """F-9, F-11.3: `walkit.open` reads a whole golden log, with unknown optional features, and continues in a copy."""
    shutil.copytree(FOLDER / "log", tmp_path / "log")
    wanted = makers.plain_rows(expected_of(SEGMENTS_OF_LOG[0]) + expected_of(SEGMENTS_OF_LOG[1]))
    with walkit.open(tmp_path / "log", mode="r") as reader:
        assert (
            makers.rows_of(reader.read_batches(resolve="link").read_all().combine_chunks().to_batches()[0])
            == wanted
        )
    before = data_of(SEGMENTS_OF_LOG[0])
    with walkit.open(tmp_path / "log") as log:
        assert log.append(b"version 0 goes on").first_lsn == 13
        assert [r.lsn for r in log.read(resolve="link")] == list(range(1, 14))
    assert (tmp_path / SEGMENTS_OF_LOG[0]).read_bytes() == before


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4160, -65, -1, None])
def test_a_golden_log_whose_last_file_was_cut_short(tmp_path: Path, size: int | None) -> None:
    """F-9.10: document and codec agree on files cut short, at each kind of place and with every tool."""
    place = tmp_path / "log"
    shutil.copytree(FOLDER / "log", place)
    (place / "durable").unlink()
    prepared = read_manifest(data_of("log/manifest"))["segments"][1]
    data = data_of(SEGMENTS_OF_LOG[1])[:size]
    (tmp_path / SEGMENTS_OF_LOG[1]).write_bytes(data)
    assert was_cut_short(prepared, data) == (size is not None) == (not walkit.verify(place).ok)
    with walkit.open(place, mode="r") as reader:
        if size is not None:
            with pytest.raises(walkit.CorruptionError):
                list(reader.read())
        else:
            assert reader.last_lsn == 12


def test_one_command_makes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script writes and names files that are missing or differ; --check only names them, with exit code 1."""
    document = tmp_path / "walkit" / "format" / "FORMAT.md"
    document.parent.mkdir(parents=True)
    document.write_text(
        make_golden.DOCUMENT.read_text(encoding="utf-8").replace("| 133 |", "| 1333 |"), encoding="utf-8"
    )
    for name, value in (("ROOT", tmp_path), ("FOLDER", tmp_path / "golden"), ("DOCUMENT", document)):
        monkeypatch.setattr(make_golden, name, value)
    assert make_golden.main(["--check"]) == 1
    assert not (tmp_path / "golden").exists()
    assert make_golden.main([]) == 0
    assert capsys.readouterr().out.count("written:") == len(FILES) + 1
    assert make_golden.main(["--check"]) == 0 and capsys.readouterr().out == ""
    assert (tmp_path / "golden" / "log" / "manifest").read_bytes() == data_of("log/manifest")
    assert "| 1333 |" not in document.read_text(encoding="utf-8")
