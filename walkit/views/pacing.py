"""Back-pressure of a served page: the next picture is sent once the browser has drawn the last one."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from walkit.views.parts import pn

if TYPE_CHECKING:
    from bokeh.document import Document

PERIOD_MIN_S = 0.25
PERIOD_MAX_S = 2.0
REST = 1.5
"""Time between two pictures, as a multiple of the time that the browser needs for one: clicks come between them."""


class Drawn(Protocol):
    """A source of pictures."""

    def refresh(self) -> bool:
        """Show what is new."""

    def take_in(self) -> None:
        """Keep what is new until the next picture."""


class Pace:
    """Refreshes what is `shown` each time that its browser is ready for more. Used by the thread of its session.

    A picture is all that one refresh sends. The browser writes the number of the newest picture back when it has drawn
    it, and a hidden window draws nothing. Until then nothing is sent: new data waits for the next picture.
    """

    def __init__(self, shown: Drawn, document: Document, clock: Callable[[], float] = monotonic) -> None:
        self._shown, self._document, self._clock = shown, document, clock
        self.picture = pn.widgets.TextInput(value="0", visible=False)
        """Number of the newest picture."""
        self.drawn = pn.widgets.TextInput(value="0", visible=False)
        """Number of the picture that the browser has drawn."""
        self._changed, self._number = False, 0
        self._sent_s = self._next_s = clock()
        self.drawn.param.watch(lambda _: self._acknowledged(), "value")
        document.on_change(self._on_change)

    def _on_change(self, event: Any) -> None:
        # A change with a setter comes from the browser.
        self._changed = self._changed or getattr(event, "setter", None) is None

    @property
    def waiting(self) -> bool:
        """Whether the browser has not drawn the newest picture yet."""
        return bool(self.picture.value != self.drawn.value)

    def _acknowledged(self) -> None:
        if not self.waiting:
            period_s = REST * (self._clock() - self._sent_s)
            self._next_s = self._sent_s + min(max(period_s, PERIOD_MIN_S), PERIOD_MAX_S)
            self.refresh()

    def refresh(self) -> bool:
        """Send a picture if the browser is ready for one; keep what is new otherwise."""
        now_s = self._clock()
        if self.waiting or now_s < self._next_s:
            self._shown.take_in()
            return True
        self._document.hold("combine")  # one message
        try:
            self._shown.refresh()
        finally:
            self._document.unhold()
        if self._changed:
            self._sent_s = now_s
            self._number += 1
            self.picture.value = str(self._number)
            self._changed = False  # the number itself does not count
        return True
