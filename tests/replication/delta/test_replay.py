"""A delta reader's cores: exact ranges in order, loads side by side, and no error taken for progress."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import walkit
from tests.support.examples import examples
from tests.support.logs import tiny
from tests.support.machines import that_did
from walkit.errors import GapError, StorageError
from walkit.models import CrashingStorage
from walkit.replication import ProtocolError
from walkit.replication.core.backoff import Backoff
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.poll_client import DeltaPoller
from walkit.replication.delta.replayer import (
    ApplyRange,
    DeltaReplayer,
    EndReplay,
    LoadRange,
    ReplayLimits,
    ReplayStep,
)
from walkit.replication.delta.server_feed import DeltaFeed

LOG_ID = 7
SMALL = ReplayLimits(loads_max=3, load_bytes=256, bytes_max=1024, parts_max=4, tries_max=3)


def end(lsn: int) -> DeltaEnd:
    """Return the end after this record, of a log whose records take 64 bytes each."""
    return DeltaEnd(lsn, 64 * lsn)


def answer_up_to(lsn: int, session_epoch: int = 1, **facts: Any) -> PollAnswer:
    """Return an answer that says up to where the log is durable, and brings nothing along."""
    return PollAnswer(
        version=2, session_id=1, session_epoch=session_epoch, end=end(lsn), log_id=LOG_ID, epoch_id=0, **facts
    )


def replayer(applied: int = 0, limits: ReplayLimits = SMALL) -> DeltaReplayer:
    """Return a replayer whose delays have no chance in them."""
    return DeltaReplayer(end(applied), log_id=LOG_ID, limits=limits, chance=lambda: 1.0)


def loads(steps: list[ReplayStep]) -> list[LoadRange]:
    """Return the loads of some steps."""
    return [step for step in steps if isinstance(step, LoadRange)]


def applications(steps: list[ReplayStep]) -> list[tuple[int, int]]:
    """Return the LSNs of the ranges to apply."""
    return [(step.first_lsn, step.last_lsn) for step in steps if isinstance(step, ApplyRange)]


# -- the replayer


def test_what_is_reported_twice_changes_nothing() -> None:
    """Repeat every report: no step comes of the second."""
    core = replayer()
    (load,) = loads(core.answered(answer_up_to(1), 0))
    assert core.answered(answer_up_to(1), 0) == []
    (step,) = core.loaded(load.number, "x", 64, end(1), 0)
    assert core.loaded(load.number, "y", 64, end(1), 0) == []
    assert core.load_failed(load.number, GapError(1, 5), 0) == []
    assert isinstance(step, ApplyRange)
    core.done(step.number, 0)
    assert core.done(step.number, 0) == core.apply_failed(step.number, ValueError()) == []
    assert (core.applied, core.failure) == (end(1), None)


def test_a_delta_that_continues_is_taken_and_else_the_log_is_read() -> None:
    """Give one real delta to replayers that are before it, at its beginning and within it: exact ranges each time."""
    with walkit.open(storage=CrashingStorage(), options=tiny()) as log, DeltaFeed(log) as feed:
        log.append(b"1")
        log.append(b"2")
        last = feed.poll(PollRequest())
        assert isinstance(last, PollAnswer)
        log.append(b"3")
        log.append(b"4")
        assert log.parts.driver.delivery.drain()
        answer = feed.poll(PollRequest(session_id=last.session_id, session_epoch=2))
        assert isinstance(answer, PollAnswer)
        assert (answer.first, answer.delta is not None) == (last.end, True)
    cores = [DeltaReplayer(DeltaEnd(lsn), log_id=answer.log_id or 0) for lsn in range(4)]
    steps = [[(type(s), s.first_lsn, s.last_lsn) for s in core.answered(answer, 0)] for core in cores]  # type: ignore[union-attr]
    assert steps == [[(LoadRange, 1, 2)], [(LoadRange, 2, 2)], [(ApplyRange, 3, 4)], [(LoadRange, 4, 4)]]
    assert [core.counts.deltas for core in cores] == [1, 1, 1, 0]
    assert [core.counts.unfit for core in cores] == [0, 0, 0, 1]
    (step,) = cores[0].loaded(1, "x", 1, DeltaEnd(2), 0)
    assert isinstance(step, ApplyRange)
    assert applications(cores[0].done(step.number, 0)) == [(3, 4)]


def test_a_delta_that_would_cut_a_range_that_waits_in_two_is_not_taken() -> None:
    """Give deltas while all loads are under way and a range waits for its turn: the range grows, and is one load."""
    core = replayer(limits=ReplayLimits(loads_max=1, load_bytes=1 << 20))
    (load,) = loads(core.answered(answer_up_to(2), 0))
    for lsn in range(3, 13):
        first = end(lsn - 1)
        assert core.answered(answer_up_to(lsn, first=first, delta=bytes(64) if lsn > 3 else None), 0) == []
    (following,) = loads(core.loaded(load.number, "x", 128, end(2), 0))
    assert (following.first_lsn, following.last_lsn) == (3, 12)
    assert (core.counts.deltas, core.counts.unfit) == (0, 9)


class ReplayMachine(RuleBasedStateMachine):
    """The replayer with loads and applications that end in any order, or fail: the state is a prefix, with no hole."""

    did: ClassVar[Counter[str]] = Counter()

    @initialize(applied=st.integers(0, 5))
    def begin(self, applied: int) -> None:
        """Begin at some end."""
        self.core = replayer(applied)
        self.state = list(range(1, applied + 1))
        self.newest, self.now = applied, 0.0
        self.loading: list[LoadRange] = []
        self.applying: list[ApplyRange] = []

    def take(self, steps: list[ReplayStep]) -> None:
        """Note the steps."""
        self.loading += loads(steps)
        self.applying += [step for step in steps if isinstance(step, ApplyRange)]
        if any(isinstance(step, EndReplay) for step in steps):
            assert self.core.failure is not None
            self.loading, self.applying = [], []  # as each shell does
            self.did["ended"] += 1

    @rule(records=st.integers(0, 30))
    def answer(self, records: int) -> None:
        """Answer with a later end."""
        self.newest += records
        self.take(self.core.answered(answer_up_to(self.newest), self.now))

    @precondition(lambda self: self.loading)
    @rule(which=st.integers(0, 9), outcome=st.sampled_from(["loaded", "loaded", "loaded", "short", "error"]))
    def end_load(self, which: int, outcome: str) -> None:
        """End one of the loads, well or not."""
        load = self.loading.pop(which % len(self.loading))
        self.did[outcome] += 1
        self.did["overtaken"] += any(load.first_lsn > other.first_lsn for other in self.loading)
        if outcome == "error":
            self.take(self.core.load_failed(load.number, StorageError("no"), self.now))
            return
        last = load.last_lsn - (outcome == "short")
        size = 64 * (last - load.first_lsn + 1)
        self.take(self.core.loaded(load.number, (load.first_lsn, last), size, end(last), self.now))

    @rule(records=st.integers(1, 30), which=st.integers(0, 9))
    def read_on(self, records: int, which: int) -> None:
        """Learn of more records, let a load end well, and apply the next range."""
        self.answer(records)
        if self.loading:
            self.end_load(which, "loaded")
        if self.applying:
            self.apply()

    @precondition(lambda self: self.applying)
    @rule()
    def apply(self) -> None:
        """Apply what is to be applied."""
        (step,) = self.applying
        self.applying = []
        assert step.payload == (step.first_lsn, step.last_lsn)
        self.did["applied"] += 1
        self.state += range(step.first_lsn, step.last_lsn + 1)
        self.take(self.core.done(step.number, self.now))

    @rule(ms=st.sampled_from([1, 50, 500]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now += ms
        self.take(self.core.tick(self.now))

    @invariant()
    def the_state_is_a_prefix(self) -> None:
        """All records up to some LSN are applied, once; it is announced only when it is; little is held."""
        if not hasattr(self, "core"):
            return
        assert self.state == list(range(1, len(self.state) + 1))
        assert self.core.applied.lsn == len(self.state) <= self.newest
        assert self.core.held_bytes <= SMALL.bytes_max + SMALL.load_bytes
        assert len(self.loading) <= SMALL.loads_max
        idle = not self.loading and not self.applying and self.core.wake_at_ms is None
        assert not idle or self.core.applied.lsn == self.newest or self.core.failure is not None

    def teardown(self) -> None:
        """Let every load fail until one has had all its tries: that ends the replay where the state is."""
        for _ in range(2 * SMALL.tries_max):
            while getattr(self, "loading", []):
                self.end_load(0, "error")
            self.wait(500)
        assert not getattr(self, "loading", []), "a load is tried without an end"
        self.the_state_is_a_prefix()


ReplayMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40)
TestReplay = that_did(ReplayMachine, "loaded", "short", "error", "overtaken", "applied", "ended")


# -- the poller


def poller(**facts: Any) -> DeltaPoller:
    """Return a poller whose delays have no chance in them."""
    return DeltaPoller(backoff=Backoff(chance=lambda: 1.0), **facts)


def test_one_request_is_under_way_and_a_lost_answer_is_asked_for_again() -> None:
    """Lose an answer: the same number is asked for after a while, and the answer to the first request is dropped."""
    core = poller()
    first = core.request(end(0), 0)
    assert first == PollRequest()
    assert core.request(end(0), 10) is None
    core.failed(first, 10)
    assert core.request(end(0), 59) is None
    second = core.request(end(0), 60)
    assert second is not None
    assert core.answered(first, answer_up_to(1), 61) is None
    answer = answer_up_to(1)
    assert core.answered(second, answer, 61) is answer
    assert core.answered(second, answer, 61) is None
    third = core.request(end(1), 62)
    assert third == PollRequest(session_id=1, session_epoch=2, applied=end(1))


def test_a_new_session_is_taken_and_an_answer_that_does_not_fit_is_not() -> None:
    """Answer with another session: its numbers count; with a wrong number: a typed error, asked again."""
    core = poller()
    request = core.request(end(0), 0)
    assert request is not None
    core.answered(request, answer_up_to(1), 0)
    request = core.request(end(0), 1)
    assert request is not None
    for wrong in (
        answer_up_to(1, 5),
        PollAnswer(version=3, session_id=1, session_epoch=2, end=end(1), log_id=LOG_ID, epoch_id=0),
    ):
        with pytest.raises(ProtocolError):
            core.answered(request, wrong, core.wake_at_ms or 1)
        request = core.request(end(0), core.wake_at_ms or 0)
        assert request == PollRequest(session_id=1, session_epoch=2)
        assert request is not None
    new = PollAnswer(version=2, session_id=9, session_epoch=1, end=end(1), log_id=LOG_ID, epoch_id=0)
    assert core.answered(request, new, 200) is new
    assert (core.session_id, core.session_epoch, core.sessions) == (9, 2, 2)


@pytest.mark.parametrize(
    ("reason", "again"), [("busy", (1, 2)), ("stale", (0, 1)), ("full", (0, 1)), ("closed", None)]
)
def test_a_refusal_is_tried_again_or_final(reason: str, again: tuple[int, int] | None) -> None:
    """Refuse a poll: in the same session, in a new one, or never again."""
    core = poller()
    request = core.request(end(0), 0)
    assert request is not None
    core.answered(request, answer_up_to(1), 0)
    request = core.request(end(0), 1)
    assert request is not None
    core.refused(request, PollRefusal(reason=reason, message=""), 1)
    following = core.request(end(0), 1e9)
    assert again == (None if following is None else (following.session_id, following.session_epoch))
    assert (core.closed is not None) == (again is None)
