"""Back-pressure of a served page: when a picture is sent, and when what is new has to wait."""

from __future__ import annotations

import pytest
from bokeh.document import Document

from walkit.views.base import pn
from walkit.views.shell import PERIOD_MAX_S, PERIOD_MIN_S, REST, Pace


class Counter:
    """A page with one text, which counts how it is called."""

    def __init__(self, document: Document) -> None:
        self.text = pn.pane.HTML("")
        document.add_root(self.text.get_root(document))
        self.pictures = self.kept = 0
        self.changes = True

    def refresh(self) -> bool:
        self.pictures += 1
        if self.changes:
            self.text.object = f"picture {self.pictures}"
        return True

    def take_in(self) -> None:
        self.kept += 1


class Rig:
    """A pace with a clock that the test moves, and a browser that draws on request."""

    def __init__(self) -> None:
        self.now_s = 100.0
        document = Document()
        self.page = Counter(document)
        self.pace = Pace(self.page, document, lambda: self.now_s)

    def after(self, seconds: float) -> int:
        """Let time pass, refresh once, and return how many pictures there were."""
        self.now_s += seconds
        self.pace.refresh()
        return self.page.pictures

    def draw(self, seconds: float = 0.0) -> None:
        """Acknowledge the newest picture after some time."""
        self.now_s += seconds
        self.pace.drawn.value = self.pace.picture.value


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_nothing_is_sent_until_the_browser_has_drawn(rig: Rig) -> None:
    """Refresh for a minute without an acknowledgement, as of a hidden window: one picture; then the next at once."""
    assert rig.after(1.0) == 1
    for _ in range(240):
        assert rig.after(0.25) == 1
    assert rig.page.kept == 240
    rig.draw()
    assert rig.after(PERIOD_MAX_S) == 2


@pytest.mark.parametrize(
    ("takes_s", "period_s"),
    [(0.01, PERIOD_MIN_S), (0.4, REST * 0.4), (1.0, REST * 1.0), (1.9, PERIOD_MAX_S), (5.0, 5.0)],
)
def test_the_rate_follows_the_browser(rig: Rig, takes_s: float, period_s: float) -> None:
    """Draw each picture in a given time: pictures come at 4 Hz at most, with a rest, and at 0.5 Hz for a slow one."""
    rig.after(1.0)
    sent_s = rig.now_s
    rig.draw(takes_s)
    while rig.page.pictures < 2:
        rig.after(0.01)
    assert rig.now_s - sent_s == pytest.approx(period_s, abs=0.02)


def test_a_page_that_does_not_change_sends_no_picture(rig: Rig) -> None:
    """Refresh a page that changes nothing: it is asked each time, and the number of the picture stays."""
    rig.after(1.0)
    rig.draw()
    rig.page.changes = False
    number = rig.pace.picture.value
    assert [rig.after(0.3) for _ in range(5)] == [2, 3, 4, 5, 6]
    assert rig.pace.picture.value == number


def test_an_acknowledgement_of_an_older_picture_does_not_count(rig: Rig) -> None:
    """Acknowledge a number that is not the newest one: nothing is sent."""
    rig.after(1.0)
    rig.pace.drawn.value = "17"
    assert rig.after(3.0) == 1
