"""Policies by name, for the command line and the dashboard: when a frame is sealed, and how much it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from walkit._internal.arguments import refuse
from walkit.commit.policy import Adaptive, CappedFrames, Linger, OneRecordPerFrame, Policy

LINGER_BYTES = 256 * 1024
"""The most records that gather while a `linger` policy waits."""

_PLAIN: Final[dict[str, Callable[[], Policy | None]]] = {
    "take-all": lambda: None,
    "one-record": OneRecordPerFrame,
    "adaptive": Adaptive,
}
_WITH_A_NUMBER: Final[dict[str, Callable[[int], Policy]]] = {
    "capped": lambda records: CappedFrames(records=records),
    "linger": lambda wait_us: Linger(wait_us, LINGER_BYTES),
}
POLICY_NAMES: Final = ("take-all", "one-record", "adaptive", "capped:RECORDS", "linger:MICROSECONDS")


def policy_named(name: str) -> Policy | None:
    """Return a new policy: "take-all" (None, the log's own), "one-record", "adaptive", "capped:8", "linger:500".

    OptionsError for any other name.
    """
    kind, colon, number = name.partition(":")
    if not colon and kind in _PLAIN:
        return _PLAIN[kind]()
    if kind in _WITH_A_NUMBER and number.isascii() and number.isdigit() and int(number):
        return _WITH_A_NUMBER[kind](int(number))
    refuse("policy", name, f"one of {', '.join(POLICY_NAMES)}", POLICY_NAMES)
