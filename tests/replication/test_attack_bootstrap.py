"""Attacks on a bootstrap's folder and on the watch of a log's end: what is left half done is mended or goes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import walkit
from tests.replication.callers import WAIT_S, until
from tests.replication.test_bootstrap import assert_equal, follower, gathered, killed, trimmed
from walkit._threads import LogThread
from walkit.models import CrashingStorage
from walkit.replication import Primary, promote
from walkit.replication.end_watch import EndWatch


def test_a_promotion_in_the_midst_of_a_bootstrap_leaves_no_parts(tmp_path: Path) -> None:
    """Kill a bootstrap among its parts and promote the replica: no part of the other log stays, and it is written."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("write", "bootstrap-*.part", 20))
    assert gathered(tmp_path / "r")
    assert not promote(tmp_path / "r").already
    assert gathered(tmp_path / "r") == []
    with walkit.open(tmp_path / "r") as promoted:
        promoted.append(b"new")
    assert walkit.verify(tmp_path / "r").ok


@pytest.mark.parametrize("missing", [0, -1])
def test_a_ready_bootstrap_whose_part_is_gone_begins_again(tmp_path: Path, missing: int) -> None:
    """Kill a bootstrap that is ready, remove its first or last part: the next run fetches it anew and ends equal."""
    with trimmed(tmp_path / "p") as log, Primary(log) as primary:
        assert killed(tmp_path / "r", primary, log.acked_lsn, ("replace", "*.segment", 1))
        parts = [name for name in gathered(tmp_path / "r") if name.endswith(".part")]
        (tmp_path / "r" / parts[missing]).unlink()
        with follower(tmp_path / "r", primary) as replica:
            replica.wait_for(log.append(b"the last").last_lsn, WAIT_S)
            assert_equal(log, replica)
    assert walkit.verify(tmp_path / "r").ok
    assert gathered(tmp_path / "r") == []


def test_a_watch_whose_thread_could_not_start_watches_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the thread of a watch once, then add again: the second callback is called."""
    watch, told = EndWatch(CrashingStorage(), lambda: (next(ends), 0)), threading.Event()
    ends = iter(range(1 << 60))

    def refused(_: LogThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(LogThread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            watch.add(lambda: None)
    unwatch = watch.add(told.set)
    try:
        until(told.is_set, "the news")
    finally:
        unwatch()
