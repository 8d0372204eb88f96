"""Compaction by key: a log rewritten with the newest record of each key. `walkit.Store.compact` is the way in."""

from __future__ import annotations

from walkit.compaction.compactor import Compactor
from walkit.compaction.planner import SegmentLoad, candidates, plan_groups
from walkit.compaction.report import CompactionReport
from walkit.compaction.selection import KeyMap, Selection

__all__ = [
    "CompactionReport",
    "Compactor",
    "KeyMap",
    "SegmentLoad",
    "Selection",
    "candidates",
    "plan_groups",
]
