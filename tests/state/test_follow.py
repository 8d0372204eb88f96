"""A machine that follows a log: in order, never ahead of acknowledged records, without piling frames up."""

from __future__ import annotations

import threading

import pytest

from walkit.commit.frame import SealedFrame
from walkit.commit.ports import LogPorts
from walkit.format.body import Columns
from walkit.format.layout import HAS_KEY, HAS_VALUE
from walkit.log.open import open_writer
from walkit.models import CrashingStorage
from walkit.record import Batch
from walkit.state import Follower, KeyedTable, replay
from walkit.state.applier import FRAMES_WAITING_MAX
from walkit.testing.state import picture


def frame(first_lsn: int, keys: list[bytes]) -> SealedFrame:
    """An acknowledged frame that puts these keys."""
    columns = Columns(len(keys), 1 | HAS_KEY | HAS_VALUE, keys, keys)
    return SealedFrame(
        (),
        first_lsn=first_lsn,
        count=len(keys),
        position=0,
        footprint=64,
        header_crc=0,
        buffers=[],
        user_bytes=0,
        columns=columns,
    )


def test_feeding_only_queues() -> None:
    """Fed frames are applied by catch_up, not before, as applied_lsn shows."""
    table = KeyedTable()
    follower = Follower(table, 0)
    follower.feed(frame(1, [b"a", b"b"]))
    follower.feed(frame(3, [b"c"]))
    assert (len(table), follower.applied_lsn, len(follower.frames)) == (0, 0, 2)
    follower.catch_up()
    assert (list(table), follower.applied_lsn, len(follower.frames)) == ([b"a", b"b", b"c"], 3, 0)


def test_helping_never_waits() -> None:
    """While another thread holds the lock apply_if_free returns at once, and feed keeps taking frames."""
    table = KeyedTable()
    follower = Follower(table, 0)
    with follower.lock:
        for lsn in range(1, FRAMES_WAITING_MAX + 10):
            follower.feed(frame(lsn, [b"%d" % lsn]))
        follower.apply_if_free()
        assert len(table) == 0
    follower.apply_if_free()
    assert len(table) == follower.applied_lsn == FRAMES_WAITING_MAX + 9


@pytest.mark.parametrize("finished", [False, True])
def test_an_interrupted_frame_is_applied_once(finished: bool) -> None:
    """Ctrl-C before the table has a frame, or right after: it stays first in the queue, and is in the table once."""
    strikes = [KeyboardInterrupt]

    class Struck(KeyedTable):
        def apply(self, batch: Batch) -> None:
            struck = strikes and batch.first_lsn == 2
            if struck and not finished:
                raise strikes.pop()
            super().apply(batch)
            if struck:
                raise strikes.pop()

    table = Struck()
    follower = Follower(table, 0)
    for lsn in (1, 2, 3):
        follower.feed(frame(lsn, [b"%d" % lsn]))
    with pytest.raises(KeyboardInterrupt):
        follower.catch_up()
    assert follower.applied_lsn == 1
    follower.catch_up()
    assert (list(table), follower.applied_lsn) == ([b"1", b"2", b"3"], 3)


def test_following_a_live_log_equals_its_replay() -> None:
    """Four writers append, delete and transact while the state is asked for: it ends as the log's replay does."""
    table = KeyedTable()
    follower = Follower(table, 0)
    with open_writer(CrashingStorage(), "x", ports=LogPorts(ack_sink=follower.feed)) as log:

        def write(writer: int) -> None:
            for i in range(150):
                key = b"%d" % (i * 7 % 20)
                if i % 5 == 4:
                    log.delete(key)
                elif i % 5 == 3:
                    with log.transaction() as tx:
                        tx.put(key, b"t%d" % writer)
                        tx.append(b"event")
                        tx.delete(b"other")
                else:
                    log.append(b"%d-%d" % (writer, i), key)
                follower.apply_if_free()
                assert follower.applied_lsn <= log.acked_lsn

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        follower.catch_up()
        replayed = KeyedTable()
        replay(log, replayed)
        assert follower.applied_lsn == log.acked_lsn == 4 * (120 + 90)
        assert picture(table) == picture(replayed)
