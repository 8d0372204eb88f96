"""When a frame is sealed: the policies that `LogOptions(policy=...)` takes, and what one of your own is made of.

`walkit.commit.policy`, where they are, says what a policy is asked and may answer.
"""

from __future__ import annotations

from walkit.commit.policy import (
    Adaptive,
    CappedFrames,
    Linger,
    OneRecordPerFrame,
    Policy,
    QueueState,
    Take,
    TakeAll,
    Wait,
)

__all__ = [
    "Adaptive",
    "CappedFrames",
    "Linger",
    "OneRecordPerFrame",
    "Policy",
    "QueueState",
    "Take",
    "TakeAll",
    "Wait",
]
