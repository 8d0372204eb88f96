"""The Recovery page without a browser: each fault is really done, and the page shows the log's fate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.threads import wait_until
from walkit.recovery.decision import DECISION_TABLE
from walkit.recovery.verify import verify
from walkit.views.fault_lab import BUNDLE, FAULTS, FaultName, FaultReport
from walkit.views.page_recovery import RecoveryPage
from walkit.views.workspace import DataRoot, Workspace


@pytest.fixture
def page() -> Iterator[RecoveryPage]:
    """A page with a session of its own; nothing of it is left."""
    workspace = Workspace(DataRoot("."))
    made = RecoveryPage(workspace, lambda slug, state: None)
    yield made
    workspace.close()
    assert not Path(made.session.folder).exists()


def done(page: RecoveryPage, fault: FaultName) -> FaultReport:
    """Do a fault by the page's button, and return its report."""
    page.fault.value = fault
    page.do.clicks += 1
    wait_until(lambda: not page.session.busy, "the fault is done")
    page.refresh()
    assert page.session.jobs.problem is None
    report = page.session.recovery.newest
    assert report is not None and report.fault == fault
    assert not page.about.visible
    assert all(words in page.recovery.details.object for words in (report.promise, report.place))
    return report


def marked(page: RecoveryPage) -> list[str]:
    """Return the labels of the rows of the decision table that are marked."""
    shown = page.recovery.decisions.object
    rows = [part for part in shown.split("<tr")[2:] if 'aria-current="true"' in part]
    assert all("▶" in row for row in rows) and len(shown.split("<tr")) == len(DECISION_TABLE) + 2
    return [row.split("▶ ")[1][0] for row in rows]


def fates(report: FaultReport) -> dict[str, int]:
    """Return the bytes of a report's strip by what became of them."""
    sums: dict[str, int] = {}
    for each in report.outcome.strip:
        sums[each.fate] = sums.get(each.fate, 0) + each.size_bytes
    return sums


def test_half_a_frame_is_cut_and_shown(page: RecoveryPage) -> None:
    """Leave half a frame: row F applies, its bytes are the cut part of the strip and stand as a dump."""
    report = done(page, "half-frame")
    assert report.recovery is not None and report.lost == 0
    (cut,) = report.recovery.cuts
    assert fates(report) == {"kept": report.recovery.end_position, "cut": cut.bytes}
    assert marked(page) == ["F"]
    assert (
        f"> cut: {cut.bytes:,} bytes" in page.recovery.strip.object and "[" not in page.recovery.strip.object
    )
    assert page.recovery.bytes.visible
    assert not page.salvage.visible


def test_a_flipped_bit_is_refused_and_a_copy_salvaged(page: RecoveryPage) -> None:
    """Flip a bit: a CorruptionError with its data, the byte in the frame; salvage gives up that frame, in a copy."""
    report = done(page, "bit")
    refusal, frame = report.outcome.refusal, report.frame
    assert refusal is not None and refusal.name == "CorruptionError" and report.recovery is None
    data = dict(refusal.facts)
    assert data["first_lost_lsn"] in page.recovery.text.object and 'role="alert"' in page.recovery.text.object
    assert marked(page) == ["A"]
    assert frame is not None
    assert len(frame.highlight) == 1
    assert len(page.recovery.bytes.object.layout.shapes) == 2
    assert page.salvage.visible
    page.salvage.clicks += 1
    wait_until(lambda: not page.session.busy, "the copy is salvaged")
    page.refresh()
    salvaged = page.session.recovery.newest
    assert salvaged is not None and salvaged.salvage is not None and salvaged.salvage.recovery is not None
    (given,) = salvaged.salvage.recovery.lost
    assert str(given.first_lsn) == data["first_lost_lsn"].replace(",", "")
    assert given.end_position - given.start_position == fates(report)["damaged"]
    assert "1. flipped bit, salvaged" in page.recovery.figure.object.layout.yaxis.categoryarray
    assert "given-up" in page.recovery.salvage.object and "P" in marked(page)
    assert not page.salvage.visible and page.heal.visible
    for folder in Path(page.session.folder).glob("fault-*"):
        assert verify(folder).ok == (folder.name.rpartition("-")[2] != "bit"), folder


def test_a_log_that_another_fault_has_removed_is_not_offered(page: RecoveryPage) -> None:
    """Flip a bit, then cancel another fault in its midst: the refused log is gone, and so are the buttons for it."""
    done(page, "bit")
    assert page.salvage.visible and page.heal.visible
    session = page.session
    page.fault.value = "missing"
    page.do.clicks += 1
    wait_until(lambda: (job := session.jobs.current) is not None and job.words, "the fault is under way")
    session.jobs.cancel()
    wait_until(lambda: not session.busy, "the fault is cancelled")
    page.refresh()
    assert session.recovery.newest is not None and session.recovery.newest.fault == "bit"
    assert not page.salvage.visible and not page.heal.visible
    for again in (session.recovery.salvage, session.recovery.heal):
        again()
        wait_until(lambda: not session.busy, "it is refused")
        assert "no refused log to" in (session.jobs.problem or "")


