"""A delta reader in virtual time: where deltas are faster than the log on remote storage, and where there are none."""

from __future__ import annotations

from typing import Any

import pytest

from walkit.errors import OptionsError
from walkit.models import ConstantLatency, DeviceModel
from walkit.replication.delta.poll_server import DeltaOptions
from walkit.simulate.delta_lag import delta_lag

LOG_ALONE = DeltaOptions(buffer_bytes=0)


@pytest.mark.parametrize("frame_bytes", [1024, 16 * 1024])
def test_below_the_bound_deltas_lag_less_than_half_of_the_log_alone(frame_bytes: int) -> None:
    """Write 20 MB/s of 1 KiB records on the default remote storage: all comes by delta, and at most half as late."""
    by_delta = delta_lag(frame_bytes=frame_bytes, seconds=0.5)
    by_log = delta_lag(frame_bytes=frame_bytes, seconds=0.5, options=LOG_ALONE)
    assert by_delta.hit_rate > 0.99  # the range before the first answer is read
    assert by_log.hit_rate == 0
    assert by_delta.median_ms <= by_log.median_ms / 2


@pytest.mark.parametrize("bytes_per_s", [30e6, 36e6, 40e6, 60e6])
def test_past_the_bound_a_reader_lags_no_more_than_by_the_log_alone(bytes_per_s: float) -> None:
    """Write at rates at which some or all answers overflow: deltas between loads do not slow the loads down."""
    mixed = delta_lag(bytes_per_s=bytes_per_s, seconds=0.5)
    alone = delta_lag(bytes_per_s=bytes_per_s, seconds=0.5, options=LOG_ALONE)
    assert mixed.median_ms <= 1.2 * alone.median_ms
    assert mixed.p99_ms <= 1.2 * alone.p99_ms


def test_a_larger_buffer_moves_the_bound() -> None:
    """Write 60 MB/s: with 32 KiB hardly anything comes by delta, with 256 KiB everything."""
    small, large = (
        delta_lag(bytes_per_s=60e6, seconds=0.3, options=DeltaOptions(buffer_bytes=size))
        for size in (1 << 15, 1 << 18)
    )
    assert small.hit_rate < 0.1
    assert large.hit_rate > 0.99


def test_on_a_near_disk_reading_the_log_is_as_good() -> None:
    """Read from a disk of 25 us instead: the log alone lags no more than with deltas, and a tenth of a millisecond."""
    disk = DeviceModel(name="near", latency=ConstantLatency(25), bytes_per_s=2e9)
    by_delta = delta_lag(seconds=0.3, device=disk)
    by_log = delta_lag(seconds=0.3, device=disk, options=LOG_ALONE)
    assert abs(by_log.median_ms - by_delta.median_ms) < 0.1


def test_the_same_seed_gives_the_same_result() -> None:
    """Simulate twice with one seed and once with another: equal, and not equal."""
    first, again, other = (delta_lag(seconds=0.2, options=LOG_ALONE, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_s": 0},
        {"seconds": float("inf")},
        {"frame_bytes": -1},
        {"device": DeviceModel(name="bad", latency=ConstantLatency(1), failure_rate=0.5)},
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Give them: an OptionsError that names the option."""
    with pytest.raises(OptionsError) as caught:
        delta_lag(**wrong)
    assert caught.value.option in wrong
