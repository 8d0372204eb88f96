"""Policies: the decisions of each, the core's answer to any decision, and no policy can hold a caller forever."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commit.cores import Piece, make_core, seal_group
from tests.support.fake_segments import DriverHarness, GatedSink
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.commit.policy import (
    WAIT_US_MAX,
    Adaptive,
    CappedFrames,
    Linger,
    OneRecordPerFrame,
    Policy,
    QueueState,
    Take,
    TakeAll,
    Wait,
)
from walkit.errors import LogClosedError

HOUR_US = 3_600_000_000


def queue(**facts: int) -> QueueState:
    """Return the state for a policy: one record of 100 bytes, submitted at 1000, and now."""
    usual = {
        "now_us": 1000,
        "records": 1,
        "size_bytes": 100,
        "oldest_us": 1000,
        "in_flight": 1,
        "in_flight_max": 4,
        "taken_us": 900,
        "write_us": 2000,
    }
    return QueueState(**(usual | facts))


@pytest.mark.parametrize(
    ("policy", "facts", "expected"),
    [
        (TakeAll(), {}, Take()),
        (OneRecordPerFrame(), {"records": 9}, Take(1)),
        (CappedFrames(3, 500), {}, Take(3, 500)),
        (Linger(200, 1000), {}, Wait(200)),
        (Linger(200, 1000), {"now_us": 1150}, Wait(50)),
        (Linger(200, 1000), {"now_us": 1200}, Take()),
        (Linger(200, 1000), {"size_bytes": 1000}, Take()),
        (Adaptive(), {"in_flight": 0}, Take()),
        (Adaptive(), {}, Wait(400)),
        (Adaptive(), {"now_us": 1400}, Take()),
        (Adaptive(wait_us=100), {}, Take()),
        (Adaptive(), {"write_us": 0}, Take()),
    ],
    ids=str,
)
def test_what_a_policy_decides(policy: Policy, facts: dict[str, int], expected: Take | Wait) -> None:
    """Ask each policy at the edges of its rule."""
    assert policy.decide(queue(**facts)) == expected


def test_the_core_calls_the_policy_again_after_its_wait() -> None:
    """Submit under a policy that lingers: nothing is taken, `tick` names the time, and then it is."""
    core = make_core(policy=Linger(200, 1000))
    core.submit(Piece(), now_us=50)
    assert core.take(100) == ()
    assert core.tick(100).wake_in_us == 150
    assert not core.tick(249).seal
    assert core.tick(250).seal
    assert len(core.take(250)) == 1
    assert core.seal_at_us is None
    assert not core.tick(250).seal


def test_flushing_and_idleness_are_stronger_than_waiting() -> None:
    """Wait for an hour, or without a time: flush takes the queue; with nothing in flight no time means now."""
    core = make_core(policy=Linger(HOUR_US, 1 << 30))
    core.submit(Piece(), 0)
    assert not core.ready(0)
    core.flush()
    assert core.ready(0)
    seal_group(core, core.take(0))
    core.submit(Piece(), 0)
    assert not core.ready(0), "what came after the flush is not part of it"

    class OnlyWhenTold:
        def decide(self, queue: QueueState) -> Take | Wait:
            return Wait()

    core = make_core(policy=OnlyWhenTold(), in_flight_max=2)
    core.submit(Piece(), 0)
    frame = seal_group(core, core.take(0))
    core.submit(Piece(), 0)
    assert core.take(WAIT_US_MAX - 1) == ()
    core.written(frame, durable=True, now_us=1)
    assert len(core.take(1)) == 1


def test_reported_times_are_measured() -> None:
    """Write frames that take 800 us, then one that takes more: the policy gets the smoothed time."""
    told: list[QueueState] = []

    class Listens:
        def decide(self, queue: QueueState) -> Take | Wait:
            told.append(queue)
            return Take()

    core = make_core(policy=Listens(), in_flight_max=3)
    for now, took in ((1000, 800), (5000, 800), (9000, 1600)):
        core.submit(Piece(2), now - 10)
        core.written(seal_group(core, core.take(now), now), durable=True, now_us=now + took)
    assert [(q.write_us, q.taken_us, q.oldest_us, q.records) for q in told] == [
        (0, 0, 990, 2),
        (800, 1000, 4990, 2),
        (800, 5000, 8990, 2),
    ]
    assert core.write_us == 900


class Raises:
    """A policy with a fault."""

    def decide(self, queue: QueueState) -> Take | Wait:
        raise ZeroDivisionError("a fault of the plug-in")


class Nonsense:
    """A policy whose answer makes no sense."""

    def decide(self, queue: QueueState) -> Take | Wait:
        return 3  # type: ignore[return-value]


class WaitsForAWord:
    """A policy whose time is not a number."""

    def decide(self, queue: QueueState) -> Take | Wait:
        return Wait("soon")  # type: ignore[arg-type]


class TakesAWord:
    """A policy whose number of records is not a number."""

    def decide(self, queue: QueueState) -> Take | Wait:
        return Take("some")  # type: ignore[arg-type]


class TakesNoNumber:
    """A policy that divided by nothing in the way of numpy."""

    def decide(self, queue: QueueState) -> Take | Wait:
        return Take(None, float("nan"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "policy",
    [Raises(), Nonsense(), WaitsForAWord(), TakesAWord(), TakesNoNumber()],
    ids=lambda p: type(p).__name__,
)
def test_a_faulty_policy_loses_nothing_and_is_reported_once(policy: Policy) -> None:
    """Plug in a policy that raises or answers nonsense: every record is written all the same, and one event tells."""
    harness = DriverHarness(policy=policy, in_flight_max=2)
    for n in range(5):
        assert harness.append().first_lsn == n + 1
    assert harness.queued().result(GUARD_S).first_lsn == 6
    Task(harness.driver.stop, LogClosedError("over")).result()
    wait_until(lambda: [name for name, _ in harness.events] == ["walkit.policy.fail"])
    assert harness.core.policy is None


@given(
    answers=st.lists(
        st.one_of(
            st.builds(Take, st.none() | st.integers(1, 5), st.none() | st.integers(0, 300)),
            st.builds(Wait, st.none() | st.integers(-5, 50)),
        ),
        min_size=1,
    ),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    in_flight=st.integers(1, 4),
)
def test_whatever_a_policy_answers_everything_is_written_in_order(
    answers: list[Take | Wait], counts: list[int], in_flight: int
) -> None:
    """Let a policy answer anything, and time pass: all submissions are taken, in their order, within the caps."""
    given_out: list[Take | Wait] = []

    class Anything:
        def decide(self, queue: QueueState) -> Take | Wait:
            given_out.append(answers[len(given_out) % len(answers)])
            return given_out[-1]

    core = make_core(policy=Anything(), in_flight_max=in_flight)
    pieces = [Piece(count) for count in counts]
    taken: list[Piece] = []
    left, now = list(pieces), 0
    for _ in range(40 * len(pieces)):
        if left:
            core.submit(left.pop(0), now)
        group = list(core.take(now))
        if group:
            verdict = given_out[-1]
            records = verdict.records if isinstance(verdict, Take) else None
            assert records is None or len(group) == 1 or sum(p.count for p in group) <= records
            taken += group
            seal_group(core, group, now)
        elif core.in_flight:
            core.written(core.in_flight[0], durable=True, now_us=now)
        elif core.seal_at_us is not None:
            now = max(core.seal_at_us, now + WAIT_US_MAX // 4)
        now += 3
    assert taken == pieces
    assert [p.first_lsn for p in pieces] == [101 + sum(counts[:n]) for n in range(len(counts))]


def test_what_lingers_is_written_when_its_time_is_over_or_somebody_waits() -> None:
    """Linger 2 ms, and an hour, on real time: appends come back; waiting for all, and stopping, hold nothing back."""
    harness = DriverHarness(policy=Linger(2000, 1 << 20))
    harness.clock = lambda: time.monotonic_ns() // 1000
    assert harness.append().first_lsn == 1
    assert harness.queued().result(GUARD_S).first_lsn == 2
    Task(harness.driver.stop, LogClosedError("over")).result()
    patient = DriverHarness(policy=Linger(HOUR_US, 1 << 20), in_flight_max=3)
    patient.clock = harness.clock
    tickets = [patient.queued() for _ in range(4)]
    assert not tickets[0].done()
    Task(patient.driver.wait_written).result()
    assert all(t.done() for t in tickets)
    last = patient.queued()
    Task(patient.driver.stop, LogClosedError("over")).result()
    assert last.result(0).first_lsn == 5


def test_capped_frames_fill_all_places() -> None:
    """Queue ten records under frames of two with four places: four are in flight at once, the rest follows in order."""
    place = GatedSink()
    harness = DriverHarness(place=place, policy=CappedFrames(records=2), in_flight_max=4)
    first: Any = harness.queued()
    wait_until(lambda: len(place.gates) == 1)
    tickets = [first, *[harness.queued() for _ in range(9)]]
    wait_until(lambda: len(place.gates) == 4, "four writes")
    assert harness.core.writing == 4
    place.release()
    assert [t.result(GUARD_S).first_lsn for t in tickets] == list(range(1, 11))
    Task(harness.driver.stop, LogClosedError("over")).result()
    assert max(f.count for f in place.frames) == 2


def test_policies_are_imported_from_their_public_module() -> None:
    """A fresh interpreter: `from walkit.policy import ...` gives the core's protocol, and all its public names."""
    code = (
        "from walkit.policy import Linger\n"
        "import walkit, walkit.commit.policy as inner\n"
        "assert Linger is inner.Linger is walkit.policy.Linger\n"
        "public = set(walkit.policy.__all__) - {'named'}\n"
        "assert all(getattr(walkit.policy, name) is getattr(inner, name) for name in public)\n"
        "own = {n for n, v in vars(inner).items() if isinstance(v, type) and v.__module__ == inner.__name__}\n"
        "assert own == public, own\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
