"""Every call to the storage fails in turn, in every operation, at every level: nothing promised is lost, none hangs."""

from __future__ import annotations

from typing import Any

import pytest

import walkit
from tests.log.faultloop import Loop
from tests.log.faultscenes import SCENES

LEVELS: dict[str, dict[str, Any]] = {
    "sync": {"durability": "sync"},
    "interval": {"durability": "interval", "interval_ms": 2},
    "none": {"durability": "none"},
}
FLIGHTS: dict[str, dict[str, Any]] = {
    "one frame": {},
    "eight": {"in_flight": 8},
    "eight as they land": {"in_flight": 8, "ack_order": "completion"},
}
KINDS = ["error", "landed", "short", "full", "delay"]


def options_of(level: str, flights: str) -> walkit.LogOptions:
    return walkit.LogOptions(
        segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, idle_mark_ms=0, **LEVELS[level], **FLIGHTS[flights]
    )


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flights", FLIGHTS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_call_that_fails(scene: str, level: str, flights: str, kind: str, forever: bool) -> None:
    """Fail each call of a scene in turn."""
    Loop(SCENES[scene], options_of(level, flights), kind, forever=forever).run()
