"""Scenarios in which the device answers no more: a log with a time limit for it fails, and is opened again."""

from __future__ import annotations

from dataclasses import replace

from walkit.crashlab.failing_script import FailingScript
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import LogPoisonedError

LIMITED = replace(SMALL, write_timeout_ms=150)


def _hanging(given: Script) -> None:
    script = FailingScript(given)
    is_synced = script.options.durability == "sync"
    log = script.open()
    script.submit(log, 3, 700)
    hang = script.storage.hang("synced_write" if is_synced else "sync", "*.segment")
    with script.during("device hangs"):
        if is_synced:
            script.submit(log, 2, 900)
        with script.failing():
            script.sync(log)
        try:
            log.append(b"refused")
        except LogPoisonedError:
            pass
        else:
            raise AssertionError("a log takes records although its device hangs")
        script.storage.take("the log has failed")
    hang.release()
    script.storage.clear()
    log.close()
    with script.during("recovery"), script.open() as log:
        script.restarted(log)
        script.append(log, 100)


HANGING_SCENARIOS = (
    Scenario(
        "hanging-write",
        "a write hangs until the log has failed, then it arrives",
        _hanging,
        LIMITED,
        covers=("device hangs", "recovery"),
    ),
    Scenario(
        "hanging-sync",
        "durability none: a sync hangs until the log has failed, then it is done",
        _hanging,
        replace(LIMITED, durability="none"),
        covers=("device hangs", "recovery"),
    ),
)
