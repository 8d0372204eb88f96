"""Measurements: latency histograms, timelines, the machine, a raw-device baseline, and the record of a run.

A driver makes a RunRecorder, gives each of its threads a ThreadRecorder, and gets a Run, which can be saved,
loaded, compared and plotted. Histograms need the `measure` extra.
"""

from walkit.measure.baseline import Baseline, RawRate, raw_baseline, raw_rates
from walkit.measure.compare import compare, read_runs, settings_of
from walkit.measure.frame_sample import FrameSample, FrameSampler
from walkit.measure.health import HealthReport, doctor
from walkit.measure.health_checks import Finding
from walkit.measure.histogram import Buckets, LatencyHistogram
from walkit.measure.machine import FileSystemFacts, MachineFacts, file_system
from walkit.measure.ratio import Ratio, ratio_of
from walkit.measure.recorder import RunRecorder, ThreadRecorder
from walkit.measure.run import FrameSummary, Plain, Run, RunEvent
from walkit.measure.run_io import load
from walkit.measure.saturation import kept_up, knee, offered_per_s
from walkit.measure.timeline import Timeline

__all__ = [
    "Baseline",
    "Buckets",
    "FileSystemFacts",
    "Finding",
    "FrameSample",
    "FrameSampler",
    "FrameSummary",
    "HealthReport",
    "LatencyHistogram",
    "MachineFacts",
    "Plain",
    "Ratio",
    "RawRate",
    "Run",
    "RunEvent",
    "RunRecorder",
    "ThreadRecorder",
    "Timeline",
    "compare",
    "doctor",
    "file_system",
    "kept_up",
    "knee",
    "load",
    "offered_per_s",
    "ratio_of",
    "raw_baseline",
    "raw_rates",
    "read_runs",
    "settings_of",
]
