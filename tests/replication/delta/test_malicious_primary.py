"""Delta readers of a primary that lies: the state is the shared log's, or a typed error ends the reader."""

from __future__ import annotations

import os
import shutil
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick
from tests.replication.delta.test_reader import expected
from tests.replication.forged_messages import serving
from tests.replication.proxy import TcpProxy
from tests.support.logs import tiny
from tests.support.threads import Task, wait_until
from walkit._internal.threads import LogThread
from walkit.errors import (
    DivergenceError,
    GapError,
    LogClosedError,
    LogLockedError,
    OptionsError,
    StorageError,
    WalkitError,
)
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader, FrameIdentity, PreparedBody, seal_frame
from walkit.format.layout import ALIGNMENT_BUFFERED
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import FaultyStorage
from walkit.replication import DeltaOptions, DeltaReader, Primary, ReplayLimits, ReplicaFailedError
from walkit.replication.delta import opening as delta_opening
from walkit.replication.delta import reader_loop as delta_loop
from walkit.replication.delta.loader import RangeLoader, Reached, Workers
from walkit.replication.delta.messages import (
    DeltaEnd,
    PollAnswer,
    PollRefusal,
    PollRequest,
    checksum_of,
    delta_frames,
)
from walkit.replication.delta.server_feed import DeltaFeed
from walkit.replication.delta.state import ReaderState
from walkit.replication.delta.wire import POLL_METHOD, decode_poll, encode_reply
from walkit.replication.logs.source import StoredSource
from walkit.replication.replica.rewind import rewind
from walkit.replication.transport.grpc_common import grpc
from walkit.segments.manifest_store import load_manifest
from walkit.state.table import KeyedTable
from walkit.storage import FileStorage
from walkit.storage.address import storage_at

Reply = PollAnswer | PollRefusal | bytes | None
Lie = Callable[[PollAnswer, PollRequest], Reply]
"""Makes of the right answer what is said: another one, a refusal, bytes, or None for nothing at all."""


class MaliciousPrimary:
    """Answers polls of an open log with what `lie` makes of the answers; `lie` may be replaced at any time."""

    def __init__(self, log: walkit.WriteAheadLog, lie: Lie, options: DeltaOptions | None = None) -> None:
        self.feed = DeltaFeed(log, options)
        self.lie = lie
        self.lies = 0
        """Answers that were not the right one."""
        self._served = serving(POLL_METHOD, grpc.unary_stream_rpc_method_handler(self._poll))
        self.address = ""

    def _poll(self, data: bytes, context: Any) -> Iterator[bytes]:
        request = decode_poll(data)
        call = self.feed.begin(request)
        context.add_callback(lambda: self.feed.on_disconnect(call))
        answer = self.feed.wait(call)
        reply = self.lie(answer, request) if isinstance(answer, PollAnswer) else answer
        self.lies += reply is not answer
        if reply is None:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer")
            return
        yield reply if isinstance(reply, bytes) else encode_reply(reply)

    def __enter__(self) -> Self:
        self.address = self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.feed.stop()
        self._served.__exit__(None, None, None)


def frame_of(header: FrameHeader, body: bytes, count: int) -> bytes:
    """Return an intact frame to replace another one: with this body, which may be invalid, of so many records."""
    prepared = PreparedBody(count, header.flags, 0, [body], len(body), len(body), crc32c(body))
    buffers, _, _ = seal_frame(
        prepared,
        FrameIdentity(header.log_id, header.epoch, header.epoch_id),
        position=header.position,
        first_lsn=header.first_lsn,
        durable_position=header.durable_position,
        chain=header.chain,
        sealed_us=header.sealed_us,
        alignment=ALIGNMENT_BUFFERED,
    )
    return b"".join(buffers)


def sealed(answer: PollAnswer, **facts: Any) -> PollAnswer:
    """Return the answer with other facts, under the checksum that is right for them."""
    changed = replace(answer, **facts)
    return (
        changed
        if changed.delta is None or changed.first is None
        else replace(changed, crc=checksum_of(changed))
    )


