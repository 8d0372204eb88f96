"""The facts of a Run as JSON holds them, and the Run made of them again. Its series are kept apart from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from walkit.measure.baseline import Baseline
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.machine import FileSystemFacts, MachineFacts
from walkit.measure.run import FrameSummary, Run, RunEvent
from walkit.measure.timeline import Timeline


def facts_of(run: Run) -> dict[str, Any]:
    """Return every field of a Run but its timeline; histograms as HdrHistogram's V2 payloads in base64."""
    facts = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name != "timeline"}
    baseline = run.baseline and {**vars(run.baseline), "latencies": run.baseline.latencies.encode()}
    return facts | {
        "started_at": run.started_at.isoformat(),
        "machine": dataclasses.asdict(run.machine),
        "latency": {name: histogram.encode() for name, histogram in run.latency.items()},
        "frames": run.frames and dataclasses.asdict(run.frames),
        "baseline": baseline,
    }


def run_of(
    facts: Mapping[str, Any],
    timeline: Timeline,
    latency: dict[str, LatencyHistogram],
    baseline: LatencyHistogram | None,
) -> Run:
    """Return the Run of facts as JSON has them; `baseline` holds the latencies of the raw device, if it was measured.

    KeyError, TypeError or ValueError where facts are missing or of another kind.
    """
    machine = dict(facts["machine"])
    if machine["file_system"]:
        machine["file_system"] = FileSystemFacts(**machine["file_system"])
    events: Iterable[Any] = facts["events"]
    return Run(
        **{
            **facts,
            "started_at": datetime.fromisoformat(facts["started_at"]),
            "machine": MachineFacts(**machine),
            "latency": latency,
            "timeline": timeline,
            "frames": FrameSummary(**facts["frames"]) if facts["frames"] else None,
            "events": tuple(RunEvent(*event) for event in events),
            "baseline": None
            if baseline is None
            else Baseline(**{**facts["baseline"], "latencies": baseline}),
        }
    )
