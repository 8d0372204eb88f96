"""LSNs and times as callers give them: numpy's whole numbers are taken, others never reach a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import walkit
from tests.support.logs import TINY
from walkit._internal.arguments import NUMBER_MAX
from walkit.format.manifest import LogEnd, Manifest, encode_base
from walkit.models import CrashingStorage

LOG: dict[str, Callable[[walkit.WriteAheadLog, Any], object]] = {
    "read": lambda log, lsn: list(log.read(lsn, lsn)),
    "read_batches": lambda log, lsn: log.read_batches(lsn),
    "to_arrow": lambda log, lsn: log.to_arrow(1, lsn),
    "follow": lambda log, lsn: next(log.follow(lsn)),
    "hold": lambda log, lsn: log.hold("name", lsn),
    "claim": lambda log, lsn: log.hold("name", 1).advance(lsn),
    "cursor": lambda log, lsn: log.cursor("name", start_lsn=lsn),
    "advance": lambda log, lsn: log.cursor("name").advance(lsn),
    "drain": lambda log, lsn: list(log.drain(lsn)),
    "trim": lambda log, lsn: log.trim(lsn),
}
NO_LSN = (1.5, 2.0, "2", b"2", True, 1 << 64, NUMBER_MAX + 1, np.float64(2), math.nan)


def a_log() -> tuple[walkit.WriteAheadLog, CrashingStorage]:
    """A log of five records, and its storage."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=TINY)
    log.append_many([b"value"] * 5)
    return log, storage


@pytest.mark.parametrize("name", LOG)
def test_a_wrong_lsn_is_refused_and_the_log_opens_again(name: str) -> None:
    """Give each call every wrong LSN: OptionsError each time, and the log opens with all its records."""
    log, storage = a_log()
    for given in NO_LSN:
        with pytest.raises(walkit.OptionsError):
            LOG[name](log, given)
    log.close()
    with walkit.open(storage=storage) as again:
        assert [r.lsn for r in again.read()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", LOG)
def test_whole_numbers_of_numpy_are_lsns(name: str) -> None:
    """Give each call the kind of number that a pandas column holds: taken, and the log opens again."""
    log, storage = a_log()
    LOG[name](log, np.int64(3))
    log.append(b"after")
    log.close()
    with walkit.open(storage=storage) as again:
        assert again.acked_lsn == 6


@pytest.mark.parametrize("timeout", [math.nan, "1", b"1", [1]])
def test_a_wrong_timeout_is_refused_before_the_record_is_queued(timeout: Any) -> None:
    """Append with each wrong timeout: OptionsError, and no record of it was appended."""
    log, _ = a_log()
    with pytest.raises(walkit.OptionsError, match="timeout"):
        log.append(b"never", timeout=timeout)
    log.append(b"sixth")
    assert [r.value for r in log.read(6)] == [b"sixth"]
    log.close()


@pytest.mark.parametrize("lsn", [1.5, -1, 1 << 64, "1", None, np.int64(1)])
def test_a_manifest_that_could_not_be_read_is_not_written(lsn: Any) -> None:
    """Encode a manifest whose end is a wrong LSN: refused."""
    manifest = Manifest(log_id=1)
    with pytest.raises((TypeError, ValueError)):
        encode_base(replace(manifest, end=LogEnd(last_lsn=lsn)))
