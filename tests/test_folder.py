"""The files of a log's folder: as many kinds as FORMAT.md names, and no other."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import walkit
from tests.replication.blocking_callers import WAIT_S
from tests.support.logs import view_of
from walkit.copier.gathering import Gathering
from walkit.copier.planned_files import PlannedFiles
from walkit.format.file_names import TEMPORARY_NAMES, claim_file_name, cursor_file_name
from walkit.replication import Primary, Replica
from walkit.segments.manifest_store import NEW_NAME, OWN_NAMES, REPLICATION_NAMES
from walkit.storage.file import FileStorage

FORMAT = Path(walkit.__file__).parent / "format" / "FORMAT.md"
KINDS_MAX = 13
PATTERNS = {"NUMBER": r"\d{20}", "NAME": r"[A-Za-z0-9_-]{1,64}", "WHAT": r".+"}


def kinds() -> list[str]:
    """The kinds of file in the table of FORMAT.md, as patterns."""
    table = FORMAT.read_text().partition("<!-- table: kinds of file -->")[2].partition("\n\nOther files")[0]
    found = [re.escape(name) for name in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)]
    return [re.sub("NUMBER|NAME|WHAT", lambda m: PATTERNS[m.group()], name) for name in found]


def test_folder_has_the_kinds_of_file_that_the_format_names(tmp_path: Path) -> None:
    """Use every feature that leaves a file, and list the folders: each file has a kind, and each kind is there."""
    options = walkit.LogOptions(segment_bytes=512 * 1024, frame_bytes_max=64 * 1024)
    with walkit.Store.open(tmp_path / "p", options=options) as store, Primary(store.log) as primary:
        for n in range(700):
            store.put(b"%d" % n, bytes(1000))
        last = store.put(b"last", b"").last_lsn
        store.log.cursor("c").advance(last)
        store.checkpoint()
        with Replica(tmp_path / "r", primary.address) as replica:
            replica.wait_for(last, WAIT_S)
        store.log.wait_idle()
        gathering = Gathering(FileStorage(tmp_path / "r"))
        with closing(PlannedFiles(partial(view_of, store.log), {})) as planned:
            gathering.prepare(planned.manifest, planned.sizes)
            gathering.store(0, 0, planned.read(0, 0, 4096))
            gathering.close()
        shutil.copytree(tmp_path / "p", tmp_path / "torn")
    torn = max(path for path in (tmp_path / "torn").glob("*.segment") if any(path.read_bytes()))
    frames = torn.read_bytes().rstrip(b"\0")
    after = frames.ljust(-(-len(frames) // 64) * 64, b"\0") + b"torn" * 16
    torn.write_bytes(after.ljust(torn.stat().st_size, b"\0"))
    walkit.open(tmp_path / "torn").close()
    there = {f"{path.name}/" if path.is_dir() else path.name for path in tmp_path.glob("*/*")}
    written = {NEW_NAME, *TEMPORARY_NAMES, cursor_file_name("c", new=True), claim_file_name("c", new=True)}
    patterns = kinds()
    matching = [{name for name in there | written if re.fullmatch(kind, name)} for kind in patterns]
    assert there | written == set.union(*matching)
    assert all(matching) and len(patterns) <= KINDS_MAX
    assert all(
        any(re.fullmatch(kind, name) for kind in patterns) for name in (*OWN_NAMES, *REPLICATION_NAMES)
    )
