"""What drives a log: workloads, the drivers that run them, and the writer as a child process that may be killed."""

from __future__ import annotations

from walkit.workload.bench import BenchReport, bench_write
from walkit.workload.child import ChildOutcome, ChildWriter, ChildWriterError
from walkit.workload.drive import Workload, drive
from walkit.workload.flights import flight_operations, load_flights
from walkit.workload.operations import Operation, OperationGroup, OperationStream, operation_mask
from walkit.workload.steady import SteadyLoad, SteadyWriter

__all__ = [
    "BenchReport",
    "ChildOutcome",
    "ChildWriter",
    "ChildWriterError",
    "Operation",
    "OperationGroup",
    "OperationStream",
    "SteadyLoad",
    "SteadyWriter",
    "Workload",
    "bench_write",
    "drive",
    "flight_operations",
    "load_flights",
    "operation_mask",
]
