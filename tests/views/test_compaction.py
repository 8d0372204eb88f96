"""The Compaction part of the dashboard without a browser: its steps do what they say, the view shows what they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.threads import wait_until
from walkit.errors import OptionsError
from walkit.views import CompactionView
from walkit.views.page_compaction import CompactionPage, numbers_html
from walkit.views.session import KEY_BYTES, KEYS, RECORDS, VALUE_BYTES, Shelf
from walkit.views.workspace import DataRoot, Workspace


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    """A store in a folder of its own."""
    made = Shelf(str(tmp_path))
    yield made
    made.close()
    made.close()


def test_each_step_does_what_it_says(shelf: Shelf) -> None:
    """Write, hold, save progress, checkpoint, compact and trim: each report is the store's, the claim is heeded."""
    written = shelf.do("write")
    assert (written.before.last_lsn, written.after.last_lsn) == (0, RECORDS)
    assert sum(s.live_keys or 0 for s in written.after.segments) == KEYS
    held = shelf.do("hold").after
    assert [c.name for c in held.claims] == ["auditor"] and held.held_bytes > 0
    assert [c.lsn for c in shelf.do("cursor").after.cursors] == [RECORDS]
    assert shelf.do("trim").after.low_watermark == 0
    assert shelf.do("checkpoint").after.checkpoint_lsn == RECORDS
    compacted = shelf.do("compact")
    assert compacted.report is not None and compacted.after.size_bytes < compacted.before.size_bytes
    assert compacted.after.exact_from_lsn <= held.claims[0].needed_lsn
    trimmed = shelf.do("trim")
    assert trimmed.after.low_watermark == held.claims[0].needed_lsn - 1
    assert trimmed.report is not None and "Trim up to LSN" in numbers_html(trimmed)
    assert shelf.do("hold").after.claims == ()
    assert shelf.do("trim").after.low_watermark == RECORDS
    assert shelf.do("write").after.last_lsn == 2 * RECORDS
    shelf.close()
    with pytest.raises(OptionsError):
        shelf.do("write")


def test_a_trim_is_previewed_and_then_does_that(shelf: Shelf) -> None:
    """Look at the preview of each step: nothing changes by it, the trim that follows drops just what it named."""
    for step, limit in (("write", "state"), ("hold", "state"), ("checkpoint", "claim auditor")):
        report = shelf.do(step)  # type: ignore[arg-type]
        assert report.preview.limit == limit
    assert report.preview.segments and report.after.low_watermark == 0
    view = CompactionView()
    view.update(report)
    assert "limited by claim auditor" in view.preview.object
    assert "would go" in {trace.name for trace in view.figure.object.data}
    trimmed = shelf.do("trim")
    gone = {s.name for s in trimmed.before.segments} - {s.name for s in trimmed.after.segments}
    assert {s.name for s in report.preview.segments} <= gone
    assert trimmed.after.low_watermark == report.preview.low_watermark
    assert not trimmed.preview.segments


def test_amplification_is_counted_after_each_step(shelf: Shelf) -> None:
    """Write twice, checkpoint, compact: maintenance adds to the writes, and reduces the space."""
    reports = [shelf.do(step) for step in ("write", "write", "checkpoint", "compact")]
    history = reports[-1].history
    assert [each.step for each in history] == ["write", "write", "checkpoint", "compact"]
    first, second, snapshot, compacted = history
    live_bytes = KEYS * (KEY_BYTES + VALUE_BYTES)
    assert [each.space for each in history] == [r.after.size_bytes / live_bytes for r in reports]
    assert first.space < second.space > compacted.space
    assert 1 < second.written < snapshot.written < compacted.written
    view = CompactionView()
    view.update(reports[-1])
    assert [list(trace.y) for trace in view.costs.object.data] == [
        [each.space for each in history],
        [each.written for each in history],
    ]


def test_the_buttons_of_the_page_work_on_one_store_of_its_own() -> None:
    """Press write and compact on a page: the view follows, and nothing is left behind."""
    workspace = Workspace(DataRoot("."))
    page = CompactionPage(workspace, lambda slug, state: None)
    folder = Path(page.session.folder)
    try:
        for step, wanted in (("write", "were written"), ("compact", "are gone")):
            page.steps[step].clicks += 1  # type: ignore[index]
            wait_until(lambda: not page.session.busy, "the step is done")
            page.refresh()
            assert wanted in page.compaction.text.object
        assert not any(button.disabled for button in page.steps.values())
        assert page.session.read().problem is None
        assert (folder / "store").is_dir()
        page.new_log.clicks += 1
        wait_until(lambda: not page.session.busy, "the new store is made")
        page.refresh()
        assert "An example" in page.compaction.text.object and not page.compaction.figure.visible
        assert not (folder / "store").exists()
        page.steps["write"].clicks += 1
        wait_until(lambda: not page.session.busy, "the new store is written")
        page.refresh()
        assert "LSN 1 to" in page.compaction.text.object and page.compaction.figure.visible
    finally:
        workspace.close()
    assert not folder.exists()
