"""A Run made again of its facts, as JSON holds them (`Run.facts`). Its series are kept apart from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from walkit.measure.baseline import Baseline
from walkit.measure.histogram import LatencyHistogram
from walkit.measure.machine import FileSystemFacts, MachineFacts
from walkit.measure.run import FrameSummary, Run, RunEvent
from walkit.measure.timeline import Timeline


def run_of(
    facts: Mapping[str, Any],
    timeline: Timeline,
    latency: dict[str, LatencyHistogram],
    baseline: LatencyHistogram | None,
) -> Run:
    """Return the Run of facts as JSON has them; `baseline` holds the latencies of the raw device, if it was measured.

    KeyError, TypeError or ValueError if facts are missing or of another kind.
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
