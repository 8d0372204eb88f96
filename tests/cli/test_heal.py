"""`walkit repair --from`: what is printed, and the exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import walkit
from walkit.replication import Primary

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_a_damaged_log_is_healed_from_a_peer(tmp_path: Path, run: Run) -> None:
    """Try, refuse a policy beside it, heal, heal again as JSON: 0, 2, 0, 0; nothing listens: 3; damage is left: 1."""
    log, kept = tmp_path / "log", tmp_path / "kept"
    with walkit.open(kept) as written:
        written.append_many([b"%d" % number * 90 for number in range(200)])
    shutil.copytree(kept, log)
    (segment,) = log.glob("*.segment")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:9_000] + bytes(300) + whole[9_300:])
    with Primary(kept) as primary:
        tried = run("repair", log, "--from", primary.address, "--dry-run")
        assert tried.code == 0 and "1 of 1 damaged segment would be healed" in tried.out
        policy = run("repair", log, "--from", primary.address, "--policy", "salvage")
        assert policy.code == 2 and "--from gives nothing up" in policy.err
        done = run("repair", log, "--from", primary.address)
        assert done.code == 0 and "1 of 1 damaged segment healed" in done.out
        assert segment.read_bytes()[4096:] == whole[4096:]
        again = run("repair", log, "--from", primary.address, "--json")
        assert again.code == 0 and json.loads(again.out)["segments"] == []
        segment.write_bytes(whole[:9_000] + bytes(300) + whole[9_300:])
        with walkit.open(kept) as written:
            written.append(b"more")
            written.trim(200)
            left = run("repair", log, "--from", primary.address)
        assert left.code == 1 and "0 of 1 damaged segment healed" in left.out
    gone = run("repair", log, "--from", primary.address)
    assert gone.code == 3 and "Traceback" not in gone.err
