"""Run: what it says of itself, on disk and back, and side by side."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from walkit.errors import CorruptionError, FormatVersionError, OptionsError
from walkit.measure import (
    Baseline,
    FileSystemFacts,
    FrameSummary,
    LatencyHistogram,
    MachineFacts,
    Run,
    RunEvent,
    Timeline,
    compare,
    load,
)
from walkit.measure.run import plain


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


@pytest.mark.parametrize("suffix", ["", ".json", ".parquet"])
def test_saved_and_loaded_runs_are_equal(tmp_path: Path, suffix: str) -> None:
    """Everything in a full Run, gaps in its timeline and an empty histogram included, comes back equal."""
    run = make_run()
    assert np.isnan(run.timeline.p50_us).any()
    run.save(tmp_path / "new" / f"v0.1{suffix}")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["v0.1.json", "v0.1.parquet"]
    back = load(tmp_path / "new" / f"v0.1{suffix}")
    assert back == run
    assert back.summary() == run.summary()
    assert back != dataclasses.replace(run, latency={})


def test_a_bare_run_comes_back_equal(tmp_path: Path) -> None:
    """Only what is required, nothing recorded: equal after saving and loading."""
    bare = Run(
        name="bare",
        started_at=datetime.now(UTC),
        duration_s=0.0,
        records=0,
        durability="none",
        machine=MachineFacts(),
        latency={},
        timeline=Timeline.from_samples([], [], duration_s=0.0),
    )
    bare.save(tmp_path / "bare")
    assert load(tmp_path / "bare") == bare


def test_the_parquet_file_reads_without_walkit(tmp_path: Path) -> None:
    """Counts in the tidy table add up to the records of the run, for the timeline as for the histogram."""
    run = make_run()
    run.save(tmp_path / "run")
    table = pq.read_table(tmp_path / "run.parquet").to_pandas()
    counts = table.groupby("part")["records"].sum().to_dict()
    assert counts == {"timeline": run.records, "latency": run.records, "baseline": 500}


def test_halves_of_two_runs_are_noticed(tmp_path: Path) -> None:
    """A Parquet file beside the facts of another run is refused."""
    make_run().save(tmp_path / "a")
    make_run(latency={}).save(tmp_path / "b")
    (tmp_path / "b.parquet").replace(tmp_path / "a.parquet")
    with pytest.raises(CorruptionError, match="half"):
        load(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"format": "other", "version": 1}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """JSON of something else, or no JSON at all, is a typed error."""
    make_run().save(tmp_path / "run")
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(CorruptionError, match="not a saved run"):
        load(tmp_path / "run")


def test_newer_and_incomplete_files_are_told_apart(tmp_path: Path) -> None:
    """A later version asks for a newer walkit; a missing fact is damage; an absent half is not found."""
    make_run().save(tmp_path / "run")
    facts = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(facts | {"version": 2}))
    with pytest.raises(FormatVersionError):
        load(tmp_path / "run")
    del facts["run"]["machine"]
    (tmp_path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(CorruptionError, match="whole"):
        load(tmp_path / "run")
    (tmp_path / "run.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "run")


def test_options_are_made_plain() -> None:
    """Dataclasses, enums, numpy numbers, tuples and bytes become what JSON gives back equal."""
    run = make_run()
    assert run.options == {"log": {"in_flight": 1, "order": "append", "sizes": [1, 2]}, "rate": 2.5}
    assert run.events[1].attributes == {"at": [1, 2]}
    assert plain({1: b"x", "nan": float("nan"), "when": datetime(2026, 1, 1, tzinfo=UTC)}) == {
        "1": "b'x'",
        "nan": "nan",
        "when": "2026-01-01T00:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ()),
        ({"durability": "none"}, ("durability none",)),
        (
            {"machine": MachineFacts(file_system=FileSystemFacts(type="tmpfs", tmpfs=True))},
            ("tmpfs: sync means nothing",),
        ),
        ({"interrupted": True}, ("interrupted",)),
        (
            {
                "durability": "none",
                "interrupted": True,
                "machine": MachineFacts(file_system=FileSystemFacts(type="ramfs", tmpfs=True)),
            },
            ("ramfs: sync means nothing", "durability none", "interrupted"),
        ),
    ],
)
def test_what_makes_numbers_mean_less_is_said(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    """tmpfs, durability none and interruption are warnings, in red in a notebook; a plain run has none."""
    run = make_run(**changes)
    assert len(run.warnings) == len(words)
    assert all(warning.startswith(word) for warning, word in zip(run.warnings, words, strict=True))
    assert ("font-weight:bold" in run._repr_html_()) == bool(words)
    assert all(warning in run._repr_html_() for warning in run.warnings)


def test_summary_agrees_with_its_parts() -> None:
    """The flat summary is JSON, and its numbers are those of the histogram, the frames and the baseline."""
    run = make_run("<i>")
    flat = json.loads(json.dumps(run.summary(), allow_nan=False))
    assert flat["p99_us"] == run.latency["total"].percentile(99) / 1_000
    assert flat["records_per_s"] == pytest.approx(run.records / 2.05)
    assert (flat["syncs_per_s"], flat["write_amplification"]) == (pytest.approx(20.0), 1.5)
    assert flat["records_per_frame"] == pytest.approx(100 / 3)
    assert (flat["raw_writes_per_s"], flat["raw_block_bytes"], flat["file_system"]) == (
        14_000.5,
        4096,
        "ext4",
    )
    assert "&lt;i&gt;" in run._repr_html_()
    assert "<i>" not in run._repr_html_()


def test_frame_summary_is_numpy_s() -> None:
    """Means and quantiles of frame sizes; no frames give no quantiles."""
    frames = FrameSummary.from_sizes([1, 2, 97], [64, 128, 8192])
    assert (frames.frames, frames.records, frames.frame_bytes, frames.records_max) == (3, 100, 8384, 97)
    assert (frames.records_p50, frames.bytes_mean) == (2.0, 8384 / 3)
    empty = FrameSummary.from_sizes([], [])
    assert empty.records_p50 is None
    assert np.isnan(empty.records_mean)
    with pytest.raises(ValueError, match="one length"):
        FrameSummary.from_sizes([1], [1, 2])


def test_compare_shows_labels_and_what_differs() -> None:
    """A row per run in order: summary, labels, and of the options only those that are not the same in all."""
    runs = [
        make_run("a", options={"log": {"in_flight": 1, "codec": None}}, labels={"writers": 1}),
        make_run("b", options={"log": {"in_flight": 4, "codec": None}, "extra": None}, baseline=None),
    ]
    table = compare(runs)
    assert table["name"].tolist() == ["a", "b"]
    assert table["option.log.in_flight"].tolist() == [1, 4]
    assert "option.log.codec" not in table
    assert "option.extra" in table
    assert table["label.writers"].tolist() == [1, 64]
    assert table["raw_ratio"][0] == pytest.approx(runs[0].records_per_s / 14_000.5)
    assert table["raw_ratio"].isna().tolist() == [False, True]
    assert len(compare([])) == 0
    assert len(compare(runs[0])) == 1
    with pytest.raises(OptionsError, match="runs"):
        compare([runs[0], 5])  # type: ignore[list-item]


def test_naive_start_is_refused() -> None:
    """A start without a time zone could be any of a day's hours: ValueError."""
    with pytest.raises(ValueError, match="time zone"):
        make_run(started_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_the_room_is_light() -> None:
    """Importing walkit.measure brings in neither pandas nor plotly nor the histogram package."""
    code = "import sys, walkit.measure; print(sorted({'pandas', 'plotly', 'hdrh'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
