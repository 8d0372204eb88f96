"""Two drivers, one core: what virtual time acknowledges, threads acknowledge for the same order of events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fake_segments
from tests.support import threads as waiting
from tests.support.examples import examples
from tests.support.fake_segments import DriverHarness, GatedSink, io_error
from tests.support.threads import wait_until
from walkit.commit.frame import SealedFrame
from walkit.commit.policy import CappedFrames, OneRecordPerFrame, Policy
from walkit.commit.ticket import SingleTicket
from walkit.errors import LogClosedError
from walkit.models.device import Device, DeviceModel, LognormalLatency
from walkit.simulate.commit import Call, CommitSimulation, Step

US = 1_000
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

    def told(self, state: str) -> set[int]:
        """Return the first LSNs of the frames in this state."""
        return {frame.first_lsn for frame in self.place.assigned if frame.state == state}

    def close(self) -> None:
        """Let everything go on and end the threads."""
        self.place.release()
        self.harness.driver.stop(LogClosedError())


@pytest.fixture
def threads() -> Iterator[list[OnThreads]]:
    """Drivers to be closed at the end."""
    made: list[OnThreads] = []
    yield made
    for driver in made:
        driver.close()


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
            wait_until(lambda: on.told("acked") >= acknowledged and on.told("failed") >= failed, f"{step}")
            assert (on.told("acked"), on.told("failed")) == (acknowledged, failed), step


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


def test_a_driver_of_the_other_order_is_noticed(
    threads: list[OnThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in completion order whose second frame lands first, played to a driver of append order, does not fit."""
    for module in (fake_segments, waiting):
        monkeypatch.setattr(module, "GUARD_S", 0.5)  # what the driver never does is waited for
    steps = simulate([0] * 6, in_flight=4, completion=True, policy=OneRecordPerFrame(), seed=1, failures=0)
    landed = [step.number for step in steps if step.what == "land"]
    assert landed != sorted(landed)
    threads.append(OnThreads(in_flight=4, completion=False, policy=OneRecordPerFrame()))
    with pytest.raises(AssertionError, match="waited"):
        play(steps, threads[0])
