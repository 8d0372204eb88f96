"""Run: what it says of itself, on disk and back, and side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from tests.measure.runs import make_run
from walkit.errors import OptionsError
from walkit.measure import (
    FileSystemFacts,
    FrameSummary,
    MachineFacts,
    compare,
)
from walkit.measure.run import plain


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
    assert run.timeline.picture() in run._repr_html_()


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


def test_reprs_are_one_line_without_arrays() -> None:
    """Print a Run and its parts with arrays: one short line each, with what tells it from another."""
    run = make_run("a name")
    shown = repr(run)
    assert "a name" in shown and run.durability in shown and f"{run.records:,}" in shown
    for part in (run, run.timeline, run.latency["total"], run.latency["total"].buckets()):
        assert len(repr(part)) < 160 and "array(" not in repr(part) and "\n" not in repr(part)
