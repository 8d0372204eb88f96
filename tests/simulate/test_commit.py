"""The commit path in virtual time: exact times where they can be reckoned by hand, properties elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.threads import wait_until
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import (
    Adaptive,
    CappedFrames,
    Linger,
    OneRecordPerFrame,
    Policy,
    QueueState,
    Take,
    Wait,
)
from walkit.commit.ticket import SingleTicket
from walkit.errors import LogClosedError, OptionsError
from walkit.format.body import Columns as BodyColumns
from walkit.format.frame import prepare_body
from walkit.format.layout import HAS_VALUE
from walkit.models.device import ConstantLatency, Device, DeviceModel, LognormalLatency, Stalls
from walkit.simulate import PRESETS, MeasuredLatency, order_cost
from walkit.simulate.commit import Call, CommitSimulation, Host, Request, Step, body_of, body_sizes
from walkit.simulate.order import expected_completion_per_s, slowest_of
from walkit.simulate.replicas import Replicas

US = 1_000


class Scripted:
    """A latency that takes its values from a list, in the order in which I/Os are submitted."""

    mean_us = 0.0

    def __init__(self, *latencies_us: int) -> None:
        self._left = iter(latencies_us)

    def draw_ns(self, random: Random) -> int:
        """Return the next of the list."""
        return next(self._left) * US


def constant(us: float = 100, **limits: Any) -> Device:
    """A device of constant latency."""
    return Device(DeviceModel(name="constant", latency=ConstantLatency(us), **limits))


def scripted(*latencies_us: int) -> Device:
    """A device whose I/Os take these times."""
    return Device(DeviceModel(name="scripted", latency=Scripted(*latencies_us)))


def calls(sizes: Iterable[int]) -> Iterator[Call]:
    """One keyless record a call, of these value bytes."""
    return (Call(1, 0, size) for size in sizes)


def add_arrivals(simulation: CommitSimulation, times_us: list[int], sizes: list[int]) -> None:
    """Add a writer for each time, so that nobody waits for anybody."""
    for us, size in zip(times_us, sizes, strict=True):
        simulation.add_writer(iter([Call(1, 0, size, us * US)]))


def latencies_us(simulation: CommitSimulation) -> list[int]:
    """What each request took, in the order of acknowledgements."""
    requests = simulation.requests()
    took_ns = requests["acknowledged_ns"] - requests["intended_ns"]
    return [ns // US for ns in took_ns.tolist()]


@pytest.mark.parametrize(
    ("completion", "expected"), [(False, {1: 30, 2: 30, 3: 30}), (True, {1: 30, 2: 10, 3: 20})]
)
def test_append_order_waits_for_what_stands_before(completion: bool, expected: dict[int, int]) -> None:
    """Three frames at once that land after 30, 10 and 20 us: in append order all wait for the first, else none does."""
    steps: list[Step] = []
    simulation = CommitSimulation(
        scripted(30, 10, 20),
        in_flight=3,
        completion=completion,
        policy=OneRecordPerFrame(),
        trace=steps.append,
    )
    add_arrivals(simulation, [0, 0, 0], [100, 100, 100])
    simulation.run()
    acknowledged = {step.number: step.now_ns // US for step in steps if step.what == "acknowledge"}
    assert acknowledged == expected
    assert [step.number for step in steps if step.what == "land"] == [2, 3, 1]


@pytest.mark.parametrize(
    ("in_flight", "policy", "writers", "per_s"),
    [
        (1, None, 1, 10_000),
        (1, None, 8, 40_000),  # two cohorts: one is written, the other waits
        (8, OneRecordPerFrame(), 8, 80_000),
        (4, OneRecordPerFrame(), 8, 40_000),
        (4, CappedFrames(records=2), 16, 80_000),
        (1, OneRecordPerFrame(), 8, 10_000),
    ],
)
def test_throughput_is_what_queueing_theory_says(
    in_flight: int, policy: Policy | None, writers: int, per_s: int
) -> None:
    """Closed loop on 100 us and no other limit: records in flight divided by the latency (Little's law)."""
    simulation = CommitSimulation(constant(), in_flight=in_flight, policy=policy)
    for _ in range(writers):
        simulation.add_writer(calls(repeat(100)))
    simulation.run(until_ns=100_000 * US)
    assert simulation.acknowledged / 0.1 == pytest.approx(per_s, rel=0.02)


@pytest.mark.parametrize(
    ("acks", "took_us", "per_s"),
    # of four writers two share a frame: a period is two writes here, or two at the replica that is waited for
    [(1, 100 + 10 + 50 + 10, 20_000), (2, 100 + 10 + 300 + 10, 6_667)],
)
def test_replicas_add_the_time_of_the_kth_fastest(acks: int, took_us: int, per_s: int) -> None:
    """Write 100 us here and 50, 300 or 500 us at replicas 10 us away: the k-th fastest counts; frames do not wait."""
    models = [constant(us).model for us in (500, 50, 300)]
    replicas = Replicas(devices=models, acks=acks, one_way_us=10)
    simulation = CommitSimulation(constant(), replicas=replicas)
    add_arrivals(simulation, [0, 5_000], [100, 100])
    simulation.run()
    assert latencies_us(simulation) == [took_us, took_us]
    loop = CommitSimulation(constant(), replicas=replicas)
    for _ in range(4):
        loop.add_writer(calls(repeat(100)))
    loop.run(until_ns=100_000 * US)
    assert loop.acknowledged / 0.1 == pytest.approx(per_s, rel=0.02)
    assert loop.core.unacked or loop.core.acked_lsn == loop.core.written_lsn
    loop.core._check()


def test_an_open_loop_counts_the_wait_of_a_stalled_device() -> None:
    """One record a ms, and the second write takes 10: those behind it are late, from when they were meant to begin."""
    simulation = CommitSimulation(scripted(*[100, 10_000, 100, 100, 100]), in_flight=1)
    add_arrivals(simulation, [n * 1000 for n in range(5)], [10] * 5)
    simulation.run()
    assert latencies_us(simulation) == [100, 10_000, 9_100, 8_100, 7_100]


def test_the_processor_prepares_one_frame_after_the_other() -> None:
    """With 20 us a frame and 5 us a record, three frames of one record reach the device at 25, 50 and 75 us."""
    host = Host(frame_us=20, record_us=5)
    simulation = CommitSimulation(constant(), in_flight=3, policy=OneRecordPerFrame(), host=host)
    add_arrivals(simulation, [0, 0, 0], [1, 1, 1])
    simulation.run()
    assert latencies_us(simulation) == [125, 150, 175]


def test_a_lingering_policy_waits_its_time() -> None:
    """A frame that may wait 300 us takes what comes until then; full earlier, it goes earlier."""
    simulation = CommitSimulation(constant(), policy=Linger(wait_us=300, size_bytes=500))
    add_arrivals(simulation, [0, 100, 1000, 1010], [50, 50, 400, 400])
    simulation.run()
    assert list(simulation.frames.column("records")) == [2, 2]
    assert latencies_us(simulation) == [400, 300, 110, 100]


def test_a_failed_frame_takes_everything_behind_it_along() -> None:
    """The first I/O fails while others are under way: nothing is acknowledged, and closed-loop writers end."""
    device = Device(DeviceModel(name="broken", latency=ConstantLatency(10), failure_rate=1))
    simulation = CommitSimulation(device, in_flight=4, policy=OneRecordPerFrame())
    for _ in range(6):
        simulation.add_writer(calls(repeat(10)))
    simulation.run()
    assert simulation.error is not None
    assert simulation.acknowledged == 0
    assert simulation.failed_requests == 6


def test_segments_follow_one_another() -> None:
    """1,000 frames of 192 bytes in segments of 64 KiB: a new segment every 341 frames, positions without a gap."""
    simulation = CommitSimulation(constant(), policy=OneRecordPerFrame(), segment_bytes=64 << 10)
    begun: list[str] = []
    simulation.on_event = begun.append
    simulation.add_writer(calls([50] * 1000))
    simulation.run()
    footprints = simulation.frames.column("footprint")
    assert sum(footprints) == simulation.core.position
    per_segment = (64 << 10) // footprints[0]
    assert begun == ["walkit.segment.rotate"] * -(-1000 // per_segment)


@pytest.mark.parametrize("sizes", [[100], [100] * 9, [0], [1, 2, 3], [0, 7], [5000, 1]])
def test_a_body_without_bytes_has_the_size_of_a_real_one(sizes: list[int]) -> None:
    """The size and footprint reckoned for keyless values are those of the encoder."""
    requests = [Request(0, iter([call])) for call in calls(sizes)]
    for request in requests:
        request.begin(0)
    columns = BodyColumns(len(sizes), 1 | HAS_VALUE, None, [bytes(size) for size in sizes])
    real = prepare_body(columns)
    assert body_sizes(requests) == (real.count, real.stored_bytes, sum(sizes))
    reckoned, footprint = body_of(real.count, real.stored_bytes, 64)
    assert (reckoned.stored_bytes, footprint) == (real.stored_bytes, real.footprint(64))


class Halves:
    """A plug-in policy: half of what waits, or a little later."""

    def decide(self, queue: QueueState) -> Take | Wait:
        """Take every other time on an even number."""
        return Take(max(queue.records // 2, 1)) if queue.in_flight % 2 == 0 else Wait(50)


@given(
    writers=st.integers(1, 12),
    arrivals=st.lists(st.integers(0, 5_000), max_size=30),
    in_flight=st.integers(1, 6),
    completion=st.booleans(),
    policy=st.sampled_from(
        [None, OneRecordPerFrame(), CappedFrames(records=3), Linger(200, 1000), Adaptive(), Halves()]
    ),
    latency=st.sampled_from([ConstantLatency(100), LognormalLatency(100, 0.8)]),
    stalls=st.none() | st.just(Stalls(every_s=0.002, duration_ms=1)),
    iops=st.none() | st.just(3000.0),
    host=st.sampled_from([Host(), Host(frame_us=15, record_us=1)]),
    seed=st.integers(0, 3),
)
def test_every_request_is_acknowledged_once_and_the_run_repeats(
    writers: int,
    arrivals: list[int],
    in_flight: int,
    completion: bool,
    policy: Policy | None,
    latency: ConstantLatency | LognormalLatency,
    stalls: Stalls | None,
    iops: float | None,
    host: Host,
    seed: int,
) -> None:
    """Any writers, policy and device: all is acknowledged, in order where asked, never too much in flight; twice."""
    runs = []
    for _ in range(2):
        steps: list[Step] = []
        model = DeviceModel(name="d", latency=latency, stalls=stalls, iops=iops)
        simulation = CommitSimulation(
            Device(model, seed),
            in_flight=in_flight,
            completion=completion,
            policy=policy,
            host=host,
            trace=steps.append,
        )
        for writer in range(writers):
            simulation.add_writer(calls([writer * 10] * 5))
        add_arrivals(simulation, arrivals, [17] * len(arrivals))
        simulation.run()
        runs.append(steps)
        assert simulation.acknowledged == writers * 5 + len(arrivals)
        assert simulation.core.acked_lsn == simulation.core.durable_lsn == simulation.acknowledged
    steps = runs[0]
    assert runs[1] == steps
    assert most_in_flight(steps) <= in_flight
    acknowledged = [step.number for step in steps if step.what == "acknowledge"]
    assert len(set(acknowledged)) == len(acknowledged)
    if not completion:
        assert all(a < b for a, b in pairwise(acknowledged))


def most_in_flight(steps: list[Step]) -> int:
    """How many frames were written at once, at most."""
    most = now = 0
    for step in steps:
        now += (step.what == "seal") - (step.what == "land")
        most = max(most, now)
    return most


def test_until_stops_the_clock_and_goes_on_later() -> None:
    """A run in two parts ends like one in one, and the clock stands where it was told to stop."""

    def writer() -> Iterator[Call]:
        return calls([100] * 50)

    whole, parts = (CommitSimulation(constant(), in_flight=2) for _ in range(2))
    whole.add_writer(writer())
    whole.run()
    parts.add_writer(writer())
    parts.run(until_ns=1_050 * US)
    assert parts.now_ns == 1_050 * US
    assert parts.acknowledged == 10
    parts.run()
    assert parts.requests()["acknowledged_ns"].tolist() == whole.requests()["acknowledged_ns"].tolist()


def test_a_negative_cost_is_refused() -> None:
    """A host that gives time back is an OptionsError."""
    with pytest.raises(OptionsError):
        Host(frame_us=-1)


# -- what append order costs


VOLUME = PRESETS["essd-pl1-20g"]


def test_the_bar_of_the_seed_issue() -> None:
    """The volume at its published limits, 8 to 64 writers, one record a frame: the bar holds, and deep."""
    table = order_cost({"volume": VOLUME}, {"one": OneRecordPerFrame()}, seconds=1)
    assert (table.throughput_ratio >= 0.95).all()
    assert (table.p99_ratio <= 1.1).all()
    assert (table.append_mean_in_flight >= 4).all()
    assert table.completion_records_per_s.to_numpy() == pytest.approx(
        table.expected_per_s.to_numpy(), rel=0.02
    )


def test_take_all_in_a_closed_loop_shows_nothing() -> None:
    """With one frame in flight there is nothing to order: both ratios are exactly 1, whatever the latencies do."""
    device = DeviceModel(name="d", latency=LognormalLatency(200, 1))
    table = order_cost({"d": device}, {"take all": None}, in_flight=1, writers=(8, 64), seconds=1)
    assert (table.throughput_ratio == 1).all()
    assert (table.p99_ratio == 1).all()
    assert (table.append_records_per_frame >= 4).all()


def test_varying_latency_has_its_price() -> None:
    """Eight writers of one record on lognormal latencies: append order costs throughput, within bounds."""
    device = DeviceModel(name="d", latency=LognormalLatency(200, 1))
    row = order_cost({"d": device}, {"one": OneRecordPerFrame()}, writers=(8,), seconds=1).iloc[0]
    assert row.completion_records_per_s == pytest.approx(row.expected_per_s, rel=0.1)
    assert 1 / row.slowest_of_n <= row.throughput_ratio < 0.9


def test_the_slowest_of_constant_latencies_is_as_fast_as_all() -> None:
    """Constant latencies have no slowest; of two uniform ones the slower takes 4/3 of the mean."""
    assert slowest_of(VOLUME, 8) == 1
    uniform = DeviceModel(name="u", latency=MeasuredLatency((0.0, 100.0)))
    assert slowest_of(uniform, 2) == pytest.approx(4 / 3, rel=0.02)


def test_stalls_and_limits_are_expected() -> None:
    """A device that stands still half of the time is expected to give half; its limits bound what depth would give."""
    free = DeviceModel(name="d", latency=ConstantLatency(100))
    half = free.with_latency(ConstantLatency(100), stalls=Stalls(every_s=0.01, duration_ms=10))
    assert expected_completion_per_s(free, 4, 1, 100) == 40_000
    assert expected_completion_per_s(half, 4, 1, 100) == 20_000
    assert expected_completion_per_s(VOLUME, 64, 2, 100) == 5_600


# -- two drivers, one core


POLICIES: list[Policy | None] = [None, OneRecordPerFrame(), CappedFrames(records=2)]


class OnThreads:
    """The thread driver, told one step after the other: writers hand over, and writes land, when the script says so."""

    def __init__(self, *, in_flight: int, completion: bool, policy: Policy | None) -> None:
        self.place = GatedSink()
        self.harness = DriverHarness(
            place=self.place, in_flight_max=in_flight, completion_order=completion, policy=policy
        )
        self.tickets: list[SingleTicket] = []

    def frame(self, first_lsn: int) -> SealedFrame:
        """Return the frame that begins with this LSN, once its write has begun."""

        def there() -> list[SealedFrame]:
            return [
                f for f in self.place.assigned if f.first_lsn == first_lsn and f.position in self.place.gates
            ]

        wait_until(there, f"the frame of LSN {first_lsn}")
        return there()[0]

    def frames_in(self, state: str) -> set[int]:
        """Return the first LSNs of the frames in this state."""
        return {frame.first_lsn for frame in self.place.assigned if frame.state == state}

    def close(self) -> None:
        """Let everything go on and end the threads."""
        self.place.release()
        self.harness.driver.stop(LogClosedError())


def simulate(
    arrivals_us: list[int],
    *,
    in_flight: int,
    completion: bool,
    policy: Policy | None,
    seed: int,
    failures: float,
) -> list[Step]:
    """Return what happens in virtual time, step by step."""
    steps: list[Step] = []
    model = DeviceModel(name="d", latency=LognormalLatency(100, 1), failure_rate=failures)
    simulation = CommitSimulation(
        Device(model, seed), in_flight=in_flight, completion=completion, policy=policy, trace=steps.append
    )
    for us in sorted(arrivals_us):
        simulation.add_writer(iter([Call(1, 0, 1, us * US)]))
    simulation.run()
    return steps


def play(steps: list[Step], on: OnThreads) -> None:
    """Give the threads the same events in the same order; after each, both have told the same frames."""
    acknowledged: set[int] = set()
    failed: set[int] = set()
    for at, step in enumerate(steps):
        if step.what == "submit":
            on.tickets.append(on.harness.queued())
        elif step.what == "seal":
            on.frame(step.number)
        elif step.what == "land":
            on.place.let(on.frame(step.number))
        elif step.what == "break":
            on.place.let(on.frame(step.number), io_error())
        elif step.what == "acknowledge":
            acknowledged.add(step.number)
        else:
            failed.add(step.number)
        follows = steps[at + 1].what if at + 1 < len(steps) else ""
        if follows not in ("acknowledge", "fail"):
            wait_until(
                lambda: on.frames_in("acked") >= acknowledged and on.frames_in("failed") >= failed, f"{step}"
            )
            assert (on.frames_in("acked"), on.frames_in("failed")) == (acknowledged, failed), step


@settings(max_examples=examples(40))
@given(
    arrivals_us=st.lists(st.integers(0, 600), min_size=1, max_size=14),
    in_flight=st.integers(2, 5),
    completion=st.booleans(),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 1_000),
    failures=st.sampled_from([0.0, 0.0, 0.15]),
)
def test_threads_and_virtual_time_acknowledge_the_same(
    arrivals_us: list[int],
    in_flight: int,
    completion: bool,
    policy: Policy | None,
    seed: int,
    failures: float,
) -> None:
    """Any arrivals, latencies, order and policy: after each event both drivers have told the very same frames."""
    steps = simulate(
        arrivals_us,
        in_flight=in_flight,
        completion=completion,
        policy=policy,
        seed=seed,
        failures=failures,
    )
    on = OnThreads(in_flight=in_flight, completion=completion, policy=policy)
    try:
        play(steps, on)
    finally:
        on.close()
