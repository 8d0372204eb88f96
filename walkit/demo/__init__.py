"""The main job: real flights through log, recovery, replica, compaction and Spark, and an oracle that checks all."""

from __future__ import annotations

from walkit.demo.checks import CHECKS, Check, Evidence, judge
from walkit.demo.pipeline import run
from walkit.demo.result import DemoResult

__all__ = ["CHECKS", "Check", "DemoResult", "Evidence", "judge", "run"]
