"""Runs to save, load and compare: a full one, a bare one, and any that Hypothesis thinks of."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import numpy as np
from hypothesis import strategies as st

from walkit.measure import (
    Baseline,
    FileSystemFacts,
    FrameSummary,
    LatencyHistogram,
    MachineFacts,
    Run,
    RunEvent,
    Timeline,
)


class Order(Enum):
    """An option that is an enum."""

    APPEND = "append"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options as a dataclass."""

    in_flight: int = 1
    order: Order = Order.APPEND
    sizes: tuple[int, ...] = (1, 2)


def make_run(name: str = "demo", **changes: Any) -> Run:
    rng = np.random.default_rng(7)
    latency, completed = rng.integers(1_000, 10**7, 5000), rng.integers(0, 2 * 10**9, 5000)
    completed = completed[(completed < 500_000_000) | (completed > 900_000_000)]
    latency = latency[: len(completed)]
    everything: dict[str, Any] = {
        "name": name,
        "started_at": datetime(2026, 11, 21, 5, 0, 0, 123456, timezone(timedelta(hours=2))),
        "duration_s": 2.05,
        "records": len(completed),
        "durability": "sync",
        "machine": MachineFacts(cores=2, file_system=FileSystemFacts(type="ext4", tmpfs=False)),
        "latency": {"total": LatencyHistogram.from_samples(latency), "never": LatencyHistogram()},
        "timeline": Timeline.from_samples(completed, latency, duration_s=2.05, bucket_s=0.1),
        "arrival": "open",
        "operations": {"put": 4000, "delete": 1000},
        "seed": 7,
        "options": {"log": Options(), "rate": np.float64(2.5)},
        "bytes_user": 1000,
        "bytes_written": 1500,
        "syncs": 41,
        "frames": FrameSummary.from_sizes([1, 2, 97], [64, 128, 8192], padding_bytes=10),
        "events": (RunEvent(-0.5, "prepare", {"segment": 1}), RunEvent(0.25, "rotate", {"at": [1, 2]})),
        "baseline": Baseline(
            writes_per_s=14_000.5,
            latencies=LatencyHistogram.from_samples(rng.integers(50_000, 90_000, 500)),
            block_bytes=4096,
            duration_s=0.5,
        ),
        "labels": {"writers": 64},
    }
    return Run(**(everything | changes))


def bare_run() -> Run:
    """Only what is required, and nothing recorded."""
    return Run(
        name="bare",
        started_at=datetime.now(UTC),
        duration_s=0.0,
        records=0,
        durability="none",
        machine=MachineFacts(),
        latency={},
        timeline=Timeline.from_samples([], [], duration_s=0.0),
    )


_finite = st.floats(allow_nan=False, allow_infinity=False)
_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | _finite | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_settings = st.dictionaries(st.text(max_size=8), _plain, max_size=4)
_latencies = st.lists(st.integers(0, 10**12), max_size=30)
_histograms = _latencies.map(LatencyHistogram.from_samples)
_offsets = st.integers(-720, 720).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@st.composite
def _timelines(draw: st.DrawFn) -> Timeline:
    ended = draw(st.lists(st.integers(0, 3 * 10**9), max_size=30))
    took = draw(st.lists(st.integers(0, 10**12), min_size=len(ended), max_size=len(ended)))
    return Timeline.from_samples(ended, took, duration_s=draw(st.integers(0, 3_000)) / 1_000, bucket_s=0.1)


@st.composite
def _baselines(draw: st.DrawFn) -> Baseline:
    return Baseline(
        writes_per_s=draw(_finite),
        latencies=draw(_histograms),
        block_bytes=draw(st.integers(1, 2**40)),
        duration_s=draw(_finite),
        threads=draw(st.integers(1, 64)),
    )


def any_run() -> st.SearchStrategy[Run]:
    """Runs whose every field varies."""
    count = st.integers(0, 2**62)
    frames = st.lists(st.integers(1, 10**6), max_size=9).map(lambda n: FrameSummary.from_sizes(n, n))
    return st.builds(
        Run,
        name=st.text(max_size=12),
        started_at=st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=_offsets),  # noqa: DTZ001
        duration_s=st.floats(0, 1e9),
        records=count,
        durability=st.sampled_from(["sync", "interval", "none"]),
        machine=st.builds(MachineFacts, cpu=st.text(max_size=5), cores=st.integers(1, 512)),
        latency=st.dictionaries(st.text(max_size=8), _histograms, max_size=3),
        timeline=_timelines(),
        arrival=st.sampled_from(["closed", "open"]),
        operations=st.dictionaries(st.text(max_size=5), count, max_size=3),
        seed=st.none() | st.integers(),
        options=_settings,
        bytes_user=st.none() | count,
        bytes_written=st.none() | count,
        syncs=st.none() | count,
        frames=st.none() | frames,
        events=st.lists(st.builds(RunEvent, _finite, st.text(max_size=8), _settings), max_size=3).map(tuple),
        baseline=st.none() | _baselines(),
        interrupted=st.booleans(),
        failure=st.none() | st.text(max_size=12),
        crash_verdict=st.none() | st.text(max_size=12),
        walkit_version=st.none() | st.text(max_size=12),
        labels=_settings,
    )
