"""When a frame is sealed: the policies that `LogOptions(policy=...)` takes, and the parts of your own.

`walkit.commit.policy`, which defines them, explains a policy's question and answers.
"""

from __future__ import annotations

from typing import Any, cast

from walkit._internal import plugins
from walkit._internal.arguments import refuse
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
    "named",
]

NAMED = {
    "adaptive": Adaptive,
    "capped-frames": CappedFrames,
    "linger": Linger,
    "one-record-per-frame": OneRecordPerFrame,
    "take-all": TakeAll,
}
"""walkit's own policies by name; no package can take one of these names."""


def named(name: str, /, **arguments: Any) -> Policy:
    """Return a new policy by its name, made with these arguments: one of walkit's own, or a package's.

    Packages offer theirs as entry points of the group `walkit.policies`: each is a callable that returns a policy, and
    is loaded now. OptionsError for an unknown name, for arguments that it does not take, and for an object without
    `decide`.
    """
    make: Any = NAMED.get(name)
    if make is None:
        make = plugins.load("walkit.policies", name, "policy", NAMED)
    try:
        made = make(**arguments)
    except TypeError as error:
        refuse("policy", name, f"it does not take {arguments}: {error}", cause=error)
    if isinstance(made, type) or not callable(getattr(made, "decide", None)):
        refuse("policy", name, f"it makes {made!r}, which has no decide(queue)")
    return cast("Policy", made)
