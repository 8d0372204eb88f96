"""Compaction by key: a log rewritten with the newest record of each key. `walkit.Store.compact` is the way in."""

from __future__ import annotations

from walkit.compaction.compactor import CompactionProgress, Compactor
from walkit.compaction.planner import SegmentLoad, candidates, plan_groups
from walkit.compaction.report import CompactionReport
from walkit.compaction.rewriter import KeyMap, Selection

__all__ = [
    "CompactionProgress",
    "CompactionReport",
    "Compactor",
    "KeyMap",
    "SegmentLoad",
    "Selection",
    "candidates",
    "plan_groups",
]
