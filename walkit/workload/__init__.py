"""What drives a log: workloads, the drivers that run them, and the writer as a child process that may be killed."""

from __future__ import annotations

from walkit.workload.benchreport import BenchReport, BenchRow
from walkit.workload.child import ChildOutcome, ChildWriter, ChildWriterError
from walkit.workload.choice import EmpiricalBytes, KeyChoice, Mix, UniformBytes
from walkit.workload.drive import drive
from walkit.workload.flights import flight_operations, load_flights
from walkit.workload.matrix import bench_write
from walkit.workload.operations import Operation, OperationGroup, OperationStream, operation_mask
from walkit.workload.orderbench import OrderReport, bench_order
from walkit.workload.recoverbench import bench_recovery
from walkit.workload.recoverreport import RecoveryBenchReport, RecoveryRow
from walkit.workload.spec import YCSB, OpenLoop, Workload, ycsb
from walkit.workload.steady import SteadyLoad, SteadyWriter
from walkit.workload.sweep import sweep
from walkit.workload.trace import trace_operations

__all__ = [
    "YCSB",
    "BenchReport",
    "BenchRow",
    "ChildOutcome",
    "ChildWriter",
    "ChildWriterError",
    "EmpiricalBytes",
    "KeyChoice",
    "Mix",
    "OpenLoop",
    "Operation",
    "OperationGroup",
    "OperationStream",
    "OrderReport",
    "RecoveryBenchReport",
    "RecoveryRow",
    "SteadyLoad",
    "SteadyWriter",
    "UniformBytes",
    "Workload",
    "bench_order",
    "bench_recovery",
    "bench_write",
    "drive",
    "flight_operations",
    "load_flights",
    "operation_mask",
    "sweep",
    "trace_operations",
    "ycsb",
]
