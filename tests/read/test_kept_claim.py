"""A claim that its consumer keeps in force: its ends, and its return."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.crashes import SMALL
from walkit.errors import ClaimError, GapError, StorageError
from walkit.models import FaultyStorage
from walkit.read.kept_claim import KeptClaim
from walkit.storage.file import FileStorage

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("operation", "pattern"), [("lock", "claims.lock"), ("replace", "claim-c*"), ("write", "claim-c")]
)
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_what_storage_refuses_is_tried_again(
    tmp_path: Path, operation: Any, pattern: str, number: int
) -> None:
    """Refuse the first claim, or a move: only EROFS lets the first go on; the trouble is said until it is written."""
    storage = FaultyStorage(FileStorage(str(tmp_path / "log")))
    storage.create()
    with walkit.open(storage=storage, options=SMALL) as log:
        log.append_many([b"v"] * 9)
        kept = KeptClaim(storage, "c", HOUR_S)
        if operation == "write":
            kept.take(1)
        fault = storage.fail(operation, pattern, times=None, errno=number)
        with pytest.raises(StorageError) if number == errno.EIO else nullcontext():
            kept.take(1)
        assert not kept.keep(5, now=True) and kept.errno == number
        assert ("can only be read" in kept.trouble) is (number == errno.EROFS)
        assert kept.is_time(5) is (number == errno.EIO), "a folder that can only be read is asked rarely"
        fault.cancel()
        assert kept.keep(5, now=True) and (kept.first_lsn, kept.trouble) == (5, "")
        assert [c.first_lsn for c in log.claims()] == [5]


def test_a_lost_claim_is_reported_once_and_taken_again(tmp_path: Path) -> None:
    """Drop a claim, and trim past another: the next call raises it, and the one after takes the claim again."""
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        log.append_many([b"v"] * 9)
        kept = KeptClaim(tmp_path / "log", "c", HOUR_S)
        assert kept.keep(2) and not kept.is_time(2) and kept.line() == "LSN 2 and later, held"
        log.drop_claim("c")
        with pytest.raises(ClaimError):
            kept.keep(3)
        assert kept.line().startswith("none: ClaimError") and kept.is_time(3)
        assert kept.keep(3, moves=False) and kept.keep(4, moves=False) and kept.first_lsn == 3
        log.drop_claim("c")
        assert log.trim(5) == 5
        with pytest.raises(GapError):
            kept.keep(4)
        assert kept.keep(6) and [c.first_lsn for c in log.claims()] == [6]
        kept.release()
        assert log.claims() == [] and kept.line() == "none"