LIMITS = ReplayLimits(loads_max=3, load_bytes=2048, bytes_max=8192, tries_max=3)


def _with_delta(lie: Callable[[Any], PollAnswer]) -> Lie:
    """Tell this lie of answers that have frames, and the truth else."""
    return lambda answer, _: lie(answer) if answer.delta else answer


def _last_frame_left_out(answer: PollAnswer) -> PollAnswer:
    *_, (header, _) = delta_frames(answer)
    assert answer.delta is not None
    return sealed(answer, delta=answer.delta[: -header.footprint])


def _bodies_that_are_none(answer: PollAnswer) -> PollAnswer:
    frames = delta_frames(answer)
    data = b"".join(frame_of(header, bytes(header.body_stored_bytes), header.records) for header, _ in frames)
    return sealed(answer, delta=data)


def _other_session(answer: PollAnswer, request: PollRequest) -> PollAnswer:
    return replace(answer, session_id=answer.session_id ^ 1, session_epoch=1)


def _every_other(lie: Lie) -> Lie:
    """Tell a lie at every other poll."""
    polls = iter(range(1 << 30))
    return lambda answer, request: lie(answer, request) if next(polls) % 2 else answer


HARMLESS: dict[str, Lie] = {
    "less than it says": _with_delta(_last_frame_left_out),
    "more than it says": _with_delta(lambda a: sealed(a, end=DeltaEnd(a.end.lsn - 1, a.end.position))),
    "a beginning that is later": _with_delta(lambda a: sealed(a, first=DeltaEnd(a.first.lsn + 1, 1 << 40))),
    "a wrong checksum": _with_delta(lambda a: replace(a, crc=a.crc ^ 1)),
    "no checksum": _with_delta(lambda a: replace(a, crc=None)),
    "no range": _with_delta(lambda a: replace(a, first=None)),
    "the frames twice": _with_delta(lambda a: sealed(a, delta=2 * a.delta)),
    "junk for frames": _with_delta(lambda a: sealed(a, delta=bytes(len(a.delta)))),
    "invalid bodies, in intact frames": _with_delta(_bodies_that_are_none),
    "a delta that is empty": lambda a, _: sealed(a, first=DeltaEnd(), delta=b""),
    "an end with an invalid position": lambda a, _: sealed(
        a, end=DeltaEnd(a.end.lsn, 0), delta=None, first=None
    ),
    "an end whose position is beyond": lambda a, _: sealed(a, end=DeltaEnd(a.end.lsn, 1 << 40), delta=None),
    "nothing new, forever": lambda a, _: replace(a, end=DeltaEnd(1, 64), first=None, delta=None),
    "no answer at all": lambda *_: None,
    "no message": lambda *_: b"",
    "a message that is too large": lambda *_: bytes((32 << 20) + (64 << 10)),
    "an older number": lambda a, _: replace(a, session_epoch=max(a.session_epoch - 1, 0)),
    "a number that is far ahead": lambda a, _: replace(a, session_epoch=1 << 62),
    "another session at every poll": _other_session,
    "no session": lambda a, _: replace(a, session_id=0),
    "a version that is unknown": lambda a, _: replace(a, version=9),
    "closed, and then answers": _every_other(lambda *_: PollRefusal(reason="closed", message="over")),
    "left": _every_other(lambda *_: PollRefusal(reason="left", message="gone")),
    "an unknown reason": lambda *_: PollRefusal(reason="\x1b[2J", message="\x1b]0;owned\x07" * 20),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_lie_costs_time_alone(
    stack: ExitStack, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change every answer in one way: the reader has the log's state soon, and shows plain text."""
    monkeypatch.setattr(delta_loop, "CHECK_MS", 50.0)
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    log.append(b"first", key=b"k")
    primary = stack.enter_context(MaliciousPrimary(log, HARMLESS[name]))
    reader = stack.enter_context(
        DeltaReader(tmp_path / "log", primary.address, limits=LIMITS, backoff=quick())
    )
    turn, deadline = 0, time.monotonic() + WAIT_S
    while turn < 3 or not primary.lies:  # a reader that is ahead by its own looks hears no lie
        log.append_many([b"%d" % turn * 100] * 9, [b"%d" % n for n in range(9)])
        lsn = log.append(b"one", key=b"%d" % turn).last_lsn
        reader.wait_for(lsn, WAIT_S)
        assert dict(reader.state.items()) == expected(log, lsn)
        assert time.monotonic() < deadline, "no answer was changed"
        turn += 1
    assert reader.error is None
    assert reader.status().line().isprintable()


LASTING: dict[str, tuple[Lie, type[Exception]]] = {
    "another log": (lambda a, _: sealed(a, log_id=1), DivergenceError),
    "no log": (lambda a, _: sealed(a, log_id=0), DivergenceError),
    "ends of an unknown epoch": (lambda a, _: replace(a, epoch_id=1, delta=None), DivergenceError),
    "another log at every other poll": (_every_other(lambda a, _: sealed(a, log_id=1)), DivergenceError),
    "frames of an unknown epoch": (_with_delta(lambda a: sealed(a, epoch_id=1)), DivergenceError),
    "records that are not there": (
        lambda a, _: replace(a, end=DeltaEnd(a.end.lsn + 99, a.end.position), first=None, delta=None),
        StorageError,
    ),
}


@pytest.mark.parametrize("name", LASTING)
def test_a_lie_about_which_log_it_is_ends_the_reader(
    stack: ExitStack, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name another log, another epoch, records that are not there: a typed error, and a state that the log had."""
    monkeypatch.setattr(delta_opening, "GRACE_MS", 50.0)
    lie, kind = LASTING[name]
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    lsn = log.append(b"first", key=b"k").last_lsn
    primary = stack.enter_context(MaliciousPrimary(log, lie))
    reader = stack.enter_context(
        DeltaReader(tmp_path / "log", primary.address, limits=LIMITS, backoff=quick())
    )

    def ended() -> bool:
        nonlocal lsn
        # One after the other: what is behind is read from the log, without an answer.
        if reader.applied_lsn >= lsn:
            lsn = log.append(b"%d" % lsn, key=b"k").last_lsn
        return reader.error is not None

    wait_until(ended)
    with pytest.raises(kind):
        reader.wait_for(lsn + 1, WAIT_S)
    assert dict(reader.state.items()) == expected(log, reader.applied_lsn)


@pytest.mark.parametrize(("followed", "buffer_bytes"), [("log", 0), ("copy", 0), ("log", 1 << 15)])
def test_the_primary_of_a_copy_is_not_followed(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: str, buffer_bytes: int
) -> None:
    """Follow a log by the primary of its copy, idle or with frames, and the reverse: DivergenceError, no merging."""
    monkeypatch.setattr(delta_opening, "GRACE_MS", 50.0)
    monkeypatch.setattr(delta_loop, "UNPROVEN_MS", 20.0)
    with walkit.open(tmp_path / "log") as log:
        log.append(b"1", key=b"k")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    ours = stack.enter_context(walkit.open(tmp_path / "log"))
    copy = stack.enter_context(walkit.open(tmp_path / "copy"))
    served = copy if followed == "log" else ours
    primary = stack.enter_context(Primary(served, delta=DeltaOptions(buffer_bytes=buffer_bytes)))
    reader = stack.enter_context(DeltaReader(tmp_path / followed, primary.address, backoff=quick()))
    reader.wait_for(1, WAIT_S)
    wait_until(lambda: reader.statistics().polls > 1)
    assert reader.error is None  # both have the same records still
    ours.append(b"2", key=b"k")
    if buffer_bytes:
        copy.append(b"other 2", key=b"k")
    with pytest.raises(DivergenceError, match="another copy"):
        reader.wait_for(3, WAIT_S)
    assert reader.state[b"k"] in ((b"1", b"2") if followed == "log" else (b"1",))


def test_a_backup_written_beside_the_log_is_not_followed(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace a log that a process still writes by a backup, and write that: none of the first one's records."""
    monkeypatch.setattr(delta_opening, "GRACE_MS", 50.0)
    monkeypatch.setattr(delta_loop, "CHECK_MS", 1e9)
    place = tmp_path / "log"
    first = stack.enter_context(walkit.open(place))
    first.append(b"1", key=b"k")
    primary = stack.enter_context(Primary(first))
    shutil.copytree(place, tmp_path / "backup")
    place.rename(tmp_path / "elsewhere")
    (tmp_path / "backup").rename(place)
    second = stack.enter_context(walkit.open(place))
    for n in range(2, 6):
        second.append(b"second %d" % n, key=b"k")
        first.append(b"first %d" % n, key=b"k")
    reader = stack.enter_context(DeltaReader(place, primary.address, backoff=quick()))
    reader.wait_for(5, WAIT_S)
    wait_until(lambda: reader.statistics().polls > 1 or reader.error is not None)
    first.append(b"first 6", key=b"k")
    with pytest.raises(DivergenceError):
        reader.wait_for(6, WAIT_S)
    assert reader.state == {b"k": b"second 5"}


def test_frames_of_an_opening_that_is_not_in_the_manifest_yet_are_read(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show a reader the manifest of before an opening for a while, as a mounted folder may: it has the log's state."""
    place = tmp_path / "log"
    walkit.open(place).close()
    older = load_manifest(FileStorage(str(place)))
    log = stack.enter_context(walkit.open(place))
    primary = stack.enter_context(Primary(log))
    monkeypatch.setattr(StoredSource, "manifest", lambda source: older)
    reader = stack.enter_context(DeltaReader(place, primary.address))
    for n in range(1, 4):
        reader.wait_for(log.append(b"%d" % n, key=b"k").last_lsn, WAIT_S)
    assert reader.statistics().deltas == 0
    monkeypatch.undo()
    wait_until(lambda: reader.wait_for(log.append(b"x").last_lsn, WAIT_S) and reader.statistics().deltas > 0)
    assert reader.error is None


def test_a_log_that_is_put_away_under_its_primary_is_noticed(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rename a log's folder under primary and reader, put another log there: DivergenceError, while it is answered."""
    monkeypatch.setattr(delta_loop, "CHECK_MS", 50.0)
    place = tmp_path / "log"
    log = stack.enter_context(walkit.open(place))
    primary = stack.enter_context(Primary(log))
    reader = stack.enter_context(DeltaReader(place, primary.address, backoff=quick()))
    reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S)
    wait_until(lambda: reader.status().state == "following")
    place.rename(tmp_path / "elsewhere")
    reader.wait_for(log.append(b"2", key=b"k").last_lsn, WAIT_S)  # the primary has its files open
    walkit.open(place).close()
    wait_until(lambda: reader.error is not None)
    assert isinstance(reader.error, DivergenceError)


def test_no_frame_is_applied_after_a_hole(tmp_path: Path) -> None:
    """Give a state the frames after a record that it lacks: GapError, and it announces what it has."""
    with walkit.open(tmp_path / "log") as log:
        for n in range(3):
            log.append(b"%d" % n, key=b"k")
    with closing(_loader_of(tmp_path / "log")) as loader:
        frames = loader.load(1, 3, DeltaEnd(3), Reached(0, 0)).frames
    state = ReaderState()
    assert state.apply(frames[:1], 1)[0] == 1
    with pytest.raises(GapError):
        state.apply(frames[2:], 3)
    assert (state.applied_lsn, state[b"k"]) == (1, b"0")
    assert state.apply(frames, 3)[0] == 2


@pytest.mark.parametrize("openings", [1, 2])
def test_frames_of_two_histories_are_never_in_one_state(tmp_path: Path, openings: int) -> None:
    """Give a state frames of a log, then those of a copy that was written on: DivergenceError, and none is in it."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"1", key=b"k")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    for place, times in (("log", openings), ("copy", 1)):
        for _ in range(times):
            with walkit.open(tmp_path / place) as log:
                for _ in range(3 - times):
                    log.append(place.encode(), key=b"k")
    state = ReaderState()
    for place, first, last in (("log", 1, 2), ("copy", 3, 3)):
        with closing(_loader_of(tmp_path / place)) as loader:
            frames = loader.load(first, last, DeltaEnd(last), Reached(0, 0)).frames
        if place == "log":
            state.apply(frames, last)
            continue
        with pytest.raises(DivergenceError, match="two histories"):
            state.apply(frames, last)
    assert (state.applied_lsn, state[b"k"]) == (2, b"log")


def test_a_range_is_loaded_in_pieces_whatever_its_ends_say(tmp_path: Path) -> None:
    """Load a whole log whose end is named without a position: a bounded part at a time, and all of it in order."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        for n in range(200):
            log.append(bytes(500), key=b"%d" % n)
    loader = _loader_of(tmp_path / "log", stop_at_bytes=4_000)
    at = 0
    while at < 200:
        found = loader.load(at + 1, 200, DeltaEnd(200, 0), Reached(0, 0))
        assert at < found.end.lsn <= 200 and found.size_bytes < 5_000
        at = found.end.lsn
    loader.close()


def test_what_is_packed_a_thousandfold_is_unpacked_a_part_at_a_time(tmp_path: Path) -> None:
    """Apply 40 frames that have 1 MiB each once they are unpacked: a few of them are in memory at a time."""
    with walkit.open(tmp_path / "log", options=walkit.LogOptions(codec="zstd")) as log:
        for n in range(40):
            log.append(bytes(1 << 20), key=b"%d" % (n % 2))
    with closing(_loader_of(tmp_path / "log")) as loader:
        found = loader.load(1, 40, DeltaEnd(40, 0), Reached(0, 0))
    assert found.end.lsn == 40 and found.size_bytes < 1 << 20
    state = ReaderState()
    tracemalloc.start()
    try:
        assert state.apply(found.frames, 40)[0] == 40
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert state == {b"0": bytes(1 << 20), b"1": bytes(1 << 20)}


def test_files_of_a_log_that_is_read_from_its_beginning_are_few(stack: ExitStack, tmp_path: Path) -> None:
    """Hang one load and read a log of many segments beside it: its file and one more are open, and none at the end."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        for n in range(400):
            log.append(bytes(1_000), key=b"%d" % n)
    storage = FaultyStorage(FileStorage(str(tmp_path / "log")))
    loader = _loader_of(storage)
    hang = storage.hang("read", "*.segment", nth=2)
    slow = Task(lambda: loader.load(1, 10, DeltaEnd(400, 0), Reached(0, 0)))
    stack.callback(slow.result)
    stack.callback(hang.release)
    assert hang.entered.wait(WAIT_S)
    for lsn in range(1, 300, 10):
        loader.load(lsn, lsn + 9, DeltaEnd(400, 0), Reached(0, 0))
        assert _open_segments(tmp_path) <= 3
    loader.close()
    hang.release()
    slow.result()
    assert _open_segments(tmp_path) == 0


def _loader_of(place: Any, **options: Any) -> RangeLoader:
    """Return a loader of a log's ranges."""
    storage = storage_at(place)
    return RangeLoader(StoredSource(storage), load_manifest(storage).log_id, **options)


def _open_segments(place: Path) -> int:
    """Return how many descriptors of this process are of segments below a folder."""
    names = [
        os.readlink(f"/proc/self/fd/{n}")
        for n in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{n}")
    ]
    return sum(name.startswith(str(place)) and ".segment" in name for name in names)


@pytest.mark.parametrize(
    "wrong", [{"loads_max": 0}, {"load_bytes": -1}, {"bytes_max": 1.5}, {"tries_max": True}, {"parts_max": 0}]
)
def test_limits_with_which_nothing_would_come_are_refused(wrong: dict[str, Any]) -> None:
    """Make limits of no loads, of no bytes and of another type: an OptionsError that names them."""
    with pytest.raises(OptionsError) as refused:
        ReplayLimits(**wrong)
    assert refused.value.option == f"limits.{next(iter(wrong))}"


def test_a_state_that_has_a_part_of_a_range_is_never_saved(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run out of memory during a range: the reader ends, and no checkpoint has a part of it."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own"))
    assert reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S) == reader.checkpoint() == 1
    right = KeyedTable.apply_arrow

    def runs_out(table: KeyedTable, batch: Any) -> None:
        right(table, batch)
        raise MemoryError("no memory for the next batch")

    monkeypatch.setattr(KeyedTable, "apply_arrow", runs_out)
    log.append(b"2", key=b"k")
    wait_until(lambda: reader.error is not None)
    with pytest.raises(WalkitError, match="no memory"):
        reader.checkpoint()
    with pytest.raises(ReplicaFailedError, match="in part"):
        reader.state.get(b"k")
    assert "LSN 1" in repr(reader.state) and "live keys" in reader.state._repr_html_()
    monkeypatch.undo()
    reader.stop()
    with DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own") as again:
        assert again.status().checkpoint_lsn == 1
        assert again.wait_for(2, WAIT_S) == 2 and again.state == {b"k": b"2"}


def test_loads_continue_without_a_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give one thread and then none: its jobs are done by that one; with none at all it is a RuntimeError."""
    workers, done = Workers(3, "walkit-test"), []
    started = LogThread.start

    def none(thread: LogThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LogThread, "start", none)
    with pytest.raises(RuntimeError):
        workers.do(lambda: None)
    monkeypatch.setattr(LogThread, "start", started)
    workers.do(lambda: done.append(1))
    monkeypatch.setattr(LogThread, "start", none)
    workers.do(lambda: done.append(2))
    workers.stop()
    assert done == [1, 2]


# -- late answers, hung storage, forks, cut histories


def test_a_late_answer_is_not_a_cut_history(stack: ExitStack, tmp_path: Path) -> None:
    """Hold the first answer back while the reader reads the log past it: it continues, and is answered again."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    log.append(b"1", key=b"k")
    primary = stack.enter_context(Primary(log))
    proxy = stack.enter_context(TcpProxy(primary.address))
    proxy.hold_after = b"walkit.replication"
    reader = stack.enter_context(DeltaReader(tmp_path / "log", proxy.address, backoff=quick()))
    wait_until(lambda: primary.delta_statistics().sessions > 0)
    for n in range(2, 6):
        reader.wait_for(log.append(b"%d" % n, key=b"k").last_lsn, WAIT_S)
    proxy.hold_after = b""
    proxy.answers_flow.set()
    polls = reader.statistics().polls
    wait_until(lambda: reader.statistics().polls > polls or reader.error is not None)
    assert reader.error is None
    assert reader.wait_for(log.append(b"6", key=b"k").last_lsn, WAIT_S) == 6


def test_no_frame_of_an_opening_is_applied_before_its_history_is_known(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Put an older log back while the manifest cannot be read: nothing of it is applied, then it is refused."""
    place = tmp_path / "log"
    with walkit.open(place) as log:
        log.append(b"1", key=b"k")
    shutil.copytree(place, tmp_path / "backup")
    storage = FaultyStorage(FileStorage(str(place)))
    with walkit.open(place) as log, Primary(log) as primary:
        address = primary.address
        log.append(b"2", key=b"k")
        reader = stack.enter_context(DeltaReader(storage, address, backoff=quick()))
        reader.wait_for(2, WAIT_S)
        with DeltaReader(place, address, checkpoint=tmp_path / "own") as saved:
            saved.wait_for(2, WAIT_S)
    fault = storage.fail("open", MANIFEST_NAME, times=None)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with walkit.open(place) as log:
        log.append(b"other 2", key=b"k")
        stack.enter_context(Primary(log, address))
        polls = reader.statistics().polls
        wait_until(lambda: reader.statistics().polls > polls + 1 or reader.error is not None)
        log.append(b"other 3", key=b"k")
        wait_until(lambda: reader.statistics().polls > polls + 4 or reader.error is not None)
        assert reader.state == {b"k": b"2"}
        fault.cancel()
        with pytest.raises(DivergenceError):
            reader.wait_for(3, WAIT_S)
        assert reader.state == {b"k": b"2"}
        with pytest.raises(DivergenceError):
            DeltaReader(place, address, checkpoint=tmp_path / "own")


def test_a_stop_does_not_wait_for_a_storage_that_hangs(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hang the storage of checkpoints, then that of the log's manifest: `stop` returns, and names the hung threads."""
    monkeypatch.setattr(delta_loop, "STOP_S", 0.2)
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = FaultyStorage(FileStorage(str(tmp_path / "own")))
    reader = DeltaReader(tmp_path / "log", primary.address, checkpoint=own, checkpoint_s=0)
    hang = own.hang("sync", "*")
    stack.callback(reader.stop)  # once nothing hangs, it gives the folder back
    stack.callback(hang.release)
    reader.start()
    reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S)
    assert hang.entered.wait(WAIT_S)
    Task(reader.stop).result()
    assert "hangs" in reader.status().trouble
    with pytest.raises(LogLockedError):  # what hangs may still write there
        DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own")


def test_a_forked_child_changes_nothing_of_its_parents_reader(stack: ExitStack, tmp_path: Path) -> None:
    """Stop, wait and take a checkpoint in a forked child: errors there; the parent keeps claim, folder and threads."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = tmp_path / "own"
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address, checkpoint=own))
    reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S)
    child = os.fork()
    if not child:
        code = 1
        try:
            for act in (lambda: reader.wait_for(2, WAIT_S), reader.checkpoint, reader.start):
                with pytest.raises(LogClosedError):
                    act()
            reader.stop()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert log.claims()
    with pytest.raises(LogLockedError):
        DeltaReader(tmp_path / "log", primary.address, checkpoint=own)
    assert reader.wait_for(log.append(b"2", key=b"k").last_lsn, WAIT_S) == 2
    assert reader.checkpoint() == 2


class Exhausted(FileStorage):
    """A folder under a process that has no memory left, while `now` is set."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.now = threading.Event()

    def open(self, name: str, mode: Any) -> Any:
        """Refuse."""
        if self.now.is_set():
            raise MemoryError("no memory for a checkpoint")
        return super().open(name, mode)


def test_an_error_on_the_thread_of_claim_and_checkpoints_is_not_silent(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Have checkpoints raise what no storage should: the reader ends with an error that names it."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = Exhausted(str(tmp_path / "own"))
    reader = DeltaReader(tmp_path / "log", primary.address, checkpoint=own, checkpoint_s=0)
    own.now.set()
    with reader:
        log.append(b"1", key=b"k")
        wait_until(lambda: reader.error is not None)
        assert "no memory" in str(reader.error)
        own.now.clear()


@pytest.mark.parametrize("how", ["rewind", "backup"])
def test_a_cut_history_is_noticed_without_a_primary(stack: ExitStack, tmp_path: Path, how: str) -> None:
    """Cut the log under a reader that reads it alone, and write fewer other records: DivergenceError, with no wait."""
    place, first_cut = tmp_path / "log", 6
    with walkit.open(place) as log:
        for n in range(1, first_cut):
            log.append(b"%d" % n, key=b"%d" % n)
    shutil.copytree(place, tmp_path / "backup")
    with walkit.open(place) as log:
        for n in range(first_cut, 20):
            log.append(b"%d" % n, key=b"%d" % n)
    source = StoredSource(FileStorage(str(place)))
    reader = stack.enter_context(DeltaReader(place, "127.0.0.1:9", backoff=quick()))
    assert reader.wait_for(19, WAIT_S) == source.durable()[0] == 19
    if how == "rewind":
        rewind(place, first_cut, force=True)
    else:
        place.rename(tmp_path / "gone")
        shutil.copytree(tmp_path / "backup", place)
    with walkit.open(place) as log:
        lsn = log.append(b"other", key=b"k").last_lsn
        assert lsn == first_cut
        wait_until(lambda: source.durable()[0] == lsn)
        wait_until(lambda: reader.error is not None)
    assert isinstance(reader.error, DivergenceError) and reader.error.first_lsn <= first_cut
    assert b"k" not in reader.state
