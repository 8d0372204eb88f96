"""The main job: operations of real flights through the log, a kill, a replay, and an oracle that checks all."""

from __future__ import annotations

from walkit.demo.story import Check, DemoResult, run_demo, tell

__all__ = ["Check", "DemoResult", "run_demo", "tell"]
