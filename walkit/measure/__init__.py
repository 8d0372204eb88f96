"""What is seen: latency histograms, timelines, the machine, a raw-device baseline, and the record of a run.

A driver makes a RunRecorder, gives each of its threads a ThreadRecorder, and gets a Run, which can be saved,
loaded, compared and plotted. Histograms need the `measure` extra.
"""

from walkit.measure.baseline import Baseline, raw_baseline
from walkit.measure.compare import compare
from walkit.measure.histogram import Buckets, LatencyHistogram
from walkit.measure.knee import kept_up, knee, offered_per_s
from walkit.measure.machine import FileSystemFacts, MachineFacts, file_system
from walkit.measure.recorder import RunRecorder, ThreadRecorder
from walkit.measure.run import FrameSummary, Plain, Run, RunEvent
from walkit.measure.run_io import load
from walkit.measure.timeline import Timeline

__all__ = [
    "Baseline",
    "Buckets",
    "FileSystemFacts",
    "FrameSummary",
    "LatencyHistogram",
    "MachineFacts",
    "Plain",
    "Run",
    "RunEvent",
    "RunRecorder",
    "ThreadRecorder",
    "Timeline",
    "compare",
    "file_system",
    "kept_up",
    "knee",
    "load",
    "offered_per_s",
    "raw_baseline",
]