def test_a_missing_segment_is_refused(page: RecoveryPage) -> None:
    """Remove a sealed segment: SegmentMissingError with its data, no row applies; a copy is salvaged, one is healed."""
    report = done(page, "missing")
    refusal = report.outcome.refusal
    assert refusal is not None and refusal.name == "SegmentMissingError"
    segment = dict(refusal.facts)["segment"]
    assert f"{segment} is sealed" in page.recovery.decisions.object and marked(page) == []
    assert fates(report)["damaged"] > 0 and fates(report)["kept"] > 0
    page.session.recovery.salvage()
    wait_until(lambda: not page.session.busy, "the copy is salvaged")
    salvaged = page.session.recovery.newest
    assert salvaged is not None and salvaged.salvage is not None and salvaged.salvage.recovery is not None
    assert [given.segment for given in salvaged.salvage.recovery.lost] == [segment]
    page.refresh()
    assert page.heal.visible
    page.heal.clicks += 1
    wait_until(lambda: not page.session.busy, "the copy is healed")
    page.refresh()
    healed = page.session.recovery.newest
    assert healed is not None and healed.healing is not None and healed.mended is not None
    assert healed.healing.ok and healed.healing.changed
    assert healed.mended.recovery is not None and healed.mended.recovery.last_lsn >= report.acked_lsn
    assert not healed.mended.recovery.lost
    assert "Healed from a peer" in page.recovery.healing.object and "healed" in page.recovery.healing.object
    assert "1. missing segment, healed" in page.recovery.figure.object.layout.yaxis.categoryarray
    assert not page.heal.visible


@pytest.mark.parametrize(
    ("fault", "error"), [("power", None), ("full", "LogFullError"), ("sync", "CommitFailedError")]
)
def test_faults_of_the_place_lose_nothing_acknowledged(
    page: RecoveryPage, fault: FaultName, error: str | None
) -> None:
    """Cut the power, fill the disk, fail a sync: the writer's error is named, and all that it was told is there."""
    report = done(page, fault)
    assert report.recovery is not None and report.acked_lsn >= 300
    unknown = report.recovery.last_lsn - report.acked_lsn
    assert (unknown in (0, BUNDLE) if fault == "power" else unknown == 0) and report.lost == 0
    assert (report.failure and report.failure.name) == error
    assert "Every record that was known to be acknowledged is there" in page.recovery.text.object
    assert error is None or f"The writer got {error}" in page.recovery.details.object
    assert [row for row, _ in report.outcome.applied] and marked(page)
    assert fates(report)["kept"] == report.recovery.end_position


def test_earlier_recoveries_are_beside_the_newest(page: RecoveryPage) -> None:
    """Do two faults: the figure has a bar for each, newest last in its order, by the phases of its report."""
    first = done(page, "half-frame")
    newest = done(page, "sigkill")
    assert first.recovery is not None and newest.acked_lsn > first.recovery.last_lsn and newest.lost == 0
    drawing = page.recovery.figure.object
    wanted: tuple[FaultName, ...] = ("half-frame", "sigkill")
    names = [f"{n}. {FAULTS[fault].label}" for n, fault in enumerate(wanted, 1)]
    assert list(drawing.layout.yaxis.categoryarray) == names
    assert newest.recovery is not None
    by_phase = {trace.name: dict(zip(trace.y, trace.x, strict=True)) for trace in drawing.data}
    for phase in newest.recovery.phases:
        assert by_phase[phase.name][f"2. {FAULTS['sigkill'].label}"] == phase.duration_s


def test_the_fault_is_in_the_url_and_salvage_needs_a_refusal(page: RecoveryPage) -> None:
    """Restore faults from a URL, nonsense among them; salvage without a refused log is a sentence."""
    cases: tuple[tuple[str, FaultName], ...] = (("bit", "bit"), ("nonsense", "bit"), ("full", "full"))
    for given, wanted in cases:
        page.restore({"fault": given})
        assert page.state() == {"fault": wanted}
        assert FAULTS[wanted].words in page.about.object.replace("&#x27;", "'")
    page.session.recovery.salvage()
    wait_until(lambda: not page.session.busy, "salvage is refused")
    page.refresh()
    assert "no refused log" in page.status.object


def test_recovery_times_are_measured_and_drawn(page: RecoveryPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press measure, with small stores: every bar has all rounds, all is whole, nothing is left."""
    monkeypatch.setattr("walkit.views.fault_lab.ROUNDS", 2)
    monkeypatch.setattr("walkit.views.fault_lab.OPERATIONS_MEASURED", 400)
    monkeypatch.setattr("walkit.views.fault_lab.CHECKPOINT_AGES", (0.5, 1.0))
    monkeypatch.setattr("walkit.views.fault_lab.SEGMENT_BYTES_MEASURED", (1 << 18,))
    assert not page.sweep.over_checkpoint.visible
    page.measure.clicks += 1
    assert page.bar.__panel__().visible
    wait_until(lambda: not page.session.busy, "it is measured")
    page.refresh()
    sweep = page.session.recovery.sweep
    assert page.session.jobs.problem is None and sweep is not None
    assert (sweep.rounds, sweep.whole) == (2, True)
    assert {kind: {at: len(r) for at, r in found.items()} for kind, found in sweep.reports.items()} == {
        "checkpoint": {200: 2, 400: 2},
        "segment": {1 << 18: 2},
    }
    assert list(page.sweep.over_checkpoint.object.data[-1].x) == ["200", "400"]
    assert list(page.sweep.over_segments.object.data[-1].x) == ["256 KiB"]
    assert "400 records" in page.sweep.measured.object and "bug" not in page.sweep.measured.object
    assert not list(Path(page.session.folder).glob("walkit-bench-*"))


def test_a_measurement_is_cancelled(page: RecoveryPage) -> None:
    """Cancel a sweep while it fills its stores: the page shows it, nothing is left, and a fault can be done."""
    page.measure.clicks += 1
    page.bar.cancel.clicks += 1
    wait_until(lambda: not page.session.busy, "it is cancelled")
    page.refresh()
    assert "was cancelled" in page.status.object and page.session.recovery.sweep is None
    assert not list(Path(page.session.folder).glob("walkit-bench-*"))
    done(page, "power")
