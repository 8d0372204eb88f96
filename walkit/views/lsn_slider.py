"""A slider over the LSNs of a log, which the browser's own range is: Panel's has no name for a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import param
from panel.custom import JSComponent

SLIDER_CSS = """
label { display: block; font-size: 0.9em; font-variant-numeric: tabular-nums; }
input { display: block; width: 100%; margin: 0.2em 0; box-sizing: border-box; accent-color: var(--accent); }
"""


class LsnSlider(JSComponent):
    """A whole number from 0 to `end`; calls `moved()` where a person has moved it. Used by one thread."""

    words = param.String(default="", doc="what is chosen")
    value = param.Integer(default=0, doc="the LSN that is chosen")
    end = param.Integer(default=1, doc="the last LSN that can be chosen")
    _esm = files("walkit.views").joinpath("lsn_slider.js").read_text(encoding="utf-8")
    _stylesheets = [SLIDER_CSS]

    def __init__(self, words: str, moved: Callable[[], None]) -> None:
        self._moved = moved
        super().__init__(words=words, sizing_mode="stretch_width")  # type: ignore[no-untyped-call]

    @property
    def lsn(self) -> int:
        """The LSN that is chosen."""
        return int(self.value or 0)

    def choose(self, lsn: int) -> None:
        """Choose an LSN, as a person does; one beyond the end is the end."""
        self.value = min(max(lsn, 0), int(self.end or 0))
        self._moved()

    def _handle_msg(self, msg: Any) -> None:
        if isinstance(msg, dict) and type(msg.get("value")) is int:
            self.choose(msg["value"])
