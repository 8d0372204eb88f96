"""Explorations of crash states as a session does them: one at a time, each in its own process. No panel in here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from walkit.crashlab.explore_process import Explored, ExploreWish, explored_of
from walkit.views.jobs import Job, Jobs
from walkit.workload.process import TalkingChild

LOOK_S = 0.1
"""Time between two looks at a child that says nothing, and so the time until a cancelled one is killed."""


class CrashLab:
    """What a session has explored. Any thread asks and reads."""

    def __init__(self) -> None:
        self.jobs = Jobs("walkit-crash-lab")
        self.explored: Explored | None = None
        """What was found last."""

    def explore(self, wish: ExploreWish) -> None:
        """Explore in a child, since a mutant is in all logs of its process; returns at once."""
        self.jobs.start(f"exploring {wish.scenario}", lambda job: self._explore(wish, job))

    def _explore(self, wish: ExploreWish, job: Job) -> None:
        found: list[Explored] = []
        progress: tuple[int, int | None] = (0, None)

        def hear(said: dict[str, Any]) -> None:
            nonlocal progress
            if "found" in said:
                found.append(explored_of(said["found"]))
            else:
                progress = (said["done"], said["total"])

        with TalkingChild(["walkit.crashlab.explore_process", json.dumps(asdict(wish))], hear) as child:
            while child.talking and not child.wait_until(lambda: bool(found), LOOK_S):
                job.step(*progress, "" if progress[1] else "running the scenario")
            child.wait()
        (self.explored,) = found

    def close(self) -> None:
        """Kill the child that is at work, and take no more."""
        self.jobs.close()
