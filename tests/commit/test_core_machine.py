"""The ordering core as a state machine: any order of inputs, and the invariants after each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.commit.cores import (
    FIRST_CHAIN,
    WRONG_CORES,
    AcknowledgesAhead,
    CreditsLaterWrites,
    DropsTheLate,
    ForgetsTheTail,
    ForgetsWhatIsBefore,
    HoldsTheLanded,
    IgnoresTheLimit,
    LeavesTheSuffix,
    Piece,
    PromisesTooMuch,
    SyncsFromInFlight,
    header_of,
    make_core,
    make_room,
    seal_group,
)
from tests.support.examples import examples
from walkit.commit.core import OrderingCore
from walkit.commit.frame import SealedFrame, SyncPoint
from walkit.format.checksum import crc32c
from walkit.format.frame import MARKER_BODY

IDLE_US, INTERVAL_US = 500, 300


class CoreMachine(RuleBasedStateMachine):
    """Drives a core with one thread's worth of everything a driver may do, and keeps its own books.

    The books know when each write and sync began and ended, as numbers of steps; the core does not.
    """

    core_type: type[OrderingCore[Piece]] = OrderingCore

    @initialize(
        in_flight=st.integers(1, 4),
        completion=st.booleans(),
        durable_writes=st.booleans(),
        idle=st.booleans(),
        frames_in_window=st.integers(1, 6),
        limited=st.booleans(),
    )
    def begin(
        self,
        in_flight: int,
        completion: bool,
        durable_writes: bool,
        idle: bool,
        frames_in_window: int,
        limited: bool,
    ) -> None:
        """Make a core; with `durable_writes` a write is on stable storage by itself, else only syncs are.

        A `limited` one waits for replicas, too.
        """
        self.durable_writes, self.completion = durable_writes, completion
        self.core = make_core(
            self.core_type,
            in_flight_max=in_flight,
            completion_order=completion,
            reorder_window_bytes=frames_in_window * 4096,
            ack_when_durable=durable_writes,
            idle_marker_us=IDLE_US if idle else 0,
            interval_us=0 if durable_writes else INTERVAL_US,
        )
        self.limited = limited and not completion
        if self.limited:
            self.core.ack_limit_lsn, self.core.unacked_bytes_max = 100, 1 << 30
        self.lost: set[int] = set()
        self.step = self.now_us = 0
        self.waiting: list[Piece] = []
        self.frames: list[SealedFrame] = []
        self.pieces: list[Piece] = []
        self.written_at: dict[int, int] = {}
        self.acknowledged: list[SealedFrame] = []
        self.passed: list[SealedFrame] = []
        self.core.on_prefix = self.passed.append
        self.failed_from: int | None = None
        self.syncs_under_way: list[tuple[int, SyncPoint]] = []
        self.synced_from: list[int] = []
        self.marks = (100, 100, 100)
        self.failed = False

    def _tick_step(self) -> int:
        self.step += 1
        return self.step

    @rule(count=st.integers(1, 5), value_bytes=st.integers(0, 700))
    @precondition(lambda self: not self.failed)
    def submit(self, count: int, value_bytes: int) -> None:
        piece = Piece(count, value_bytes)
        self.core.submit(piece)
        self.waiting.append(piece)

    @rule(count=st.integers(1, 5))
    @precondition(lambda self: not self.failed)
    def submit_and_seal(self, count: int) -> None:
        """Do both at once, so that several frames in flight are common."""
        self.submit(count, 8)
        self.take_and_seal()

    @rule(data=st.data())
    @precondition(lambda self: self.waiting)
    def withdraw(self, data: Any) -> None:
        piece = data.draw(st.sampled_from(self.waiting))
        assert self.core.withdraw(piece)
        self.waiting.remove(piece)
        assert not self.core.withdraw(piece)

    @rule()
    def take_and_seal(self) -> None:
        group = list(self.core.take())
        under_way = sum(id(f) not in self.written_at for f in self.frames)
        reach = self.core.position + self.core.frame_bytes_max - self.core.written_position
        if (
            self.failed
            or not self.waiting
            or under_way >= self.core.in_flight_max
            or (self.unwritten() and reach > self.core.reorder_window_bytes)
        ):
            assert not group
            return
        size = sum(p.size_bytes for p in group)
        assert group == self.waiting[: len(group)] and group
        assert len(group) == 1 or size <= self.core.body_bytes_max
        if len(group) < len(self.waiting):
            assert size + self.waiting[len(group)].size_bytes > self.core.body_bytes_max
        self.waiting = self.waiting[len(group) :]
        self.pieces += group
        self._sealed(seal_group(self.core, group, self.now_us))

    def _sealed(self, frame: SealedFrame) -> None:
        header, previous = header_of(frame), self.frames[-1] if self.frames else None
        self.frames.append(frame)
        assert header.position == (previous.next_position if previous else 640) == frame.position
        assert header.first_lsn == (previous.last_lsn + 1 if previous else 101) == frame.first_lsn
        assert header.chain == (previous.header_crc if previous else FIRST_CHAIN)
        assert header.header_crc == frame.header_crc == crc32c(frame.buffers[0][:92])
        assert sum(map(len, frame.buffers)) == frame.footprint == header.footprint
        promised = [f for f in self.frames if f.next_position <= header.durable_position]
        assert all(self.on_stable_storage(f) for f in promised), "a promise that is not true"
        assert frame.next_position <= self.core.segment_end

    def unwritten(self) -> list[SealedFrame]:
        return [f for f in self.frames if f.position >= self.core.written_position]

    def on_stable_storage(self, frame: SealedFrame) -> bool:
        """Whether the frame is: written durably, or covered by a sync that began later and has ended."""
        written = self.written_at.get(id(frame))
        return written is not None and (
            self.durable_writes or any(began > written for began in self.synced_from)
        )

    @rule(data=st.data())
    def write(self, data: Any) -> None:
        candidates = [f for f in self.frames if id(f) not in self.written_at]
        if not candidates:
            return
        frame = data.draw(st.sampled_from(candidates))
        self.written_at[id(frame)] = self._tick_step()
        told = self.core.written(frame, durable=self.durable_writes)
        if self.failed_from is not None and frame.position >= self.failed_from:
            assert told == [], "what has failed is never acknowledged"
            return
        if self.completion:
            assert told == [frame], "a frame that has landed is acknowledged, and no other"
        self._acknowledged(told)

    def _acknowledged(self, told: list[SealedFrame]) -> None:
        """Check the core's latest acknowledgements: the contiguous written prefix up to the limit, each frame once."""
        prefix: list[SealedFrame] = []
        for each in self.frames:
            lost = each.position in self.lost
            if id(each) not in self.written_at or lost or each.last_lsn > self.core.ack_limit_lsn:
                break
            prefix.append(each)
        if not self.completion:
            new = [f.position for f in prefix[len(self.passed) - len(told) :]]
            assert [f.position for f in told] == new, "the contiguous written prefix, and nothing else"
        assert [f.position for f in self.passed] == [f.position for f in prefix], "in order, each frame once"
        assert all(f.state == "acked" for f in told)
        self.acknowledged += [f for f in told if f in self.frames]

    @rule(data=st.data())
    @precondition(lambda self: self.limited)
    def raise_limit(self, data: Any) -> None:
        """Replicas have more of the durable frames."""
        low, high = self.core.ack_limit_lsn, self.core.durable_lsn
        self.core.ack_limit_lsn = max(low, data.draw(st.integers(min(low, high), high)))
        self._acknowledged(self.core.acknowledge())

    @rule(late_us=st.integers(0, IDLE_US))
    @precondition(lambda self: self.limited)
    def fail_unacked(self, late_us: int) -> None:
        """Frames that were sealed so long ago are late: they fail, and no mark moves."""
        waiting = [f for f in self.core.unacked if f.submissions or f in self.frames]
        expected = [f for f in waiting if f.sealed_us <= self.now_us - late_us]
        error = TimeoutError("no replica")
        assert self.core.fail_unacked(error, self.now_us - late_us) == expected
        assert all(f.state == "failed" and f.error is error for f in expected)

    @rule()
    @precondition(lambda self: not self.durable_writes)
    def sync_begin(self) -> None:
        self.syncs_under_way.append((self._tick_step(), self.core.sync_begin()))

    @rule(data=st.data())
    @precondition(lambda self: self.syncs_under_way)
    def sync_end(self, data: Any) -> None:
        began, point = self.syncs_under_way.pop(data.draw(st.integers(0, len(self.syncs_under_way) - 1)))
        self.synced_from.append(began)
        before = self.core.durable_lsn
        self.core.synced(point)
        assert not self.failed or self.core.durable_lsn == before

    @rule(data=st.data(), one=st.booleans())
    @precondition(lambda self: self.frames and self.step > 6)
    def fail(self, data: Any, one: bool) -> None:
        """Fail one write under way and all after it, or a sync and all unacknowledged frames."""
        under_way = [f for f in self.frames if f.state == "sealed" and id(f) not in self.written_at]
        if (one and not under_way) or (self.failed and not one):
            return
        frame = data.draw(st.sampled_from(under_way)) if one else None
        core = self.core
        durable = min(core.durable_position, frame.position if frame else core.written_position)
        safe = [f for f in core.unacked if f.next_position <= durable]
        under_way = [f for f in core.in_flight if f.state == "sealed"]  # in completion order some have landed
        before = [f for f in under_way if frame and f.position < frame.position]
        expected = [f for f in (*core.unacked, *under_way) if f not in (*safe, *before)]
        error = OSError("the device is gone")
        lost, refused = core.fail(error, frame)
        assert lost == expected
        assert list(core.unacked) == safe
        self.lost |= {f.position for f in lost}
        assert refused == self.waiting
        assert all(f.state == "failed" and f.error is error for f in lost)
        assert all(f.state == "sealed" for f in before), "what is before it may land yet"
        start = frame.position if frame else self.core.written_position
        self.failed_from = start if self.failed_from is None else min(start, self.failed_from)
        self.failed, self.waiting = True, []

    @rule(after_us=st.integers(0, 2 * IDLE_US))
    def tick(self, after_us: int) -> None:
        self.now_us += after_us
        self._ask()

    def _ask(self) -> int | None:
        """Do the core's due work, and return the time of the next look."""
        tick = self.core.tick(self.now_us)
        assert not (self.failed and (tick.marker or tick.sync or tick.wake_in_us is not None))
        assert tick.wake_in_us is None or tick.wake_in_us > 0, "a timer that spins"
        if tick.sync:
            began, point = self._tick_step(), self.core.sync_begin()
            self.synced_from.append(began)
            self.core.synced(point)
        if tick.marker:
            assert not self.waiting and not self.core.in_flight and self.core.idle_marker_us
            make_room(self.core, MARKER_BODY.footprint(self.core.alignment))
            frame = self.core.seal_marker(self.now_us)
            assert frame.count == 0 and frame.last_lsn == frame.first_lsn - 1
            self._sealed(frame)
            self.written_at[id(frame)] = self._tick_step()
            self._acknowledged(self.core.written(frame, durable=self.durable_writes))
        return tick.wake_in_us

    @rule()
    @precondition(lambda self: not self.failed and not self.core.in_flight and not self.waiting)
    def fall_idle(self) -> None:
        """Let time pass until the core asks for nothing more: then nothing is left to do."""
        for _ in range(8):
            wake = self._ask()
            if wake is None:
                break
            self.now_us += wake
        else:
            raise AssertionError("the core keeps asking although the log is idle")
        written = [f for f in self.frames if f.count]
        if self.core.interval_us:
            assert self.core.durable_position == self.core.written_position, "an idle tail was not synced"
        if written and self.core.idle_marker_us and self.core.durable_lsn == self.core.appended_lsn:
            promise = max(header_of(f).durable_position for f in self.frames)
            assert promise >= written[-1].next_position, "an idle tail was not promised"

    @invariant()
    def books_agree(self) -> None:
        core = self.core
        core._check()
        lsn = 101
        for piece in self.pieces:
            assert piece.first_lsn == lsn
            assert piece.frame is not None and piece.frame.first_lsn <= lsn <= piece.frame.last_lsn
            lsn += piece.count
        assert core.appended_lsn == lsn - 1
        assert core.acked_lsn == (self.passed[-1].last_lsn if self.passed else 100) <= core.ack_limit_lsn
        assert {id(f) for f in self.frames if f.state == "acked"} == {id(f) for f in self.acknowledged}
        assert not self.limited or core.acked_lsn <= core.durable_lsn
        assert core.pending_bytes == sum(p.size_bytes for p in self.waiting)
        assert core.pending_records == sum(p.count for p in self.waiting)
        assert core.queued_lsn == core.appended_lsn + core.pending_records
        assert core.writing <= core.in_flight_max
        assert core.position - core.written_position <= core.reorder_window_bytes

    @invariant()
    def marks_only_grow(self) -> None:
        core = self.core
        marks = (core.appended_lsn, core.acked_lsn, core.durable_lsn)
        assert all(new >= old for new, old in zip(marks, self.marks, strict=True))
        assert core.acked_lsn <= core.appended_lsn
        assert core.durable_lsn <= core.appended_lsn
        assert not self.durable_writes or core.written_lsn == core.durable_lsn
        self.marks = marks

    @invariant()
    def durable_is_true(self) -> None:
        core = self.core
        below = [f for f in self.frames if f.next_position <= core.durable_position]
        assert all(self.on_stable_storage(f) for f in below), "called durable, and no later sync covers it"
        assert core.durable_lsn == (below[-1].last_lsn if below else 100)


