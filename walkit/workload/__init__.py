"""Workloads, the drivers that run them on a log, and the writer as a child process that may be killed."""

from __future__ import annotations

from walkit.workload.batching import batched, batching_sweep, paced
from walkit.workload.child import ChildOutcome, ChildWriter, ChildWriterError
from walkit.workload.distributions import KeyChoice, Mix, UniformBytes
from walkit.workload.drive import drive
from walkit.workload.flights import flight_operations, load_flights
from walkit.workload.operations import Operation, OperationGroup, OperationStream, operation_mask
from walkit.workload.spec import YCSB, OpenLoop, Workload, ycsb
from walkit.workload.steady import ContinuousLoad, SteadyWriter
from walkit.workload.sweep import sweep

__all__ = [
    "YCSB",
    "ChildOutcome",
    "ChildWriter",
    "ChildWriterError",
    "ContinuousLoad",
    "KeyChoice",
    "Mix",
    "OpenLoop",
    "Operation",
    "OperationGroup",
    "OperationStream",
    "SteadyWriter",
    "UniformBytes",
    "Workload",
    "batched",
    "batching_sweep",
    "drive",
    "flight_operations",
    "load_flights",
    "operation_mask",
    "paced",
    "sweep",
    "ycsb",
]
