"""The Compaction part of the dashboard without a browser: its steps do what they say, the view shows what they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commit.places import until
from walkit.errors import OptionsError
from walkit.views import CompactionView, Dashboard
from walkit.views.compaction import numbers_html
from walkit.views.demo_store import KEYS, RECORDS, Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    """A store in a folder of its own."""
    made = Shelf(str(tmp_path))
    yield made
    made.close()
    made.close()


def test_each_step_does_what_it_says(shelf: Shelf) -> None:
    """Write, hold, save progress, checkpoint, compact and trim: each report is the store's, the hold is heeded."""
    written = shelf.do("write")
    assert (written.before.last_lsn, written.after.last_lsn) == (0, RECORDS)
    assert sum(s.live_keys or 0 for s in written.after.segments) == KEYS
    held = shelf.do("hold").after
    assert [h.name for h in held.holds] == ["auditor"] and held.held_bytes > 0
    assert [c.lsn for c in shelf.do("cursor").after.cursors] == [RECORDS]
    assert shelf.do("trim").after.low_watermark == 0
    assert shelf.do("checkpoint").after.checkpoint_lsn == RECORDS
    compacted = shelf.do("compact")
    assert compacted.report is not None and compacted.after.size_bytes < compacted.before.size_bytes
    assert compacted.after.exact_from_lsn <= held.holds[0].first_lsn
    trimmed = shelf.do("trim")
    assert trimmed.after.low_watermark == held.holds[0].first_lsn - 1
    assert trimmed.report is not None and "Trim up to LSN" in numbers_html(trimmed)
    assert shelf.do("hold").after.holds == ()
    assert shelf.do("trim").after.low_watermark == RECORDS
    assert shelf.do("write").after.last_lsn == 2 * RECORDS
    shelf.close()
    with pytest.raises(OptionsError):
        shelf.do("write")


def test_the_view_shows_the_newest_step(shelf: Shelf) -> None:
    """Tell a view nothing, a step, and another one: sentence, figure and numbers are those of the newest."""
    view = CompactionView()
    view.tell(None)
    assert "no store yet" in view.text.object and view.figure.visible is False
    shelf.do("write")
    for step in ("checkpoint", "compact"):
        report = shelf.do(step)
        view.tell(report)
        view.tell(report)
        assert report.words in view.text.object and view.figure.visible
        assert f"{report.after.size_bytes:,}" in view.numbers.object
        assert f"{len(report.after.segments)} segments" in view.figure.object.layout.title.text
    assert "Compaction of" in view.numbers.object


def test_the_buttons_of_the_page_work_on_one_store_of_its_own() -> None:
    """Press write and compact on a page: the view follows, and nothing is left behind."""
    page = Dashboard()
    folder = Path(page.session.folder)
    try:
        for step, wanted in (("write", "were written"), ("compact", "are gone")):
            page.steps[step].clicks += 1  # type: ignore[index]
            until(lambda: not page.session.busy and page.refresh(), "the step is done")
            assert wanted in page.compaction.text.object
        assert not any(button.disabled for button in page.steps.values())
        assert page.session.read().problem is None
        assert (folder / "store").is_dir()
    finally:
        page.close()
    assert not folder.exists()
