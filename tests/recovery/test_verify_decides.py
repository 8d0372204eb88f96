"""The verdict of `verify` on a log equals the next opening's decision: the same survey, facts and table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import walkit
from tests.recovery.damage_corpus import Case, load_bases
from tests.support.logs import tiny
from walkit.errors import CorruptionError
from walkit.format.checksum import crc32c
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.models import CrashingStorage
from walkit.recovery.scan_report import Verdict
from walkit.segments.manifest_store import DURABLE_NAME


def test_a_damaged_header_without_a_frame_is_one_problem(tmp_path: Path) -> None:
    """Write zeros over a sealed segment, its header included: the loss is reported once, with its LSNs."""
    path = tmp_path / "log"
    with walkit.open(path, options=tiny()) as log:
        log.append_many([b"lost"] * 5)
    (segment,) = path.glob("*.segment")
    segment.write_bytes(bytes(segment.stat().st_size))
    report = walkit.verify(path)
    (problem,) = report.problems
    assert isinstance(problem.error, CorruptionError) and problem.position == 0
    (lost,) = report.verdict
    assert (lost.verdict, lost.first_lsn, lost.last_lsn) == (Verdict.CORRUPT, 1, 5)
    assert SEGMENT_HEADER_BYTES + lost.size_bytes == segment.stat().st_size


@pytest.mark.parametrize(
    "base", ["completion, without its durable slot", "completion, holes over a rotation"]
)
def test_a_frame_after_a_hole_that_cannot_be_decoded_is_a_problem(base: str) -> None:
    """Break the last body of a log with holes, its checksums right: the reader keeps and refuses it, verify too."""
    files = dict(load_bases()[base].files)
    name = max(n for n in files if n.endswith(".segment"))
    data = bytearray(files[name])
    at = max(i for i in range(SEGMENT_HEADER_BYTES, len(data), 64) if data[i : i + 4] == b"WLKF")
    stored = int.from_bytes(data[at + 60 : at + 64], "little")
    data[at + 96 : at + 100] = b"\xff" * 4  # a key that is longer than the body
    data[at + 68 : at + 72] = crc32c(bytes(data[at + 96 : at + 96 + stored])).to_bytes(4, "little")
    data[at + 92 : at + 96] = crc32c(bytes(data[at : at + 92])).to_bytes(4, "little")
    image = Case(0, base, [], files | {name: bytes(data)}).image()
    with walkit.open(storage=image, mode="r") as log, pytest.raises(CorruptionError):
        list(log.read())
    assert [problem.segment for problem in walkit.verify(image).problems] == [name]


@pytest.mark.parametrize("base", ["frames in flight over a rotation", "imported, killed"])
def test_noise_before_a_segment_that_fits_costs_no_frame(base: str) -> None:
    """Put noise into unused space of a segment which the next one follows, after a power cut: no policy reads less."""
    files = {n: data for n, data in load_bases()[base].files.items() if n != DURABLE_NAME}
    wanted = {
        way: _lsns(Case(0, base, [], files).image(), way) for way in ("reader", "prefix", "holes", "salvage")
    }
    name = min(n for n in files if n.endswith(".segment"))
    data = bytearray(files[name].ljust(65536, b"\0"))
    at = len(bytes(data).rstrip(b"\0")) // 64 * 64 + 128
    data[at : at + 100] = b"noise" * 20
    files[name] = bytes(data)
    image = Case(0, base, [], files).image()
    report = walkit.verify(image)
    assert report.ok and report.last_lsn == wanted["prefix"][-1]
    assert Verdict.STALE in {found.verdict for found in report.verdict if found.segment == name}
    for way, lsns in wanted.items():
        found = Case(0, base, [], files).image()
        assert _lsns(found, way) == lsns, way
        assert way == "reader" or any(n.startswith(f"{name}.") for n in _kept(found))
    with pytest.raises(CorruptionError):
        _lsns(image, "absolute")


def _lsns(storage: CrashingStorage, way: str) -> list[int]:
    if way == "reader":
        with walkit.open(storage=storage, mode="r") as reader:
            return [r.lsn for r in reader.read()]
    with walkit.open(storage=storage, options=tiny(recovery=way)) as log:
        return [r.lsn for r in log.read()]


def _kept(storage: CrashingStorage) -> list[str]:
    return [n.removeprefix("lost+found/") for n in storage.names("lost+found")]


def test_one_module_calls_ranges_torn_corrupt_or_missing() -> None:
    """Look for these verdicts in the package: only the judge assigns them, the others compare them and look them up."""
    found = set()
    for path in Path(walkit.__file__).parent.rglob("*.py"):
        if "Verdict." not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        looked_up: list[ast.AST] = [
            node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Set)
        ]
        looked_up += [
            key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys if key
        ]
        passed_over = {id(inner) for node in looked_up for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("TORN", "CORRUPT", "MISSING"):
                found |= (
                    {path.name}
                    if id(node) not in passed_over and "Verdict" in ast.dump(node.value)
                    else set()
                )
    assert found == {"judge.py"}