QUICK = settings(
    max_examples=examples(240), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class TestCore(CoreMachine.TestCase):  # type: ignore[valid-type,misc]
    """Random histories: LSNs dense, chain right, prefix acknowledged, durable true, time asked for and left alone."""

    settings = QUICK


RARE = {
    CreditsLaterWrites,
    AcknowledgesAhead,
    PromisesTooMuch,
    ForgetsWhatIsBefore,
    LeavesTheSuffix,
    HoldsTheLanded,
    SyncsFromInFlight,
    ForgetsTheTail,
    IgnoresTheLimit,
    DropsTheLate,
}
"""Bugs that few histories meet."""


@pytest.mark.parametrize(
    "wrong",
    # slow: a second of hunting for each; test_core_table.py and test_orders.py hold the same rules
    [pytest.param(core, marks=[pytest.mark.slow] * (core in RARE), id=core.__name__) for core in WRONG_CORES],
)
def test_a_wrong_core_is_caught(wrong: type[OrderingCore[Piece]]) -> None:
    """Break one rule of the core at a time: the machine above notices each (so it can fail at all)."""
    machine = type(f"Machine{wrong.__name__}", (CoreMachine,), {"core_type": wrong})
    hunt = settings(
        QUICK,
        max_examples=6000,  # the rarest fault takes 500 on average, and it ends with the first that is found
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=hunt)
