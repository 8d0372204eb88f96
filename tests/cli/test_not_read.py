"""No tool certifies a part of a log that it did not read: one byte of each part is damaged, and every tool is asked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from tests.cli.test_json import ROWS
from walkit.format.layout import CLAIM_PLACE_STRIDE, FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from walkit.replication import Primary
from walkit.state.snapshot import HEADER_BYTES

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SEGMENT = f"{2:020d}.segment"
FRAME = SEGMENT_HEADER_BYTES
PARTS = {
    "segment header": (SEGMENT, 30),
    "frame header": (SEGMENT, FRAME + 40),
    "body": (SEGMENT, FRAME + FRAME_HEADER_BYTES + 300),
    "last frame": (SEGMENT, -300),
    "manifest": ("manifest", 100),
    "snapshot": (f"snapshot-{20:020d}", HEADER_BYTES + 200),
    "slot": ("durable", 8),
    "claim": ("claim-worker", CLAIM_PLACE_STRIDE + 20),  # the place of its first writing
    "cursor": ("cursor-done", 20),
}
"""By part of a log: a file, and the offset of a byte in it; a negative one counts from its last byte in use."""
FRAMES = ("segment header", "frame header", "body", "last frame", "manifest")
ALL = (*FRAMES, "snapshot")
TOOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "walkit.inspect": ("inspect LOG", ALL),
    "walkit.inspect --frames": ("inspect LOG --frames", ALL),
    "walkit.verify": ("verify LOG", tuple(PARTS)),
    "walkit.repair": ("repair LOG --dry-run", ALL),
    "walkit.repair salvage": ("repair LOG --dry-run --policy salvage", ALL),
    "walkit.heal": ("repair LOG --from HOST --dry-run", ALL),
    "walkit.copy": ("copy LOG NEW", ALL),
    "walkit.diff": ("diff LOG BASE", FRAMES),
    "walkit.claims": ("claims LOG", ("claim", "manifest")),
}
"""By the schema of its report: a tool, and the parts that its verdict speaks of."""
OTHERS = {
    "walkit.diff.report",
    "walkit.promote",
    "walkit.status",
    "walkit.doctor",
    "walkit.crashtest",
    "walkit.crashtest.list",
}
OTHERS |= {"walkit.simulate.world", "walkit.bench.KIND"}
"""Reports without a verdict on a log's bytes, and a diff in counts, which reads as the other one does."""


def _opened(path: Path) -> str:
    try:
        with walkit.open(path) as log:
            return f"{log.recovery}\n{log.recovery._repr_html_()}"
    except walkit.CorruptionError as error:
        return f"refused: damaged: {error}"


SHOWN: dict[str, Callable[[Path], str]] = {
    "scan": lambda path: walkit.scan(path, bodies=False)._repr_html_(),
    "verify": lambda path: walkit.verify(path)._repr_html_(),
    "recovery": _opened,
}
"""Reports in a notebook: their HTML."""
GOOD = re.compile(
    r"\bok\b(?!\")|\"ok\": true|\bintact\b|\bclean\b|\bequal\b(?!\": false)|no damage|needs no repair"
)
NAMED = re.compile(r"\bdamaged\b|wrong checksum|left out|\"changed\": true")
OK = '"ok": true'
UNREAD = re.compile(r"\bnot[_ ]read(\": \"|: )\w")
"""The words that name a part which was not read, in a text or in JSON."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A closed log with each part, and the address that serves it."""
    path = tmp_path_factory.mktemp("parts") / "base"
    options = walkit.LogOptions(segment_bytes=1 << 16, idle_marker_ms=0)
    with walkit.Store.open(path, options=options) as store:
        for number in range(120):
            store.put(b"%d" % number, b"%0900d" % number)
            if number == 19:
                store.snapshot()
        walkit.claim(path, "worker", 1, lease_s=3600)
        store.log.cursor("done").advance(10)
    with Primary(path) as primary:
        yield path, primary.address


def _damage(path: Path, part: str) -> None:
    name, offset = PARTS[part]
    data = bytearray((path / name).read_bytes())
    data[offset if offset >= 0 else len(data.rstrip(b"\0")) + offset] ^= 0x20
    (path / name).write_bytes(data)


@pytest.mark.parametrize("part", [None, *PARTS])
def test_no_tool_certifies_a_damaged_part(
    part: str | None, base: tuple[Path, str], tmp_path: Path, run: Run
) -> None:
    """Damage one byte and run the tools that judge it: each names it, or says "not read", not ok, `walkit verify`."""
    log, new = tmp_path / "log", tmp_path / "new"

    def fresh() -> Path:
        shutil.rmtree(log, ignore_errors=True)
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(base[0], log)
        if part is not None:
            _damage(log, part)
        return log

    said: dict[str, str] = {}
    for name, (command, parts) in TOOLS.items():
        if part is not None and part not in parts:
            continue
        words = {"LOG": str(log), "NEW": str(new), "BASE": str(base[0]), "HOST": base[1]}
        for form in ((), ("--json",)):
            fresh()
            ran = run(*(words.get(word, word) for word in command.split()), *form)
            said[" ".join((name, *form))] = ran.out + ran.err
    if part is None or part in ALL:
        said |= {name: show(fresh()) for name, show in SHOWN.items()}
    for name, text in said.items():
        unread = UNREAD.search(text)
        if unread:
            assert OK not in text and ("{" in text or "walkit verify" in text), (name, text)
        excused = unread or ("not read" in text and OK not in text)
        if part is None:
            assert not NAMED.search(text.replace("damaged_frames", "")), (name, text)
            assert excused or GOOD.search(text) or name.startswith(("walkit.copy", "walkit.claims")), (
                name,
                text,
            )
        else:
            assert NAMED.search(text) or excused or not GOOD.search(text), (name, text)


def test_each_report_of_a_command_is_judged() -> None:
    """Compare with the page of outputs: a new report is in the table of tools, or among those without a verdict."""
    assert {name.split()[0] for name in TOOLS} | OTHERS == ROWS.keys()
