"""Benchmarks of writing, order and recovery, and their reports.

Those of replication and Spark, which need more packages, are in modules of their own.
"""

from __future__ import annotations

from walkit.bench.matrix import bench_write
from walkit.bench.order import OrderReport, bench_order
from walkit.bench.recovery import bench_recovery
from walkit.bench.recovery_report import RecoveryBenchReport, RecoveryRow
from walkit.bench.write_report import BenchReport, BenchRow

__all__ = [
    "BenchReport",
    "BenchRow",
    "OrderReport",
    "RecoveryBenchReport",
    "RecoveryRow",
    "bench_order",
    "bench_recovery",
    "bench_write",
]
